"""This library, with the defaults that people get."""

from collections.abc import Iterator, Mapping

import obstore.store
from zarr.abc.store import Store
from zarr.storage import ObjectStore

import torchdata_insitu as tdi
from benchmarks.engines.engine import Engine, See, Task, see_tensors


class Ours(Engine):
    """A cold epoch from local files."""

    def __init__(self, task: Task, *, budget_bytes: int | str = "auto") -> None:
        super().__init__(task)
        store, arrays = self.opened()
        views = {
            name: array if task.offsets == (0,) else array.window(*task.offsets)
            for name, array in arrays.items()
        }
        self.loader = tdi.build_loader(
            store,
            views,
            batch_size=task.batch_size,
            block_chunks=task.block_chunks,
            budget_bytes=budget_bytes,
            seed=task.seed,
        )
        self._reads_before = self._bytes_before = 0

    def opened(self) -> tuple[Store, Mapping[str, tdi.ArrayGeometry]]:
        """The store and its arrays, by the name they have in a batch."""
        store = tdi.open_store(self.task.path)
        return store, tdi.open_arrays(store)

    def epoch(self, see: See | None = None) -> Iterator[int]:
        """See `Engine.epoch`."""
        self._reads_before, self._bytes_before = self._read_so_far()
        for batch in self.loader:
            if see is not None:
                see_tensors(see, batch, self.task.offsets)
            yield len(batch["sample_index"])

    @property
    def reads(self) -> int:
        """Stored chunks that were read in the last epoch."""
        return self._read_so_far()[0] - self._reads_before

    @property
    def bytes_read(self) -> int:
        """Encoded bytes of the last epoch."""
        return self._read_so_far()[1] - self._bytes_before

    def forget(self) -> bool:
        """Empty the pool; its memory stays."""
        self.loader.chain.pool_node.pool.clear()
        return True

    def close(self) -> None:
        """End the loader."""
        self.loader.close()

    def _read_so_far(self) -> tuple[int, int]:
        stats = self.loader.stats()
        return sum(stats.reads.values()), stats.bytes_read


class OursThroughObstore(Ours):
    """The same files through obstore, as an object store is read.

    An obstore store with a folder for its prefix is read as the local files that it is. Only one
    that stands at the root of the file system, so that the folder is in the keys, goes through
    obstore.

    Raises:
        RuntimeError: The files are read past obstore.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        if "obstore" not in (path := tdi.describe(self.loader)):
            raise RuntimeError(f"the store is not read through obstore:\n{path}")

    def opened(self) -> tuple[Store, Mapping[str, tdi.ArrayGeometry]]:
        """The store of the whole machine and the arrays of the task."""
        store = ObjectStore(obstore.store.LocalStore(), read_only=True)
        root = self.task.path.resolve().as_posix().lstrip("/")
        names = list(tdi.open_arrays(self.task.path))
        arrays = tdi.open_arrays(store, [f"{root}/{name}" for name in names])
        return store, dict(zip(names, arrays.values(), strict=True))


class OursWarm(Ours):
    """A second epoch with everything resident, so that nothing is read or decoded."""

    def __init__(self, task: Task) -> None:
        arrays = tdi.open_arrays(task.path).values()
        # Twice, because chunks at the edge have rows and fields beyond the arrays.
        everything = 2 * sum(array.sample_bytes * array.n_samples for array in arrays)
        super().__init__(task, budget_bytes=everything)
        for _ in super().epoch():
            pass

    def epoch(self, see: See | None = None) -> Iterator[int]:
        """See `Engine.epoch`.

        Raises:
            RuntimeError: Something was read.
        """
        yield from super().epoch(see)
        if self.reads:
            raise RuntimeError(f"{self.reads} stored chunks were read in a warm epoch")

    def forget(self) -> bool:
        """Never: what is resident is the point."""
        return False
