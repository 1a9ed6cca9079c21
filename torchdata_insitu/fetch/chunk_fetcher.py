"""Reads and decodes the chunks of one store."""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from zarr.abc.store import Store

from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.chunk_job import Generation
from torchdata_insitu.fetch.chunk_load import Cancelled, ChunkLoad
from torchdata_insitu.fetch.engine_exit import note_engine
from torchdata_insitu.fetch.fetch_engine import FetchEngine
from torchdata_insitu.fetch.read_counts import ArrayCounts
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.geometry.array_geometry import ArrayGeometry

__all__ = ["Cancelled", "ChunkFetcher"]

ON_MISSING = ("auto", "fill", "raise")


class ChunkFetcher:
    """Owner of the reads and decode threads of one store.

    Making one starts nothing and reads nothing. `submit` may be called from any thread, also from
    `done`; the other methods by one thread at a time, and none with a lock held that `done` takes.

    Threads:
        Decode threads are daemons, started as loads need them. They end with `close`, with the
        collection of this object and with the interpreter, and so do reader threads, except that
        one inside a read that blocks leaves when that ends. Local files that answer fast are read
        on decode threads, others and the stores of obstore on reader threads, and any other store
        on Zarr's event loop.
    """

    def __init__(
        self,
        store: Store,
        arrays: Sequence[ArrayGeometry],
        *,
        max_inflight: int = 32,
        decode_threads: int | None = None,
        retry: RetryPolicy | None = None,
        on_missing: str = "auto",
    ) -> None:
        """Prepare for the arrays.

        Args:
            store: Where the arrays are.
            arrays: Every array that will be asked for.
            max_inflight: Most reads of the store under way at a time, whoever asks for them.
            decode_threads: Number of threads, at least 1. None for the cores that this process may
                use, divided by the number of ranks on this machine.
            retry: Which failed reads are tried again; None for `RetryPolicy()`.
            on_missing: `"auto"` fills what is missing and lets `check_missing` decide whether it is
                sparse data; `"fill"` fills and lets `check_missing` pass; `"raise"` ends the load
                of a missing chunk with a `ReadError`.

        Raises:
            PlanError: An unknown `on_missing`, `"raise"` for an array whose missing chunks only
                Zarr sees, or `retry` is no policy.
        """
        if on_missing not in ON_MISSING:
            raise PlanError(f"on_missing is {on_missing!r}: choose one of {', '.join(ON_MISSING)}")
        if retry is not None and not isinstance(retry, RetryPolicy):
            msg = (
                f"retry is {retry!r} of type {type(retry).__name__}: give a RetryPolicy, such as "
                "RetryPolicy(attempts=3), or None"
            )
            raise PlanError(msg)
        self._engine = FetchEngine(
            store,
            arrays,
            max_inflight,
            decode_threads,
            retry=RetryPolicy() if retry is None else retry,
            on_missing=on_missing,
        )
        note_engine(self._engine)
        weakref.finalize(self, self._engine.abandon).atexit = False

    @property
    def n_reads(self) -> Counter[str]:
        """Stored chunks that the store was asked for, by array; one read again counts once."""
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

    def start(self, name: str, is_live: Callable[[], bool]) -> None:
        """Begin a pass, which ends with `cancel`, `close` or when it says so.

        Args:
            name: What messages call the pass.
            is_live: Whether the pass goes on. Must not hold this object.

        Raises:
            PlanError: Another live pass reads the store with another `max_inflight`.
            ClosedError: In a process forked from the one that made the fetcher.
        """
        self._engine.start(name, is_live)

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

        Loads that no thread is writing end before this returns; the others as soon as their last
        writer left. An interrupt of the main thread ends the wait for them, and no load is lost.
        """
        self._engine.cancel()

    def close(self, *, timeout_s: float | None = None) -> None:
        """Cancel, and wait for the threads; for reads that block no longer than a moment.

        May be called repeatedly; a later `submit` starts anew.

        Args:
            timeout_s: Most seconds to wait for a thread that decodes or reads a local file, which
                nothing can cancel. None for as long as it takes.
        """
        self._engine.shut_down(join=True, timeout_s=timeout_s)

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
