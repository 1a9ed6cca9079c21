"""Making splits: on chunk edges by fractions, or at exact sample ranges."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View
from torchdata_insitu.planning.keyed_random import keyed_permutation
from torchdata_insitu.planning.planning_grid import planning_edges
from torchdata_insitu.planning.sample_ranges import Ranges, as_ranges, cut_on_chunks
from torchdata_insitu.planning.split import Split, Splits
from torchdata_insitu.planning.split_axis import Gap, NamedRange, SplitAxis
from torchdata_insitu.planning.whole_number import whole_number

__all__ = ["Split", "Splits", "split_by_chunk", "split_by_range"]

_ROUNDING = 1e-9


def split_by_chunk(
    views: Mapping[str, View | ArrayGeometry],
    fractions: Mapping[str, float],
    *,
    contiguous: bool = True,
    gap: Gap = "auto",
    sample_range: tuple[int, int] | None = None,
    seed: int = 0,
) -> Splits:
    """Split samples by fractions, on edges of the planning grid, so that splits share no chunk.

    Args:
        views: What a batch will hold; their offsets decide the gap.
        fractions: Share of the samples by name, in the order of the axis; together at most 1.
        contiguous: One range per split. False deals whole cells of the planning grid to the splits
            in an order keyed by `seed`; neighbouring cells then often belong to different splits.
        gap: Samples to leave out between two splits, from the start of the later range, which then
            begins inside a chunk. "auto": the span of the windows, `max_offset - min_offset` over
            all views, so that no sample is read for two splits. 0: none.
        sample_range: `(start, stop)` to split; None for all samples. It is exact: a border chunk
            may be used in part.
        seed: Key of the order in which cells are dealt; without effect if `contiguous`.

    Returns:
        The splits, with the anchors whose windows still cross into another split counted (and
        warned about) and the chunks that are used in part counted.

    Raises:
        GeometryError: Views that cannot be drawn together.
        PlanError: Fractions that are no shares of a whole; fewer cells than splits; a split that
            the gap eats.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(1000, 4), chunks=(24, 4), dtype="f4")
        >>> t2m = read_arrays(store)["t2m"]
        >>> splits = split_by_chunk({"x": t2m, "y": t2m.shift(4)}, {"train": 0.8, "val": 0.2})
        >>> splits["train"].ranges, splits["val"].ranges
        (((0, 792),), ((796, 1000),))
    """
    axis = SplitAxis(views, gap)
    whole = _sample_range(sample_range, axis.length)
    grid = planning_edges(axis.arrays, ranges=whole).edges
    cells = cut_on_chunks(grid, whole)
    shares = _shares(fractions)
    if len(cells) < len(shares):
        msg = (
            f"{len(cells)} cells of the planning grid cannot be split {len(shares)} ways "
            f"({', '.join(shares)}): give exact ranges to split_by_range"
        )
        raise PlanError(msg)
    if contiguous:
        borders = _borders(np.append(cells[:, 0], cells[-1, 1]), list(shares.values()))
        ranges = [
            (name, int(cells[first, 0]), int(cells[last - 1, 1]))
            for name, (first, last) in zip(shares, pairwise(borders), strict=True)
        ]
    else:
        if axis.gap >= (cells[:, 1] - cells[:, 0]).max():
            msg = (
                f"a gap of {axis.gap} samples leaves nothing of single cells of {grid.largest}: "
                "use contiguous=True, nearer offsets, or gap=0"
            )
            raise PlanError(msg)
        ranges = _deal(cells, shares, whole_number("seed", seed))
    return axis.splits(ranges, list(shares), edges=grid, may_lose_ranges=not contiguous)


def split_by_range(
    views: Mapping[str, View | ArrayGeometry],
    ranges: Mapping[str, tuple[int, int] | Sequence[tuple[int, int]]],
    *,
    gap: Gap = "auto",
) -> Splits:
    """Split samples at exact indices.

    Args:
        views: What a batch will hold; their offsets decide the gap.
        ranges: `(start, stop)`, or several of them, by name.
        gap: As in `split_by_chunk`: taken from the start of the later range.

    Returns:
        The splits, with crossing anchors and chunks used in part counted.

    Raises:
        GeometryError: Views that cannot be drawn together.
        PlanError: Ranges that are empty, overlap or leave the axis; a range that the gap eats.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(1000, 4), chunks=(24, 4), dtype="f4")
        >>> t2m = read_arrays(store)["t2m"]
        >>> splits = split_by_range(
        ...     {"x": t2m.window(-1, 0)}, {"train": (0, 900), "val": (900, 1000)}
        ... )
        >>> splits["val"].ranges, splits["val"].half_used
        (((901, 1000),), 1)
    """
    axis = SplitAxis(views, gap)
    asked = _named(ranges, 'ranges are a mapping such as {"train": (0, 900)}')
    by_start = sorted(
        ((name, *pair) for name, value in asked.items() for pair in _pairs(name, value)),
        key=operator.itemgetter(1),
    )
    # Made once as asked for, so that ranges that overlap are reported and not cut by the gap.
    axis.as_splits(by_start, list(asked))
    return axis.splits(by_start, list(asked), edges=None, may_lose_ranges=False)


def _shares(fractions: Mapping[str, float]) -> dict[str, float]:
    shares = _named(fractions, 'fractions are a mapping such as {"train": 0.8, "val": 0.2}')
    for name, share in shares.items():
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not number or not 0 < share <= 1:
            msg = f"the fraction of split {name!r} is {share!r}: expected more than 0 and at most 1"
            raise PlanError(msg)
    total = math.fsum(shares.values())
    if total > 1 + _ROUNDING:
        shown = ", ".join(f"{name}: {share}" for name, share in shares.items())
        msg = f"the fractions {shown} add up to {total:.6g}: at most 1 can be shared out"
        raise PlanError(msg)
    return shares


def _borders(edges: NDArray[np.int64], shares: list[float]) -> list[int]:
    """Number of the edge nearest to each split's end; every split has at least one cell."""
    n_cells = len(edges) - 1
    borders = [0]
    for number in range(len(shares)):
        wanted = edges[0] + math.fsum(shares[: number + 1]) * (edges[-1] - edges[0])
        nearest = int(np.abs(edges - wanted).argmin())
        most = n_cells - (len(shares) - 1 - number)
        borders.append(min(max(nearest, borders[-1] + 1), most))
    return borders


def _deal(cells: Ranges, shares: Mapping[str, float], seed: int) -> list[NamedRange]:
    """Whole cells by a keyed permutation; neighbours of one split are one range."""
    borders = _borders(np.arange(len(cells) + 1), list(shares.values()))
    owner = np.full(len(cells), -1)
    order = keyed_permutation(len(cells), seed, "split")
    for number, (first, last) in enumerate(pairwise(borders)):
        owner[order[first:last]] = number
    starts = np.flatnonzero(np.append(np.True_, owner[1:] != owner[:-1]))
    lasts = np.append(starts[1:], len(cells)) - 1
    names = list(shares)
    return [
        (names[number], start, stop)
        for number, start, stop in zip(
            owner[starts].tolist(), cells[starts, 0].tolist(), cells[lasts, 1].tolist(), strict=True
        )
        if number >= 0
    ]


def _sample_range(sample_range: tuple[int, int] | None, length: int) -> Ranges:
    if sample_range is None:
        return as_ranges([(0, length)])
    pairs = _pairs("sample_range", sample_range)
    if len(pairs) != 1:
        msg = f"sample_range is one (start, stop), not {sample_range!r}"
        raise PlanError(msg)
    start, stop = pairs[0]
    if not 0 <= start < stop <= length:
        msg = f"sample_range ({start}, {stop}) is empty or not within the {length} samples"
        raise PlanError(msg)
    return as_ranges(pairs)


def _named(mapping: object, wanted: str) -> dict[str, Any]:
    if not isinstance(mapping, Mapping) or not mapping:
        msg = f"{wanted}, not {mapping!r}"
        raise PlanError(msg)
    for name in mapping:
        if not isinstance(name, str) or not name:
            msg = f"the name of a split is a text, not {name!r}"
            raise PlanError(msg)
    return dict(mapping)


def _pairs(name: str, value: Any) -> list[tuple[int, int]]:
    """One range or several, as pairs of whole numbers."""
    try:
        items = list(value)
        nested = all(isinstance(item, Iterable) for item in items)
        pairs = [tuple(map(operator.index, item)) for item in (items if nested else [items])]
        return [(start, stop) for start, stop in pairs]
    except (TypeError, ValueError):
        msg = f"range {value!r} of {name!r}: expected (start, stop) in samples, or several of them"
        raise PlanError(msg) from None
