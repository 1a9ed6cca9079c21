"""Batch memory that is used again once nothing outside refers to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import numpy as np

__all__ = ["BatchBuffers"]

REUSE_VARIABLE = "TORCHDATA_INSITU_BUFFER_REUSE"


# A consumer that holds more batches than this keeps them, and they are its own.
_MOST_KEPT = 64
# Free arrays beyond these are given back to the system: what was in flight once is not for ever.
_MOST_FREE = 4


class BatchBuffers:
    """Arrays for batches, each recycled by its reference count.

    A tensor made of an array, and every view, slice or NumPy alias of that tensor, keeps a
    reference to the array; a raw `data_ptr()` does not, so whoever keeps one turns reuse off with
    `TORCHDATA_INSITU_BUFFER_REUSE=0`.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Take the shape and data type of each array of a batch."""
        self._shapes = dict(shapes)
        self._kept: dict[str, list[np.ndarray]] = {name: [] for name in self._shapes}
        self.n_made = 0

    def take(self) -> dict[str, np.ndarray]:
        """Arrays that nothing else refers to; their contents are undefined."""
        if os.environ.get(REUSE_VARIABLE, "1") == "0":
            return {name: self._make(name) for name in self._shapes}
        return {name: self._free(name) for name in self._shapes}

    def _free(self, name: str) -> np.ndarray:
        kept = self._kept[name]
        # Two references are ours: the list's and the argument of `getrefcount`.
        free = [n for n in range(len(kept)) if sys.getrefcount(kept[n]) <= 2]  # noqa: PLR2004
        for place in reversed(free[_MOST_FREE:]):
            del kept[place]
        if free:
            return kept[free[0]]
        made = self._make(name)
        if len(kept) < _MOST_KEPT:
            kept.append(made)
        return made

    def _make(self, name: str) -> np.ndarray:
        self.n_made += 1
        return np.empty(*self._shapes[name])
