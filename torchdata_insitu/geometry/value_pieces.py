"""Cutting the values of a chunk into pieces that stay in a core's own cache."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

PIECE_ITEMS = 1 << 16
"""Most values in a piece. What is made beside a piece, a mask or a copy in another dtype, does not
grow with the chunk."""


def pieces(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array of any shape into views, each value in exactly one.

    Example:
        >>> list(pieces((5, 30_000)))
        [(slice(0, 2, None),), (slice(2, 4, None),), (slice(4, 6, None),)]
        >>> list(pieces((2, 3, 50_000)))[:2]
        [(0, slice(0, 1, None)), (0, slice(1, 2, None))]
    """
    if not shape:
        yield (...,)
        return
    # The axis that is sliced: the first of which an element is no larger than a piece.
    axis = next(n for n in range(len(shape)) if math.prod(shape[n + 1 :]) <= PIECE_ITEMS)
    rows = max(1, PIECE_ITEMS // max(1, math.prod(shape[axis + 1 :])))
    for outer in itertools.product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], rows):
            yield (*outer, slice(start, start + rows))
