"""Batch memory that is used again once nothing outside refers to it."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping

import numpy as np

__all__ = ["BatchBuffers"]

REUSE_VARIABLE = "TORCHDATA_INSITU_BUFFER_REUSE"


# More batches than this at once are held by a consumer that keeps them, and those are its own.
_MOST_KEPT = 8


class BatchBuffers:
    """Arrays for batches, each recycled by its reference count.

    A tensor made of an array, and every view, slice or NumPy alias of that tensor, keeps a
    reference to the array; a raw `data_ptr()` does not, so whoever keeps one turns reuse off with
    `TORCHDATA_INSITU_BUFFER_REUSE=0`.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Take the shape and data type of each array of a batch."""
        self._shapes = dict(shapes)
        self._kept: dict[str, deque[np.ndarray]] = {name: deque() for name in self._shapes}
        self.n_made = 0

    def take(self) -> dict[str, np.ndarray]:
        """Arrays that nothing else refers to; their contents are undefined."""
        if os.environ.get(REUSE_VARIABLE, "1") == "0":
            return {name: self._make(name) for name in self._shapes}
        return {name: self._free(name) for name in self._shapes}

    def _free(self, name: str) -> np.ndarray:
        kept = self._kept[name]
        for place in range(len(kept)):
            # Two references are ours: the deque's and the argument of `getrefcount`.
            if sys.getrefcount(kept[place]) <= 2:  # noqa: PLR2004
                return kept[place]
        made = self._make(name)
        kept.append(made)
        if len(kept) > _MOST_KEPT:
            kept.popleft()
        return made

    def _make(self, name: str) -> np.ndarray:
        self.n_made += 1
        return np.empty(*self._shapes[name])
