"""Asks for the chunks of segments ahead of the consumer, as far as the pool's budget reaches."""

from __future__ import annotations

import bisect
import dataclasses
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torchdata.nodes import BaseNode

from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.fetch.chunk_fetcher import Cancelled, ChunkFetcher
from torchdata_insitu.fetch.chunk_load import ChunkLoad
from torchdata_insitu.fetch.descriptor_limit import within_descriptors
from torchdata_insitu.fetch.read_counts import ArrayCounts
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.store_like import Store
from torchdata_insitu.fetch.stores import close_own_store
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.nodes.chunk_sources import (
    check_pool,
    check_stores,
    chunk_source,
    slot_shape,
    store_of,
)
from torchdata_insitu.nodes.collection import is_exiting, when_collected
from torchdata_insitu.nodes.cursor_node import SourcedNode
from torchdata_insitu.nodes.pass_ends import chunk_load, end_pass, liveness
from torchdata_insitu.nodes.segment_node import FetchedSegment
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.segments import Segment
from torchdata_insitu.planning.whole_number import whole_number
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.pool.chunk_source import ChunkSource
from torchdata_insitu.pool.pool_pass import PoolPass, SlotFill

__all__ = ["AsyncChunkFetcher"]

# With one segment queued behind the one that is waited for, a slot that falls free is taken at
# once, before the consumer comes back.
_MIN_SEGMENTS_AHEAD = 2
# Chunks that are waited for, as a multiple of the requests that can be under way at once.
_READS_AHEAD = 2
_EXIT_TIMEOUT_S = 2.0


class AsyncChunkFetcher(SourcedNode[FetchedSegment]):
    """Reads and decodes the chunks of the coming segments, each once.

    Segments are asked for in plan order until a chunk has to wait for a slot: read-ahead is what
    the budget allows, and a consumer that stops stops the reading.

    Args:
        source: a `ChunkPlanner`, or `SegmentNode` over one.
        store: the Zarr store, or one for each label that `open_arrays(..., store=label)` gave.
        pool: where chunks are kept.
        max_inflight: requests under way at once, for each store and over all passes of the
            process that read it. Passes that are live at the same time need equal values.
        decode_threads: threads that decode; None for one per usable core.
        name: what messages call this pass.
        retry: which failed reads are tried again; None for `RetryPolicy()`.
        on_missing: what a stored chunk means that is not in the store. `"auto"`: the fill value,
            unless no chunk of the array is there at all; `"fill"`: the fill value, in any case;
            `"raise"`: an error, and arrays are refused whose shards Zarr decodes as a whole, for
            it fills what is missing inside. What is filled otherwise is counted in
            `n_missing`.

    State:
        The cursor of the next segment it hands out, not of the last one it asked for.

    Threads:
        Decode and reader threads, started at the first `next` and ended by `shutdown` or
        collection. A reader thread inside a read that blocks leaves when that ends, and is waited
        for no longer than a moment.

    Raises:
        PlanError: an array's store is not among those given, one store is given for arrays of
            several, an unknown `on_missing`, `on_missing="raise"` for an array whose missing chunks
            only Zarr sees, or an argument of the wrong kind; at the first `next`, if another live
            pass reads the store with another `max_inflight`.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
        >>> views = {"x": tdi.open_arrays(store)["t2m"]}
        >>> planner = tdi.ChunkPlanner(views, batch_size=4, shuffle=False, block_chunks=1)
        >>> node = tdi.AsyncChunkFetcher(planner, store, tdi.ChunkPool("10%"))
        >>> item = next(node)
        >>> item.admission.wait()
        >>> len(item.segment.draws), node.n_reads["t2m"] >= 1
        (4, True)
        >>> node.shutdown()
    """

    _RUNTIME: ClassVar[dict[str, Any]] = {"_ahead": deque(), "_pass": None, "_finalizer": None}

    def __init__(
        self,
        source: BaseNode[Segment],
        store: Store | Mapping[str, Store],
        pool: ChunkPool,
        *,
        max_inflight: int = 32,
        decode_threads: int | None = None,
        name: str = "loader",
        retry: RetryPolicy | None = None,
        on_missing: str = "auto",
    ) -> None:
        """Prepare the readers; nothing is read and no thread is started."""
        super().__init__(source)
        check_stores(store)
        check_pool(pool)
        self.pool = pool
        self.name = name
        self.store = store
        self.max_inflight = whole_number("max_inflight", max_inflight, least=1)
        if decode_threads is not None:
            decode_threads = whole_number("decode_threads", decode_threads, least=1)
        self.decode_threads = decode_threads
        self.retry = retry
        self.on_missing = on_missing
        self._ahead: deque[tuple[Segment, Admission]] = deque()
        # From the oldest admission on that has not landed; what landed is not looked at again.
        self._landing: deque[Admission] = deque()
        self._ended = False
        self._pass: PoolPass | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._prepare()

    def _prepare(self) -> None:
        by_label: dict[str | None, list[ArrayGeometry]] = {}
        for array in self._arrays:
            by_label.setdefault(array.store, []).append(array)
        if len(by_label) > 1 and not isinstance(self.store, Mapping):
            msg = (
                f"the arrays are of {len(by_label)} stores, {sorted(map(str, by_label))}, but one "
                "store is given: give a mapping with one for each of these labels"
            )
            raise PlanError(msg)
        self._most_inflight = within_descriptors(self.max_inflight)
        self._fetchers = {
            label: ChunkFetcher(
                store_of(self.store, arrays[0]),
                arrays,
                max_inflight=self._most_inflight,
                decode_threads=self.decode_threads,
                retry=self.retry,
                on_missing=self.on_missing,
            )
            for label, arrays in by_label.items()
        }
        self._sources = tuple(
            chunk_source(array, store_of(self.store, array), self.on_missing)
            for array in self._arrays
        )
        self._by_source = dict(zip(self._sources, self._arrays, strict=True))
        self._has_shards = any(array.shards is not None for array in self._arrays)

    @property
    def _arrays(self) -> tuple[ArrayGeometry, ...]:
        return self.planner.arrays

    @property
    def n_reads(self) -> Counter[str]:
        """Stored chunks asked for since the node was made, by array as `plan.reads` names it.

        One that is read again, because the first read failed, counts once.
        """
        return self._by_array(lambda counts: counts.n_reads)

    @property
    def n_requests(self) -> Counter[str]:
        """Requests for them, by array: one for each, but for shards and for reads made again."""
        return self._by_array(lambda counts: counts.n_requests)

    @property
    def n_missing(self) -> Counter[str]:
        """Stored chunks that were absent and filled, by array."""
        return self._by_array(lambda counts: counts.n_missing)

    @property
    def n_retries(self) -> Counter[str]:
        """Times that stored chunks were read again, by array."""
        return self._by_array(lambda counts: counts.n_retries)

    def _by_array(self, count: Callable[[ArrayCounts], int]) -> Counter[str]:
        names = zip(self.planner.space.array_names, self._arrays, strict=True)
        return +Counter({name: count(self._counts_of(array)) for name, array in names})

    def _counts_of(self, array: ArrayGeometry) -> ArrayCounts:
        return self._fetchers[array.store].counts_of(array)

    @property
    def bytes_read(self) -> int:
        """Encoded bytes read since the node was made."""
        return sum(f.bytes_read for f in self._fetchers.values())

    def describe(self, array: ArrayGeometry) -> str:
        """How an array is read and decoded, in one line."""
        return self._fetchers[array.store].describe(array)

    def check_missing(self, array: ArrayGeometry) -> None:
        """Raise unless an array of which no stored chunk was found so far can be sparse data.

        Raises:
            ReadError: there is no chunk of the array at all: a wrong path or prefix.
            GeometryError: there are chunks, under keys of another shape.
            ClosedError: interrupted.
        """
        if self._counts_of(array).n_found:
            return
        try:
            self._fetchers[array.store].check_missing(array)
        except Cancelled as cause:
            msg = "looking for chunks was interrupted: reset the node before asking again"
            raise ClosedError(msg) from cause

    def interrupt(self) -> None:
        """End a listing of keys that `check_missing` waits for."""
        for fetcher in self._fetchers.values():
            fetcher.interrupt()

    def _start(self, cursor: Cursor) -> None:
        self._end_generation()
        super()._start(cursor)
        self._ended = False

    def _end_generation(self) -> None:
        # The pass is closed first: then no load that is cancelled is waited for and read again.
        # An interrupt may leave this half way, so that nothing is forgotten before it is done.
        self._ahead.clear()
        self._landing.clear()
        pool_pass, finalizer = self._pass, self._finalizer
        if pool_pass is not None:
            end_pass(pool_pass, tuple(self._fetchers.values()))
        if finalizer is not None:
            finalizer.detach()
        self._pass = self._finalizer = None

    def _make(self) -> FetchedSegment:
        self._fill()
        pool_pass = self._pass
        if not self._ahead or pool_pass is None:
            raise StopIteration
        segment, admission = self._ahead.popleft()
        pool_pass.claim(admission)
        self._fill()
        is_last = self._ended and not self._ahead
        return FetchedSegment(segment, admission, pool_pass, self._sources, is_last)

    def _fill(self) -> None:
        n_asked = 0
        while not self._ended and (
            len(self._ahead) < _MIN_SEGMENTS_AHEAD or self._pass is None or self._wants(n_asked)
        ):
            segments = self._next_segments(n_asked)
            if not segments:
                break
            sources: Mapping[Any, ChunkSource] = dict(enumerate(self._sources))
            wanted = [
                [key.of(sources[key.source]) for key in segment.admit] for segment in segments
            ]
            admissions = self._live_pass().request_all(wanted)
            self._ahead.extend(zip(segments, admissions, strict=True))
            self._landing.extend(admissions)
            n_asked += sum(map(len, wanted))

    def _next_segments(self, n_asked: int) -> list[Segment]:
        """The next one; with shards as many as are wanted, for they may share requests."""
        segments: list[Segment] = []
        try:
            segments.append(next(self.source))
            while self._has_shards and self._pass is not None:
                n_asked += len(segments[-1].admit)
                if not self._wants(n_asked):
                    break
                segments.append(next(self.source))
        except StopIteration:
            self._ended = True
        return segments

    def _wants(self, n_asked: int) -> bool:
        # A budget that holds the whole epoch is no reason to plan it all before the first batch:
        # the reads stay busy with less, and there is a next time. What landed meanwhile does not
        # count as room, or reads that keep up with the planning would hold the first batch back.
        if self._pass is None or self._pass.has_queue:
            return False
        while self._landing and not self._landing[0].n_left:
            self._landing.popleft()
        n_awaited = sum(admission.n_left for admission in self._landing)
        return max(n_asked, n_awaited) < _READS_AHEAD * self._most_inflight

    def _live_pass(self) -> PoolPass:
        if self._pass is None:
            cursor = self._cursor or self.planner.first_cursor()
            plan, lanes = self.planner.plan_of(cursor), cursor.lanes
            floor = self._floor(plan, lanes)
            names = dict(zip(self._arrays, self.planner.space.array_names, strict=True))
            fetchers, by_source = self._fetchers, self._by_source
            generations = {label: f.generation for label, f in fetchers.items()}

            # A plain function over plain values: neither the pool nor a thread that runs it keeps
            # this node alive.
            def load(fills: Sequence[SlotFill]) -> None:
                loads: dict[str | None, list[ChunkLoad]] = {}
                for fill in fills:
                    array = by_source[fill.key.source]  # type: ignore[index]
                    loads.setdefault(array.store, []).append(chunk_load(array, fill))
                for label, items in loads.items():
                    fetchers[label].submit(items, generations[label])

            self._pass = self.pool.open_pass(
                self.name,
                {s: slot_shape(a, names[a]) for s, a in self._by_source.items()},
                floor,
                load,
                block_chunks=plan.block_chunks,
                fitting_block=lambda n_bytes: self._fitting_block(n_bytes, lanes),
                kept_lanes=self.planner.kept_lanes_text(lanes),
            )
            self._finalizer = when_collected(self, end_pass, self._pass, tuple(fetchers.values()))
            try:
                for fetcher in fetchers.values():
                    fetcher.start(self.name, liveness(self, self._pass))
            except BaseException:
                self._end_generation()
                raise
            # Thread A is here while thread B shuts the node down: B finds the pass and ends it, or
            # has said before that the node is shut down.
            if self._error is not None:
                self._end_generation()
                raise self._error
        return self._pass

    def _floor(self, plan: Plan, lanes: int) -> Counter[ChunkSource]:
        # Added up, for two arrays of a loader may be the same one opened twice.
        floor: Counter[ChunkSource] = Counter()
        bounds = plan.floor_chunks(*self.planner.ranks, lanes)
        for source, n_chunks in zip(self._sources, bounds, strict=True):
            floor[source] += n_chunks
        return floor

    def _fitting_block(self, n_bytes: int, lanes: int) -> int:
        """The most `block_chunks` whose floor fits, 0 if none does."""

        def fits(block_chunks: int) -> bool:
            plan = dataclasses.replace(self.planner.plan, block_chunks=block_chunks)
            floor = self._floor(plan, lanes)
            return sum(n * self._by_source[s].chunk_bytes for s, n in floor.items()) <= n_bytes

        sizes = range(1, self.planner.plan.block_chunks + 1)
        return bisect.bisect_left(sizes, 1, key=lambda size: not fits(size))

    def _stop(self) -> None:
        self._end_generation()
        self._ended = True
        # A file on a network that is gone can keep a thread in the system for ever.
        timeout_s = _EXIT_TIMEOUT_S if is_exiting() else None
        for fetcher in self._fetchers.values():
            fetcher.close(timeout_s=timeout_s)
        for store in self.store.values() if isinstance(self.store, Mapping) else [self.store]:
            close_own_store(store)

    def __getstate__(self) -> dict[str, Any]:
        """Without readers; a copy makes its own."""
        state = super().__getstate__()
        state.update(_ahead=deque(), _landing=deque())
        for runtime in ("_fetchers", "_sources", "_by_source", "_has_shards"):
            del state[runtime]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make readers anew."""
        super().__setstate__(state)
        self._prepare()
