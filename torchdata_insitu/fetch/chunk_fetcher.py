"""Reads and decodes the chunks of one store."""

import atexit
import functools
import os
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence

from zarr.abc.store import Store

from torchdata_insitu.errors import ClosedError, GeometryError, ReadError
from torchdata_insitu.fetch.chunk_job import ChunkJob, Generation, RunningLoad
from torchdata_insitu.fetch.chunk_load import Cancelled, ChunkLoad
from torchdata_insitu.fetch.cpu_share import cores_per_rank
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.local_file_reader import LocalFileReader, local_root
from torchdata_insitu.fetch.missing_chunks import MissingChunkCheck
from torchdata_insitu.fetch.read_counts import ArrayCounts, ReadCounts
from torchdata_insitu.fetch.requests import RequestTable
from torchdata_insitu.fetch.stores import store_text
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.fetch.zarr_loop import call_on_zarr_loop
from torchdata_insitu.fetch.zarr_loop_reader import ZarrLoopReader
from torchdata_insitu.geometry.array_geometry import ArrayGeometry

__all__ = ["Cancelled", "ChunkFetcher"]

_EXIT_TIMEOUT_S = 5.0


class ChunkFetcher:
    """Owner of the reads and decode threads of one store.

    Making one starts nothing and reads nothing. `submit` may be called from any thread, also from
    `done`; the other methods by one thread at a time, and none with a lock held that `done` takes.

    Threads:
        Decode threads are daemons, started as loads need them. They end with `close`, with the
        collection of this object and with the interpreter. Local files are read on them, any other
        store on Zarr's event loop.
    """

    def __init__(
        self,
        store: Store,
        arrays: Sequence[ArrayGeometry],
        *,
        max_inflight: int = 32,
        decode_threads: int | None = None,
    ) -> None:
        """Prepare for the arrays.

        Args:
            store: Where the arrays are.
            arrays: Every array that will be asked for.
            max_inflight: Most reads under way at a time, where the store is read on Zarr's loop.
            decode_threads: Number of threads, at least 1. None for the cores that this process may
                use, divided by the number of ranks on this machine.
        """
        self._engine = _Engine(store, arrays, max_inflight, decode_threads)
        _LIVE.add(self._engine)
        weakref.finalize(self, self._engine.abandon).atexit = False

    @property
    def n_reads(self) -> Counter[str]:
        """Stored chunks that the store was asked for, by array."""
        return self._engine.counts.by_name("n_reads")

    @property
    def n_missing(self) -> Counter[str]:
        """Stored chunks that were not in the store and were filled, by array."""
        return self._engine.counts.by_name("n_missing")

    def counts_of(self, array: ArrayGeometry) -> ArrayCounts:
        """The counts of one array, whatever others have its name."""
        return self._engine.counts.of(array)

    @property
    def bytes_read(self) -> int:
        """Stored bytes that came."""
        return self._engine.counts.bytes_read

    @property
    def generation(self) -> Generation:
        """Stands for the time until the next `cancel` or `close`."""
        return self._engine.generation

    def submit(self, loads: Sequence[ChunkLoad], generation: Generation | None = None) -> None:
        """Read and decode chunks; returns at once and ends each with its `done`.

        Args:
            loads: The chunks.
            generation: The one they were decided in; where it is over, they end at once as
                cancelled and no thread is started. None for the present one.

        Raises:
            ClosedError: In a process forked from the one that made the fetcher; nothing is done.
            GeometryError: An array has no such chunk, or a slot is not one of its array; nothing is
                done.
        """
        self._engine.submit(loads, generation)

    def cancel(self) -> None:
        """End every load that is under way with `Cancelled`; later loads are not concerned.

        Loads that no thread is writing end before this returns, on the calling thread; the others
        as soon as their last writer left.
        """
        self._engine.cancel()

    def close(self) -> None:
        """Cancel, and wait for the decode threads; the reads of a store are not waited for.

        May be called repeatedly; a later `submit` starts anew.
        """
        self._engine.shut_down(join=True)

    def check_missing(self, array: ArrayGeometry) -> None:
        """Tell sparse data from a wrong path, after every stored chunk asked for was missing.

        Lists keys below the array until the first that could be a chunk.

        Raises:
            ReadError: Nothing is stored below the array, or the store cannot be listed and no other
                array of it had a chunk.
            GeometryError: Chunks are stored under keys of another shape than the metadata says.
        """
        self._engine.check_missing(array)

    def interrupt(self) -> None:
        """End a listing of `check_missing` that is under way with `Cancelled`."""
        self._engine.interrupt()

    def describe(self, array: ArrayGeometry) -> str:
        """One line: how the chunks of an array are read and decoded."""
        return self._engine.describe(array)


class _Engine:
    """What works for a fetcher without holding it."""

    def __init__(
        self,
        store: Store,
        arrays: Sequence[ArrayGeometry],
        max_inflight: int,
        decode_threads: int | None,
    ) -> None:
        self._store = store
        self._pid = os.getpid()
        n_threads = cores_per_rank() if decode_threads is None else max(1, decode_threads)
        self.counts = ReadCounts(arrays)
        buffers = ThreadBuffers()
        self._tables = {array: RequestTable(array) for array in arrays}
        self._decoders = {array: ChunkDecoder(array, buffers) for array in arrays}
        self._threads = DecodeThreads(n_threads, self._perform)
        root = local_root(store)
        self._reader: LocalFileReader | ZarrLoopReader = (
            ZarrLoopReader(store, self._threads, self.counts, max(1, max_inflight))
            if root is None
            else LocalFileReader(root, self._threads, buffers, self.counts)
        )
        self._missing = MissingChunkCheck(store, root)
        # Held while jobs enter queues and while they are taken out, never while they are ended.
        self._lock = threading.Lock()
        self._loads_lock = threading.Lock()
        self.generation = Generation()

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child, where no such thread runs and a lock may be held for ever."""
        return os.getpid() == self._pid

    def submit(self, loads: Sequence[ChunkLoad], generation: Generation | None) -> None:
        self._check_process()
        planned = []
        for load in loads:
            table = self._table(load.array)
            _check_slot(load)
            planned.append((load, table.requests(load.sample_run, load.field_tile)))
        jobs: list[ChunkJob] = []
        try:
            with self._lock:
                own = self.generation if generation is None else generation
                is_late = own.cancelled
                for load, requests in planned:
                    running = RunningLoad(load, len(requests), own, self._loads_lock)
                    decoder = self._decoders[load.array]
                    jobs.extend(ChunkJob(running, request, decoder) for request in requests)
                if jobs and not is_late:
                    self._reader.submit(jobs)
            if is_late:
                _end(jobs)
        except RuntimeError as cause:
            # No thread could be started, or Zarr's loop is closed: the process is on its way out.
            error = ReadError(f"nothing reads from {store_text(self._store)} any more: {cause}")
            _end(jobs, error)

    def cancel(self) -> None:
        if self.is_of_this_process:
            with self._lock:
                jobs = self._take_all()
            _end(jobs)

    def shut_down(self, *, join: bool, timeout_s: float | None = None) -> None:
        if not self.is_of_this_process:
            return
        with self._lock:
            jobs = self._take_all()
            threads = self._threads.dismiss()
        self._missing.interrupt()
        _end(jobs)
        if join:
            end = None if timeout_s is None else time.monotonic() + timeout_s
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def abandon(self) -> None:
        """Shut down for a finalizer, which may take no lock."""
        if self.is_of_this_process:
            call_on_zarr_loop(functools.partial(self.shut_down, join=False))

    def interrupt(self) -> None:
        if self.is_of_this_process:
            self._missing.interrupt()

    def settle(self, timeout_s: float) -> None:
        if self.is_of_this_process and isinstance(self._reader, ZarrLoopReader):
            self._reader.settle(timeout_s)

    def check_missing(self, array: ArrayGeometry) -> None:
        self._check_process()
        first_key = self._table(array).requests(0)[0].key
        others = [
            other.name
            for other in self._tables
            if other is not array and self.counts.of(other).n_found
        ]
        self._missing.check(array, first_key, other_hit=others[0] if others else None)

    def describe(self, array: ArrayGeometry) -> str:
        how = "local files" if isinstance(self._reader, LocalFileReader) else "Zarr's event loop"
        return f"{how}; {self._decoders[array].path}"

    def _table(self, array: ArrayGeometry) -> RequestTable:
        table = self._tables.get(array)
        if table is None:
            names = [known.name for known in self._tables]
            msg = f"array {array.name!r} is none of those this fetcher was made for: {names}"
            raise GeometryError(msg)
        return table

    def _take_all(self) -> list[ChunkJob]:
        self.generation.cancelled = True
        self.generation = Generation()
        # The reader first: what it hands over meanwhile is then taken from the queue.
        return self._reader.take_waiting() + self._threads.take()

    def _perform(self, job: ChunkJob) -> None:
        if job.running.is_over:
            job.running.end_request(None)
            return
        try:
            self._reader.land(job)
        except BaseException as error:  # noqa: BLE001
            _forget_frames(error)
            job.running.end_request(error)
        else:
            job.running.end_request(None)

    def _check_process(self) -> None:
        if not self.is_of_this_process:
            msg = (
                f"the reads from {store_text(self._store)} belong to process {self._pid} and "
                f"this is process {os.getpid()}, forked from it: threads and event loops do not "
                "survive a fork; start processes with the 'spawn' method"
            )
            raise ClosedError(msg)


def _check_slot(load: ChunkLoad) -> None:
    # Codecs write bytes: a slot of another dtype would hold numbers, but others.
    array, out = load.array, load.out
    if out.shape != array.chunk_shape or out.dtype != array.dtype or not out.flags.c_contiguous:
        msg = (
            f"a slot of array {array.name!r} has shape {array.chunk_shape} and dtype {array.dtype} "
            f"in C order, not {out.shape} and {out.dtype}"
        )
        raise GeometryError(msg)


def _forget_frames(error: BaseException) -> None:
    # Whoever keeps the error would keep the slot alive through the variables of its traceback.
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        current = current.__cause__


def _end(jobs: Iterable[ChunkJob], error: BaseException | None = None) -> None:
    for job in jobs:
        job.running.end_request(error)


_LIVE: weakref.WeakSet[_Engine] = weakref.WeakSet()


@atexit.register
def _shut_down_all() -> None:
    # Registered after Zarr's own hook and therefore run before it: the loop still takes the
    # cancellations, and no task is destroyed while it is pending.
    for engine in list(_LIVE):
        engine.shut_down(join=True, timeout_s=_EXIT_TIMEOUT_S)
        engine.settle(_EXIT_TIMEOUT_S)
