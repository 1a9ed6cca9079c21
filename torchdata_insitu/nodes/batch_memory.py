"""The memory that a batch is gathered into, as arrays to write and as tensors to hand out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from torchdata_insitu.geometry.torch_dtypes import torch_dtype

__all__ = ["BatchMemory", "page_locked"]


class BatchMemory:
    """Some batches while they are made.

    Attributes:
        arrays: what the rows are copied into, by name, as large as that many full batches.
    """

    def __init__(
        self, arrays: dict[str, np.ndarray], tensors: dict[str, Tensor] | None = None
    ) -> None:
        """Take arrays, and the tensors whose memory they are if they came from torch."""
        self.arrays = arrays
        self._tensors = tensors

    def batch(self, start: int, stop: int) -> dict[str, Tensor]:
        """The rows `start` to `stop`."""
        if self._tensors is None:
            return {
                name: torch.from_numpy(array[start:stop]) for name, array in self.arrays.items()
            }
        # Not from the arrays: torch's allocator finds the streams it waits for by its own tensors.
        return {
            name: tensor if len(tensor) == stop - start else tensor[start:stop]
            for name, tensor in self._tensors.items()
        }


def page_locked(shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> BatchMemory:
    """Page-locked memory for a batch.

    It is recycled by torch alone, whose allocator waits for the streams that still copy out of it.

    Args:
        shapes: shape and data type of each array.
    """
    tensors = {
        name: torch.empty(shape, dtype=torch_dtype(dtype), pin_memory=True)
        for name, (shape, dtype) in shapes.items()
    }
    return BatchMemory({name: tensor.numpy() for name, tensor in tensors.items()}, tensors)
