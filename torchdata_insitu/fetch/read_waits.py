"""Whether the reads of local files make their threads wait."""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

if sys.platform == "linux":
    from resource import RUSAGE_THREAD, getrusage

    def _n_blocked() -> int:
        return getrusage(RUSAGE_THREAD).ru_nvcsw

else:

    def _n_blocked() -> int:
        # Where nobody counts, every read may have blocked.
        return time.perf_counter_ns()


_EVERY = 4
_WINDOW = 8
# All but one: where cores are scarce, threads wait for each other as long as for a disk, but not
# every time.
_SLOW_S = 1e-3
_LEAST_SLOW = 7
# Far below, so that reads do not go to and fro between threads.
_FAST_S = 0.25e-3
_LEAST_FAST = 4
# What a machine without a core to spare makes of copies out of the system's cache.
_LEAST_BYTES_PER_S = 1e9


class ThreadTime(NamedTuple):
    """What the calling thread did so far."""

    waited_s: float
    """Seconds it did not compute; only differences mean anything."""
    n_blocked: int
    """Times it gave its core away by itself, and not because another thread had to have it."""


def thread_time() -> ThreadTime:
    """The time of the calling thread.

    Copying many bytes out of the system's cache takes long, and so does everything where cores are
    scarce: neither is a reason for a thread of its own. A disk or a network that is waited for is.
    """
    return ThreadTime(time.perf_counter() - time.thread_time(), _n_blocked())


class ReadWaits:
    """Measures the first reads and then one in four, and judges by the waits of eight.

    Reads are taken for slow once seven of them wait 1 ms, and for fast again once four of them wait
    less than 0.25 ms, as after a busy hour of a file server.
    """

    def __init__(self, clock: Callable[[], ThreadTime] = thread_time) -> None:
        """Take reads for fast.

        Args:
            clock: The time of the calling thread.
        """
        self.is_slow = False
        """Whether reads are to have threads of their own."""
        self._clock = clock
        self._n_reads = 0
        self._waits: list[float] = []

    def begin(self) -> ThreadTime | None:
        """The time at which a read begins; None for one that is not measured."""
        self._n_reads += 1
        is_measured = self._n_reads <= _WINDOW or self._n_reads % _EVERY == 0
        return self._clock() if is_measured else None

    def end(self, began: ThreadTime | None, n_bytes: int) -> None:
        """A read has ended on the thread that began it, and brought so many bytes."""
        if began is None:
            return
        now = self._clock()
        wait_s = now.waited_s - began.waited_s - n_bytes / _LEAST_BYTES_PER_S
        # Without a lock: what two threads note at the same time is in one window or the next.
        waits = self._waits
        waits.append(wait_s if now.n_blocked > began.n_blocked else 0.0)
        if len(waits) >= _WINDOW:
            self._waits = []
            self._judge(sorted(waits))

    def _judge(self, waits: list[float]) -> None:
        if self.is_slow:
            self.is_slow = waits[_LEAST_FAST - 1] >= _FAST_S
        else:
            self.is_slow = waits[_WINDOW - _LEAST_SLOW] >= _SLOW_S
