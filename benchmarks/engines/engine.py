"""What the timing and the oracle ask of everything that is compared."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.oracle import Piece

BATCH_SIZE = 32
BLOCK_CHUNKS = 16

type See = Callable[[Piece], None]


@dataclass(frozen=True)
class Task:
    """What an epoch is over."""

    path: Path
    """The store."""
    offsets: tuple[int, ...] = (0,)
    """What a draw reads of each array, from its anchor."""
    batch_size: int = BATCH_SIZE
    """Draws in a batch."""
    block_chunks: int = BLOCK_CHUNKS
    """Chunks whose draws are shuffled among themselves."""
    seed: int = 1
    """Of the shuffle."""

    def anchors(self) -> range:
        """The samples that can be drawn at, with every offset inside the arrays."""
        (_, array), *_ = zarr.open_group(self.path, mode="r").arrays()
        return range(max(0, -min(self.offsets)), array.shape[0] - max(0, *self.offsets))

    def delivered_bytes(self) -> int:
        """Bytes of values that the batches of an epoch hold."""
        n_draws = len(self.anchors())
        arrays = [array for _, array in zarr.open_group(self.path, mode="r").arrays()]
        sample_bytes = sum(array.nbytes // array.shape[0] for array in arrays)
        return n_draws * len(self.offsets) * sample_bytes


class UnsupportedError(Exception):
    """An engine has no way to do a task; the table shows a dash."""


class Engine(ABC):
    """One way to deliver an epoch; making it is the set-up on a store.

    Args:
        task: What is read.

    Raises:
        UnsupportedError: It cannot do the task.
    """

    is_steady: ClassVar[bool] = False
    """Whether all batches cost the same, so that an epoch can be judged by a part of it."""
    has_batches: ClassVar[bool] = True
    """Whether it makes batches, so that there is a first one to wait for."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def epoch(self, see: See | None = None) -> Iterator[int]:
        """Deliver everything once.

        Args:
            see: Called with everything delivered; None while it is timed.

        Yields:
            How many draws have come: those of a batch, or all where there are no batches.
        """

    def expected(self) -> tuple[range, Sequence[int]]:
        """Anchors and offsets of which an epoch holds each combination once."""
        return self.task.anchors(), self.task.offsets

    @property
    def reads(self) -> int | None:
        """Reads of the last epoch; None where nobody counts."""
        return None

    @property
    def bytes_read(self) -> int | None:
        """Encoded bytes of the last epoch; None where nobody counts."""
        return None

    def forget(self) -> bool:
        """Let the next epoch find nothing resident; False where that cannot be asked for."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End whatever runs."""


def see_batch(
    see: See,
    batch: Mapping[str, NDArray[Any]],
    anchors: NDArray[np.int64],
    offsets: Sequence[int],
) -> None:
    """Show a batch to the oracle.

    Args:
        see: The oracle.
        batch: By array, shape (n, *field), or (n, offsets, *field) where there are several.
        anchors: Shape (n,).
        offsets: In the order of the second axis.
    """
    for name, values in batch.items():
        for position, offset in enumerate(offsets):
            rows = values if len(offsets) == 1 else values[:, position]
            field = tuple(slice(0, length) for length in rows.shape[1:])
            see(Piece(name, anchors, offset, field, rows))


def see_tensors(see: See, batch: Mapping[str, Tensor], offsets: Sequence[int]) -> None:
    """Show a batch of tensors, whose anchors are its `sample_index`, to the oracle."""
    values = {name: tensor.numpy() for name, tensor in batch.items()}
    anchors = values.pop("sample_index")
    see_batch(see, values, anchors, offsets)
