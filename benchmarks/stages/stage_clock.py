"""Where the time goes, by stage and thread: functions of the library timed from outside."""

import functools
import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.stages.patches import Patches, kind_of_thread

STAGES = {
    "open + read": (
        "fetch.local_file_reader:LocalFileReader._read_and_decode",
        "fetch.local_file_reader:_WholeFiles.__call__",
        "fetch.local_shards:LocalShards._read",
        "fetch.object_reads:ObjectReads.__call__",
    ),
    "decode": (
        "fetch.decoder:unpack",
        "fetch.zarr_decoding:ZarrDecoding.decode",
    ),
    "placement": (
        "fetch.decoder:ChunkDecoder.decode",
        "fetch.decoder:ChunkDecoder._place",
        "fetch.decoder:ChunkDecoder.finish",
        "fetch.decoder:ChunkDecoder.raw_target",
    ),
    "permits, counts": (
        "fetch.limiter:Limiter.ask",
        "fetch.limiter:Limiter.land",
        "fetch.limiter:Limiter.split",
        "fetch.limiter:Limiter.end",
        "fetch.read_counts:ReadCounts.requested",
        "fetch.read_counts:ReadCounts.found",
        "fetch.retries:Retries.begin",
    ),
    "job": (
        "fetch.fetch_engine:FetchEngine._perform",
        "fetch.chunk_job:RunningLoad.end_request",
        "fetch.reader_threads:ReaderThreads._bring",
    ),
    "submit": ("fetch.fetch_engine:FetchEngine.submit",),
    "queue put": (
        "fetch.decode_threads:DecodeThreads.put",
        "fetch.reader_threads:ReaderThreads.submit",
        "fetch.zarr_loop_reader:ZarrLoopReader.submit",
    ),
    "planning": (
        "nodes.chunk_planner:ChunkPlanner._make",
        "nodes.chunk_planner:ChunkPlanner._start",
    ),
    "admission": (
        "nodes.async_chunk_fetcher:AsyncChunkFetcher._make",
        "pool.chunk_pool:ChunkPool.open_pass",
        "pool.chunk_pool:ChunkPool.request_all",
        "pool.chunk_pool:ChunkPool.claim",
        "pool.chunk_pool:ChunkPool.release",
        "pool.chunk_pool:ChunkPool.close_pass",
        "pool.chunk_pool:ChunkPool.landed",
    ),
    "row lookup": (
        "nodes.chunk_pool_node:ChunkPoolNode._make",
        "pool.chunk_pool:ChunkPool.first_rows",
    ),
    "gather index": (
        "nodes.gather_node:GatherNode._copy",
        "gather.drawn_rows:DrawnRows.__init__",
        "gather.drawn_rows:DrawnRows.of",
        "gather.row_lookup:RowLookup.rows",
    ),
    "gather copy": ("gather.row_copy:RowCopy.copy",),
    "batch memory": (
        "gather.batch_buffers:BatchBuffers.take",
        "nodes.batch_memory:BatchMemory.batch",
    ),
    "gather, rest": ("nodes.gather_node:GatherNode._make",),
    "node calls": (
        "nodes.ordered_node:OrderedNode.next",
        "nodes.ordered_node:OrderedNode.get_state",
    ),
    "hand-over": (
        "nodes.prefetch_channel:PrefetchChannel._run",
        "nodes.prefetch_channel:PrefetchChannel.take",
        "nodes.prefetcher:Prefetcher.next",
    ),
    "loader": ("loader:InSituLoader._next",),
    "wait for chunks": ("pool.admission:Admission.wait",),
}
"""Functions whose time is that of a stage, without what another of them takes inside it."""

WAIT, COLLECTOR = "wait at a queue", "garbage collector"
_NS = 1e9
_CALLS = 10_000


@dataclass
class Spent:
    """What one stage took on one kind of thread."""

    n_calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class _Thread(threading.local):
    """Per thread: open calls, as wall and CPU of what they called, and totals by stage."""

    open: list[list[int]]
    totals: defaultdict[str, list[int]]


class StageClock:
    """Wall and CPU time by stage and thread, each without the stages inside it.

    CPU below wall in a stage that does not wait is time without the interpreter's lock or without a
    core. Most of what the clock itself takes goes to the stage around the one it times.
    """

    def __init__(self) -> None:
        """Time nothing yet."""
        self.patches = Patches()
        self._local = _Thread()
        self._all: list[tuple[str, dict[str, list[int]]]] = []
        for stage, places in STAGES.items():
            for where in places:
                self.patches.add(where, functools.partial(self._timed, stage))
        self.patches.add_to(threading.Condition, "wait", functools.partial(self._timed, WAIT))
        # Not `Gate.wait` itself: the wait for chunks is a stage of its own.
        self.patches.add("nodes.prefetch_channel:Gate", self._timed_gate)

    def installed(self) -> AbstractContextManager[None]:
        """The functions timed meanwhile."""
        return self.patches.installed()

    def clear(self) -> None:
        """Count from zero; called while nothing runs."""
        for _, totals in self._all:
            totals.clear()

    def spent(self) -> dict[tuple[str, str], Spent]:
        """What was spent, by kind of thread and stage."""
        spent: defaultdict[tuple[str, str], Spent] = defaultdict(Spent)
        for thread, totals in self._all:
            for stage, (n_calls, wall_ns, cpu_ns) in totals.items():
                one = spent[thread, stage]
                one.n_calls += n_calls
                one.wall_s += wall_ns / _NS
                one.cpu_s += cpu_ns / _NS
        return dict(spent)

    def cost_s(self) -> float:
        """Seconds that timing takes, for each call."""
        timed = self._timed("", int)
        began = time.perf_counter()
        for _ in range(_CALLS):
            timed()
        seconds = time.perf_counter() - began
        self._local.totals.pop("")
        return seconds / _CALLS

    @contextmanager
    def collector(self) -> Iterator[None]:
        """The garbage collector timed meanwhile: its time is that of no stage."""
        gc.callbacks.append(self._watch_collector)
        try:
            yield
        finally:
            gc.callbacks.remove(self._watch_collector)

    def _watch_collector(self, phase: str, info: object) -> None:
        del info
        if phase == "start":
            self._collecting = self._enter()
        else:
            self._leave(COLLECTOR, *self._collecting)

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        enter, leave = self._enter, self._leave

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = enter()
            try:
                return function(*args, **kwargs)
            finally:
                leave(stage, *began)

        return timed

    def _timed_gate(self, gate: Any) -> Any:
        wait = self._timed(WAIT, gate.wait)
        return type("TimedGate", (gate,), {"__slots__": (), "wait": wait})

    def _enter(self) -> tuple[int, int]:
        local = self._local
        if not hasattr(local, "open"):
            local.open, local.totals = [], defaultdict(lambda: [0, 0, 0])
            self._all.append((kind_of_thread(), local.totals))
        local.open.append([0, 0])
        return time.perf_counter_ns(), time.thread_time_ns()

    def _leave(self, stage: str, wall_began: int, cpu_began: int) -> None:
        cpu = time.thread_time_ns() - cpu_began
        wall = time.perf_counter_ns() - wall_began
        local = self._local
        inside = local.open.pop()
        if local.open:
            around = local.open[-1]
            around[0] += wall
            around[1] += cpu
        total = local.totals[stage]
        total[0] += 1
        total[1] += wall - inside[0]
        total[2] += cpu - inside[1]
