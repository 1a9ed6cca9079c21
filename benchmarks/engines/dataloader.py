"""PyTorch's `DataLoader` over a data set that reads one sample at a time with zarr-python."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader, Dataset

from benchmarks.engines.engine import Engine, See, Task, see_tensors


class Samples(Dataset[dict[str, Any]]):
    """A map from a number to a sample, opened anew in each process."""

    def __init__(self, path: Path, anchors: range, offsets: tuple[int, ...]) -> None:
        self._path = path
        self._anchors = anchors
        self._offsets = offsets
        self._arrays: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self._anchors)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if self._arrays is None:
            self._arrays = dict(zarr.open_group(self._path, mode="r").arrays())
        anchor = self._anchors[number]
        sample: dict[str, Any] = {"sample_index": anchor}
        for name, array in self._arrays.items():
            rows = [array[anchor + offset] for offset in self._offsets]
            sample[name] = rows[0] if len(rows) == 1 else np.stack(rows)
        return sample


class _DataLoader(Engine):
    """Shuffled, with everything else as it is without an argument.

    Workers are forked, which lets them start fastest; the data set opens the store in them only.
    """

    is_steady: ClassVar[bool] = True
    n_workers: ClassVar[int]

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        generator = torch.Generator()
        generator.manual_seed(task.seed)
        self._loader = DataLoader(
            Samples(task.path, task.anchors(), task.offsets),
            batch_size=task.batch_size,
            shuffle=True,
            generator=generator,
            num_workers=self.n_workers,
            multiprocessing_context="fork" if self.n_workers else None,
        )

    def epoch(self, see: See | None = None) -> Iterator[int]:
        """See `Engine.epoch`."""
        for batch in self._loader:
            if see is not None:
                see_tensors(see, batch, self.task.offsets)
            yield len(batch["sample_index"])

    def close(self) -> None:
        """Workers end with the iteration that has them."""


class DataLoaderAlone(_DataLoader):
    """In the process itself."""

    n_workers: ClassVar[int] = 0


class DataLoaderOfTwo(_DataLoader):
    """With two workers."""

    n_workers: ClassVar[int] = 2
