"""Epochs that are profiled: of one loader, again and again."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import obstore.store
from zarr.abc.store import Store
from zarr.storage import ObjectStore

import torchdata_insitu as tdi
from benchmarks.layouts import LAYOUTS
from benchmarks.stages.patches import Patches
from torchdata_insitu.testing import CountingStore

BATCH_SIZE = 32
BLOCK_CHUNKS = 16
STORES = ("local", "fused", "obstore", "loop")
"""Ways to read local files: as such; on the decode threads, however long they wait for a read; as
objects of obstore; and on Zarr's loop."""


@dataclass(frozen=True)
class Case:
    """What is profiled."""

    layout: str
    """One of `LAYOUTS`."""
    path: Path
    """Its store."""
    store: str
    """One of `STORES`."""
    is_warm: bool
    """Whether everything is resident, so that nothing is read."""

    def __str__(self) -> str:
        return f"{self.layout} through {self.store}, {'warm' if self.is_warm else 'cold'}"


class Epochs:
    """A loader over a layout, whose epochs find nothing resident, or everything.

    Attributes:
        seconds: Of each epoch but the first, which warms up.
    """

    def __init__(self, case: Case, patches: Patches | None = None) -> None:
        """Build the loader, with functions wrapped, and run an epoch that touches the memory."""
        self._case = case
        self._patches = patches
        with self._wrapped(), _read_through(case.path, case.store) as opened:
            arrays = tdi.open_arrays(opened, ["a", "b"])
            offsets = LAYOUTS[case.layout].offsets
            n_bytes = sum(array.chunk_bytes * array.n_chunks for array in arrays.values())
            self.loader = tdi.build_loader(
                opened,
                {n: a if offsets == (0,) else a.window(*offsets) for n, a in arrays.items()},
                batch_size=BATCH_SIZE,
                block_chunks=BLOCK_CHUNKS,
                budget_bytes=2 * n_bytes if case.is_warm else "auto",
                seed=1,
            )
        self.run()
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def _wrapped(self) -> Iterator[None]:
        with self._patches.installed() if self._patches else contextlib.nullcontext():
            yield

    def run(self) -> float:
        """Seconds of an epoch with a consumer that drops what it gets."""
        if not self._case.is_warm:
            self.loader.chain.pool_node.pool.clear()
        with self._wrapped():
            began = time.perf_counter()
            for batch in self.loader:
                del batch
            return time.perf_counter() - began

    def repeat(self, measured: contextlib.AbstractContextManager[None] | None = None) -> None:
        """One more epoch."""
        with measured or contextlib.nullcontext():
            self.seconds.append(self.run())

    @property
    def n_batches(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    @property
    def n_reads(self) -> int:
        """Stored chunks of an epoch."""
        return self.loader.expected_reads

    @property
    def path(self) -> str:
        """How the first array is read and decoded: slow files get threads of their own."""
        chain = self.loader.chain
        return chain.fetcher.describe(chain.planner.arrays[0])

    @property
    def n_bytes(self) -> int:
        """Decoded bytes of an epoch."""
        return sum(a.sample_bytes * a.n_samples for a in self.loader.chain.planner.arrays)

    @property
    def n_buffers_made(self) -> int:
        """Batch buffers that were made so far, for none was free."""
        buffers = self.loader.chain.gather._buffers  # noqa: SLF001 - nothing public counts them
        return 0 if buffers is None else buffers.n_made

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the loader."""
        self.loader.close()


@contextlib.contextmanager
def _read_through(path: Path, store: str) -> Iterator[Store]:
    """The store to build a loader over, meanwhile."""
    held = Patches()
    if store == "fused":
        held.add("fetch.local_file_reader:ReadWaits", lambda _: _NeverSlow)
    if store == "obstore":
        # Of obstore's local store the library reads the files itself, as long as it knows the root.
        held.add("fetch.fetch_engine:local_root", lambda _: lambda _: None)
        opened: Store = ObjectStore(obstore.store.LocalStore(path.resolve()), read_only=True)
    else:
        opened = tdi.open_store(path)
    with held.installed():
        yield CountingStore(opened) if store == "loop" else opened


class _NeverSlow:
    """Stands for `ReadWaits`: a busy machine makes it take files for slow that are not."""

    is_slow = False

    def begin(self) -> None:
        """Nothing is measured."""

    def end(self, began: None, n_bytes: int) -> None:
        """Nothing is measured."""
