"""Threads that sit in blocking reads, and the queue that feeds them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.fetch.chunk_job import ReadJob, take_failed
from torchdata_insitu.fetch.chunk_reader import LeavingThreads
from torchdata_insitu.fetch.job_steps import JobSteps
from torchdata_insitu.fetch.limiter import Permit
from torchdata_insitu.fetch.thread_crew import ThreadCrew

MOST_READER_THREADS = 64


class ReaderThreads:
    """Up to `n_threads` daemon threads, started as jobs need them, each in one read at a time.

    A read that blocks cannot be cancelled. The job it is for is ended without it: the read has no
    access to the slot, its bytes are dropped when they come, and until then it counts in the
    limiter and its thread is not waited for.

    A job is in exactly one place: in the backlog, read, or handed over. Whoever takes it out of its
    place, under the lock, ends it.
    """

    def __init__(
        self,
        read: Callable[[ReadJob], NDArray[np.uint8] | None],
        steps: JobSteps,
        n_threads: int,
        text: str,
    ) -> None:
        """Start nothing.

        Args:
            read: Returns the stored bytes of a job, None where there is no such key; must not touch
                the slot.
            steps: The account in it calls `granted`.
            n_threads: Most threads at a time.
            text: How it reads, for people.
        """
        self._read = read
        self._steps = steps
        self._n_threads = n_threads
        self._text = text
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._backlog: deque[ReadJob] = deque()
        self._granted: deque[Permit] = deque()
        self._reading: set[ReadJob] = set()
        self._crew = ThreadCrew()

    def __str__(self) -> str:
        return f"{self._text} on up to {self._n_threads} reader threads"

    def submit(self, jobs: Sequence[ReadJob], *, first: bool = False) -> None:
        """Queue jobs and wake or start as many threads.

        Raises:
            RuntimeError: No thread is there and none could be started; no job was queued.
        """
        with self._lock:
            self._submit(jobs, first=first)

    def pass_on(self, job: ReadJob) -> bool:
        """Queue a job that a decode thread has, unless its load is over meanwhile.

        The load is over before who cancels takes what waits here: the job is either found by it, or
        stays with the caller.
        """
        with self._lock:
            if job.is_over:
                return False
            self._submit((job,), first=True)
        return True

    def _submit(self, jobs: Sequence[ReadJob], *, first: bool) -> None:
        n_lacking = len(self._backlog) + len(jobs) - self._crew.n_idle
        self._crew.grow(n_lacking, self._n_threads, "insitu-read", self._work)
        if first:
            self._backlog.extendleft(jobs)
        else:
            self._backlog.extend(jobs)
        self._changed.notify(len(jobs))

    def take_waiting(self) -> list[ReadJob]:
        """Remove and return every job whose bytes have not come."""
        with self._lock:
            jobs = [*self._backlog, *self._reading]
            self._backlog.clear()
            self._reading.clear()
            # Their permits are idle, and the account ends them as it withdraws.
            self._granted.clear()
        return jobs

    def take_failed(self) -> list[ReadJob]:
        """Remove and return those of them whose load has failed."""
        with self._lock:
            jobs = take_failed(self._backlog) + take_failed(self._reading)
            if self._granted and not self._backlog:
                # A thread ends the permits that nobody needs.
                self._changed.notify()
        return jobs

    def land(self, job: ReadJob) -> bool:
        """Decode what has come."""
        return self._steps.decode(job)

    def granted(self, permit: Permit) -> None:
        """There is room for one more read."""
        with self._lock:
            is_wanted = bool(self._backlog)
            if is_wanted:
                permit.is_idle = True
                self._granted.append(permit)
                self._changed.notify()
        if not is_wanted:
            permit.end()

    def wake(self) -> None:
        """Let a thread ask for a permit, where a job waits."""
        with self._lock:
            if self._backlog:
                self._changed.notify()

    def dismiss(self) -> LeavingThreads:
        """Let every thread leave; a later `submit` starts others."""
        with self._lock:
            crew, self._crew = self._crew, ThreadCrew()
            crew.is_leaving = True
            self._changed.notify_all()
            stuck = [thread for thread in crew.threads if thread in crew.reading]
            soon = [thread for thread in crew.threads if thread not in crew.reading]
        return LeavingThreads(soon, stuck)

    def settle(self, timeout_s: float) -> None:
        """Nothing to do: a blocking read ends when it ends."""

    def _work(self, crew: ThreadCrew) -> None:
        while (turn := self._wait_for_turn(crew)) is not None:
            job, permit = turn
            if job is None:
                if permit is not None:
                    permit.end()
            elif permit is None:
                job.end(None)
            else:
                self._bring(job, crew)
            # The next wait may be long, and a job holds a slot and whatever `done` is bound to.
            del job, permit, turn

    def _wait_for_turn(self, crew: ThreadCrew) -> tuple[ReadJob | None, Permit | None] | None:
        """What to do next: a job to read, one whose load failed, or a permit nobody needs.

        Returns:
            None for leaving.
        """
        with self._lock:
            while True:
                if self._granted and not self._backlog:
                    return None, self._granted.popleft()
                if crew.is_leaving:
                    return None
                job, permit = self._next()
                if job is not None:
                    break
                crew.n_idle += 1
                self._changed.wait()
                crew.n_idle -= 1
            if permit is not None:
                self._steps.begin(job, permit)
                self._reading.add(job)
                crew.reading.add(threading.current_thread())
            if self._backlog:
                # A permit is for one read, and there may be room for more.
                self._changed.notify()
        return job, permit

    def _next(self) -> tuple[ReadJob | None, Permit | None]:
        """The next job and the permit to read it, without one where its load has failed."""
        if not self._backlog:
            return None, None
        job = self._backlog[0]
        if job.has_failed:
            return self._backlog.popleft(), None
        permit = self._granted.popleft() if self._granted else self._steps.ask(job)
        if permit is None:
            return None, None
        return self._backlog.popleft(), permit

    def _bring(self, job: ReadJob, crew: ThreadCrew) -> None:
        payload: NDArray[np.uint8] | None = None
        error: BaseException | None = None
        try:
            payload = self._read(job)
        except BaseException as caught:  # noqa: BLE001
            error = caught
        with self._lock:
            crew.reading.discard(threading.current_thread())
        self._steps.come(job, payload, error, self._lock, self._take)

    def _take(self, job: ReadJob) -> bool:
        is_here = job in self._reading
        self._reading.discard(job)
        return is_here
