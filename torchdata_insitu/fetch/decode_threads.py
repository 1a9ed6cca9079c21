"""The threads that decode, and the queue that feeds them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from torchdata_insitu.fetch.chunk_job import ReadJob, take_failed
from torchdata_insitu.fetch.thread_crew import ThreadCrew


class DecodeThreads:
    """A queue of jobs and up to `n_threads` daemon threads, started as jobs need them.

    Threads refer to this object and to `perform`, never to the fetcher whose collection ends them.
    """

    def __init__(self, n_threads: int, perform: Callable[[ReadJob], None]) -> None:
        self.n_threads = n_threads
        self._perform = perform
        self._queue: deque[ReadJob] = deque()
        self._lock = threading.Lock()
        # The lock itself is what is held: an interrupt inside the methods of a `Condition`, which
        # are plain Python, could leave it locked for ever.
        self._changed = threading.Condition(self._lock)
        self._crew = ThreadCrew()

    def put(self, jobs: Sequence[ReadJob], *, first: bool = False) -> None:
        """Queue jobs and wake as many threads; never blocks.

        Args:
            jobs: What to perform.
            first: Before what is queued already, the last of them first.

        Raises:
            RuntimeError: No thread is there and none could be started; no job was queued.
        """
        with self._lock:
            n_lacking = len(self._queue) + len(jobs) - self._crew.n_idle
            self._crew.grow(n_lacking, self.n_threads, "insitu-decode", self._work)
            if first:
                self._queue.extendleft(jobs)
            else:
                self._queue.extend(jobs)
            self._changed.notify(len(jobs))

    def take(self) -> list[ReadJob]:
        """Remove and return the jobs that no thread has begun."""
        with self._lock:
            jobs = list(self._queue)
            self._queue.clear()
        return jobs

    def take_failed(self) -> list[ReadJob]:
        """Remove and return those of them whose load has failed."""
        with self._lock:
            return take_failed(self._queue)

    def dismiss(self) -> list[threading.Thread]:
        """Let every thread leave after the job it is at, and return them to be joined.

        A later `put` starts others.
        """
        with self._lock:
            crew, self._crew = self._crew, ThreadCrew()
            crew.is_leaving = True
            self._changed.notify_all()
        return crew.threads

    def _work(self, crew: ThreadCrew) -> None:
        while True:
            with self._lock:
                while not self._queue and not crew.is_leaving:
                    crew.n_idle += 1
                    self._changed.wait()
                    crew.n_idle -= 1
                if crew.is_leaving:
                    return
                job = self._queue.popleft()
            self._perform(job)
            # The next wait may be long, and a job holds a slot and whatever `done` is bound to.
            del job
