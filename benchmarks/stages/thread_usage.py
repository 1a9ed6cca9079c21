"""What each kind of thread used, as the system counts it."""

import resource
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stages.patches import Patches, kind_of, kind_of_thread

_TASKS = Path("/proc/self/task")
_MINOR_FAULTS = 7  # after the name in brackets, of the fields of `/proc/.../stat`
_NS = 1e9


@dataclass
class Usage:
    """What the threads of one kind used."""

    cpu_s: float = 0.0
    wait_s: float = 0.0
    """Ready to run, with no core to run on."""
    new_bytes: int = 0
    """Memory touched for the first time: what is fresh, or came back from the system."""


class ThreadUsage:
    """Usage by kind of thread; Linux only.

    Threads that live on are read before and after. The prefetching thread ends with an epoch, and
    says itself what it used.
    """

    def __init__(self) -> None:
        """Measure nothing yet."""
        self.by_kind: defaultdict[str, Usage] = defaultdict(Usage)
        # Threads that have said what they used. The system may list them yet.
        self._told: set[int] = set()
        self.patches = Patches()
        self.patches.add("nodes.prefetch_channel:PrefetchChannel._run", self._counted)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add what is used meanwhile."""
        before = _by_thread()
        yield
        for thread, used in _by_thread().items():
            if thread[0] not in self._told:
                self._add(thread[1], used, before.get(thread, (0, 0, 0)))
        self._told.clear()

    def _add(
        self, kind: str, used: tuple[int, int, int], before: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        cpu_ns, wait_ns, faults = (now - then for now, then in zip(used, before, strict=True))
        if cpu_ns:
            usage = self.by_kind[kind]
            usage.cpu_s += cpu_ns / _NS
            usage.wait_s += wait_ns / _NS
            usage.new_bytes += faults * resource.getpagesize()

    def _counted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> None:
            try:
                run(*args)
            finally:
                number = threading.get_native_id()
                self._add(kind_of_thread(), _read(_TASKS / str(number)))
                self._told.add(number)

        return counted


def _by_thread() -> dict[tuple[int, str], tuple[int, int, int]]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for task in _TASKS.iterdir():
        try:
            name = names.get(int(task.name)) or (task / "comm").read_text().strip()
            found[int(task.name), kind_of(name)] = _read(task)
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
    return found


def _read(task: Path) -> tuple[int, int, int]:
    """CPU and waiting nanoseconds, and minor faults."""
    cpu_ns, wait_ns, _ = map(int, (task / "schedstat").read_text().split())
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return cpu_ns, wait_ns, int(fields[_MINOR_FAULTS])
