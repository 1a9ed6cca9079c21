"""Batch memory that is used again once nothing outside refers to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import numpy as np

__all__ = ["BatchBuffers"]

REUSE_VARIABLE = "TORCHDATA_INSITU_BUFFER_REUSE"


class BatchBuffers:
    """Sets of arrays for one batch each, recycled by reference count.

    A tensor made of an array, and every view, slice or NumPy alias of that tensor, keeps a
    reference to the array; a raw ``data_ptr()`` does not, so whoever keeps one turns reuse off with
    ``TORCHDATA_INSITU_BUFFER_REUSE=0``.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Take the shape and data type of each array of a batch."""
        self._shapes = dict(shapes)
        self._sets: list[dict[str, np.ndarray]] = []
        self.n_made = 0

    def take(self) -> dict[str, np.ndarray]:
        """A set that nothing else refers to; its contents are undefined."""
        if os.environ.get(REUSE_VARIABLE, "1") == "0":
            return self._make()
        for arrays in self._sets:
            if all(_is_free(arrays, name) for name in arrays):
                return arrays
        made = self._make()
        self._sets.append(made)
        return made

    def _make(self) -> dict[str, np.ndarray]:
        self.n_made += 1
        return {name: np.empty(shape, dtype) for name, (shape, dtype) in self._shapes.items()}


def _is_free(arrays: dict[str, np.ndarray], name: str) -> bool:
    # Two references are ours: the dictionary's and the argument of ``getrefcount``.
    return sys.getrefcount(arrays[name]) <= 2  # noqa: PLR2004
