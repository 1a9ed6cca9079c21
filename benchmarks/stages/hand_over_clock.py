"""How often what is read passes between threads, and how long it takes to get there."""

import asyncio
import functools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.stages.patches import Patches, kind_of_thread

_QUEUES = {
    "queued for decode threads": "fetch.decode_threads:DecodeThreads.put",
    "queued for reader threads": "fetch.reader_threads:ReaderThreads._submit",
    "queued for Zarr's loop": "fetch.zarr_loop_reader:ZarrLoopReader.submit",
}
"""Methods that take a sequence of jobs for another thread."""


@dataclass
class Latencies:
    """Seconds from being ready to being seen."""

    waited_for: list[float] = field(default_factory=list)
    """Somebody waited: what waking him took."""
    ahead: list[float] = field(default_factory=list)
    """It lay ready before it was asked for."""

    def __str__(self) -> str:
        return (
            f"waited for {_quantiles(self.waited_for)}; "
            f"ready before it was asked for {_quantiles(self.ahead)}"
        )


class HandOverClock:
    """Counts of hand-overs, and the latencies of chunks and batches.

    Attributes:
        counts: What happened, by name.
        chunks: From the landing of a chunk's last stored chunk until the gather has its block.
        blocks: The same of the last chunk of each segment, which the gather waits for.
        batches: From the moment a batch is made until the consumer has it.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.patches = Patches()
        self._lock = threading.Lock()
        self.clear()
        for name, where in _QUEUES.items():
            self.patches.add(where, functools.partial(self._queued, name))
        for name, where in {
            "waiters of segments woken": "pool.admission:Admission.wake",
            "jobs asked a permit for": "fetch.limiter:Limiter.ask",
        }.items():
            self.patches.add(where, functools.partial(self._called, name))
        self.patches.add_to(threading.Condition, "notify", self._notified)
        self.patches.add("gate:Gate.open", self._opened)
        self.patches.add_to(
            asyncio.BaseEventLoop,
            "call_soon_threadsafe",
            functools.partial(self._called, "calls into an event loop"),
        )
        self.patches.add("pool.chunk_pool:ChunkPool.landed", self._landed)
        self.patches.add("pool.admission:Admission.wait", self._seen)
        self.patches.add("nodes.ordered_node:OrderedNode.get_state", self._made)
        self.patches.add("nodes.prefetcher:Prefetcher.next", self._handed_out)

    def installed(self) -> AbstractContextManager[None]:
        """The functions counted and timed meanwhile."""
        return self.patches.installed()

    def clear(self) -> None:
        """Count from zero; called while nothing runs."""
        self.counts: Counter[str] = Counter()
        self.chunks, self.blocks, self.batches = Latencies(), Latencies(), Latencies()
        self._landed_at: dict[Any, float] = {}
        self._made_at: deque[float] = deque()

    def _add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self.counts[name] += n

    def _queued(self, name: str, put: Callable[..., Any]) -> Callable[..., Any]:
        def queued(owner: Any, jobs: Any, *args: Any, **options: Any) -> Any:
            self._add(name, len(jobs))
            self._add(f"calls: {name}")
            return put(owner, jobs, *args, **options)

        return queued

    def _called(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            self._add(name)
            return function(*args, **options)

        return called

    def _notified(self, notify: Callable[..., Any]) -> Callable[..., Any]:
        def notified(condition: Any, n: int = 1) -> None:
            # A protected member, but nothing else tells whether anybody is woken.
            n_woken = min(n, len(condition._waiters))  # noqa: SLF001
            self._add(f"condition notified by {kind_of_thread()}")
            self._add("threads woken by conditions", n_woken)
            notify(condition, n)

        return notified

    def _opened(self, open_gate: Callable[..., Any]) -> Callable[..., Any]:
        def opened(gate: Any) -> None:
            # One that is open already wakes nobody. A protected member, as above.
            if gate._lock.locked():  # noqa: SLF001
                self._add(f"gate opened by {kind_of_thread()}")
            open_gate(gate)

        return opened

    def _landed(self, landed: Callable[..., Any]) -> Callable[..., Any]:
        def timed(pool: Any, resident: Any, *args: Any, **options: Any) -> Any:
            self._landed_at[resident.key] = time.perf_counter()
            return landed(pool, resident, *args, **options)

        return timed

    def _seen(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(admission: Any) -> Any:
            asked = time.perf_counter()
            result = wait(admission)
            seen = time.perf_counter()
            keys = [key for key in admission.leased if key in self._landed_at]
            landed = [self._landed_at.pop(key) for key in keys]
            for at in landed:
                _note(self.chunks, asked, at, seen)
            if landed:
                _note(self.blocks, asked, max(landed), seen)
            return result

        return timed

    def _made(self, get_state: Callable[..., Any]) -> Callable[..., Any]:
        def timed(node: Any) -> Any:
            state = get_state(node)
            if kind_of_thread() == "insitu-prefetch":
                self._made_at.append(time.perf_counter())
            return state

        return timed

    def _handed_out(self, next_item: Callable[..., Any]) -> Callable[..., Any]:
        def timed(node: Any) -> Any:
            asked = time.perf_counter()
            item = next_item(node)
            _note(self.batches, asked, self._made_at.popleft(), time.perf_counter())
            return item

        return timed


def _note(latencies: Latencies, asked: float, ready: float, seen: float) -> None:
    where = latencies.waited_for if asked < ready else latencies.ahead
    where.append(seen - ready)


def _quantiles(seconds: list[float]) -> str:
    if not seconds:
        return "0 times"
    middle, most = np.quantile(seconds, [0.5, 0.9]) * 1e6
    return f"{len(seconds)} times, median {middle:,.0f} us, nine of ten within {most:,.0f} us"
