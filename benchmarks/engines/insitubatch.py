"""insitubatch 0.2, as its README reads a split into tensors.

Its own advice is to start with the defaults (`max_inflight` 32, `prefetch_depth` 2), obstore for
local files, and no wrapping in worker processes. Batches become tensors with `to_torch`, without
the `DataLoader` around them that only costs time where nobody asks for one.
"""

from collections.abc import Iterator

import insitubatch

from benchmarks.engines.engine import Engine, See, Task, see_batch


class InSituBatch(Engine):
    """A cold epoch from local files."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        store = insitubatch.obstore_store(task.path.resolve().as_uri())
        geometries = insitubatch.open_geometries(store)
        manifest = insitubatch.split_by_chunk(
            next(iter(geometries.values())), fractions=(1.0, 0.0, 0.0)
        )
        self._names = list(geometries)
        views = {
            _label(name, offset): geometry if offset == 0 else geometry.shift(offset)
            for name, geometry in geometries.items()
            for offset in task.offsets
        }
        self._dataset = insitubatch.InSituDataset(
            store,
            manifest,
            geometries=views,
            batch_size=task.batch_size,
            block_chunks=task.block_chunks,
            seed=task.seed,
        )

    def epoch(self, see: See | None = None) -> Iterator[int]:
        """See `Engine.epoch`."""
        for batch in self._dataset.train:
            tensors = insitubatch.to_torch(batch)
            if see is not None:
                for name in self._names:
                    for offset in self.task.offsets:
                        values = tensors[_label(name, offset)].numpy()
                        see_batch(see, {name: values}, batch.sample_indices, (offset,))
            yield len(batch)

    @property
    def reads(self) -> int:
        """Chunks that were read in the last epoch."""
        return int(self._dataset.cache_misses)

    def close(self) -> None:
        """End the data set."""
        self._dataset.close()


def _label(name: str, offset: int) -> str:
    return f"{name}+{offset}"
