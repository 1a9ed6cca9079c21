"""The jobs that wait to be tried again."""

import random
import threading
import time
from collections.abc import Callable

from torchdata_insitu.errors import DecodeError, FetchError, ReadError
from torchdata_insitu.fetch.chunk_job import ReadJob, take_failed
from torchdata_insitu.fetch.fetch_errors import after_attempts
from torchdata_insitu.fetch.retry import RetryPolicy, is_temporary
from torchdata_insitu.fetch.zarr_loop import call_later_on_zarr_loop
from torchdata_insitu.geometry.value_decoding import CastError


class Retries:
    """Decides whether a job is tried again, and keeps it until then.

    A job that waits is here and nowhere else. The time is kept by Zarr's loop, so that no thread
    waits; whoever takes a job out, under the lock, ends it or passes it on.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        again: Callable[[ReadJob], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[], float] = random.random,
        call_later: Callable[[float, Callable[[], None]], None] = call_later_on_zarr_loop,
    ) -> None:
        """Keep nothing yet.

        Args:
            policy: How often and when.
            again: Called with a job whose time has come, on the thread of Zarr's loop.
            clock: Seconds that only grow.
            share: A number between 0 and 1, another each time.
            call_later: Calls a function after so many seconds; raises `RuntimeError` where nothing
                is called any more.
        """
        self._policy = policy
        self._again = again
        self._clock = clock
        self._share = share
        self._call_later = call_later
        self._lock = threading.Lock()
        self._waiting: set[ReadJob] = set()

    def begin(self, job: ReadJob) -> bool:
        """A try of a job begins; says whether it is the first."""
        if job.n_attempts == 0:
            job.began_s = self._clock()
        job.n_attempts += 1
        return job.n_attempts == 1

    def delay_s(self, job: ReadJob, error: BaseException) -> float | None:
        """Seconds after which a job that failed is tried again, None for never."""
        policy = self._policy
        if job.n_attempts >= policy.attempts or self.is_spent(job):
            return None
        if isinstance(error.__cause__, CastError):
            # The bytes are whole, and would be the same the next time.
            return None
        if isinstance(error, DecodeError):
            job.n_damaged += 1
            return 0.0 if job.n_damaged == 1 else None
        cause = error.__cause__
        if not isinstance(error, ReadError) or cause is None or not is_temporary(cause):
            return None
        delay = policy.delay_s(job.n_attempts, self._share())
        return delay if self._elapsed(job) + delay <= policy.budget_s else None

    def final(self, job: ReadJob, error: BaseException) -> BaseException:
        """The error of a job that is not tried again, with what was tried."""
        if job.n_attempts > 1 and isinstance(error, FetchError):
            return after_attempts(error, job.n_attempts, self._elapsed(job))
        return error

    def wait(self, job: ReadJob, delay_s: float) -> None:
        """Keep a job for so long.

        Raises:
            RuntimeError: Zarr's loop is closed; the job was not kept, as after any other error.
        """
        with self._lock:
            self._waiting.add(job)
        try:
            self._call_later(delay_s, lambda: self._due(job))
        except BaseException:
            with self._lock:
                is_here = job in self._waiting
                self._waiting.discard(job)
            if is_here:
                raise

    def is_spent(self, job: ReadJob) -> bool:
        """Whether the time for a job that was kept is over."""
        return self._elapsed(job) > self._policy.budget_s

    def take(self, *, failed_only: bool = False) -> list[ReadJob]:
        """Remove and return the jobs that wait; on request those only whose load has failed."""
        with self._lock:
            if failed_only:
                return take_failed(self._waiting)
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def _due(self, job: ReadJob) -> None:
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        self._again(job)

    def _elapsed(self, job: ReadJob) -> float:
        return self._clock() - job.began_s
