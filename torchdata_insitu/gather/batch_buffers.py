"""Batch memory that is used again once nothing outside refers to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import numpy as np

from torchdata_insitu.page_memory import page_aligned

__all__ = ["BatchBuffers"]

REUSE_VARIABLE = "TORCHDATA_INSITU_BUFFER_REUSE"

# A consumer that holds more batches than this keeps them, and they are its own.
_MOST_KEPT = 64
# Free arrays beyond these are given back to the system at once: what was held once is not for ever.
_MOST_FREE = 16
# And those that none of so many batches needed: a consumer that holds some batches and then drops
# them all, again and again, finds their memory in between.
_BATCHES_WATCHED = 64


class BatchBuffers:
    """Arrays for batches, each recycled by its reference count.

    A tensor made of an array, and every view, slice or NumPy alias of that tensor, keeps a
    reference to the array; a raw `data_ptr()` does not, so whoever keeps one turns reuse off with
    `TORCHDATA_INSITU_BUFFER_REUSE=0`.

    Attributes:
        n_made: arrays that were made because none was free.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Take the shape and data type of each array of a batch."""
        self._kept = {name: _Kept(*of_one) for name, of_one in shapes.items()}

    @property
    def n_made(self) -> int:
        """Arrays that were made because none was free."""
        return sum(kept.n_made for kept in self._kept.values())

    def take(self) -> dict[str, np.ndarray]:
        """Arrays that nothing else refers to; their contents are undefined."""
        if os.environ.get(REUSE_VARIABLE, "1") == "0":
            return {name: kept.make() for name, kept in self._kept.items()}
        return {name: kept.take() for name, kept in self._kept.items()}


class _Kept:
    """The arrays of one name."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._shape = shape
        self._dtype = dtype
        self._arrays: list[np.ndarray] = []
        self._n_watched = 0
        self._n_needed = 0
        self.n_made = 0

    def take(self) -> np.ndarray:
        # A count that is read while another thread drops its reference errs on the safe side, and
        # an array that only the list refers to is nobody's who could take a new reference.
        arrays = self._arrays
        place, n_kept = 0, len(arrays)
        while place < n_kept and _n_references(arrays, place) > _ALONE:
            place += 1
        taken = arrays[place] if place < n_kept else self._new()
        # The first that is free is taken, so that those at the end are there for nobody.
        self._n_needed = max(self._n_needed, place + 1)
        self._n_watched += 1
        if n_kept > _MOST_FREE:
            self._give_back(place + 1, _MOST_FREE)
        if self._n_watched == _BATCHES_WATCHED:
            self._give_back(self._n_needed, 0)
            self._n_watched = self._n_needed = 0
        return taken

    def _new(self) -> np.ndarray:
        made = self.make()
        if len(self._arrays) < _MOST_KEPT:
            self._arrays.append(made)
        return made

    def _give_back(self, first: int, most: int) -> None:
        """Keep at most so many free arrays of those from a place on, and no more."""
        arrays = self._arrays
        free = [n for n in range(first, len(arrays)) if _n_references(arrays, n) <= _ALONE]
        for place in reversed(free[most:]):
            del arrays[place]

    def make(self) -> np.ndarray:
        self.n_made += 1
        return page_aligned(self._shape, self._dtype)


def _n_references(arrays: list[np.ndarray], place: int) -> int:
    return sys.getrefcount(arrays[place])


# What is counted if only the list refers to an array: its reference and those of the call.
_ALONE = _n_references([np.empty(0)], 0)
