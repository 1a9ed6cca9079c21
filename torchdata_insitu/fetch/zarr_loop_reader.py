"""Reads of any Zarr store, on Zarr's own event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, numpy_buffer_prototype

from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.chunk_job import ReadJob, take_failed
from torchdata_insitu.fetch.chunk_reader import LeavingThreads
from torchdata_insitu.fetch.job_steps import JobSteps
from torchdata_insitu.fetch.limiter import Permit
from torchdata_insitu.fetch.retry import ReadCancelledError
from torchdata_insitu.fetch.zarr_loop import zarr_loop


class ZarrLoopReader:
    """Awaits `store.get`, for as many keys at a time as there are permits, and hands bytes over.

    The loop belongs to Zarr and is shared with everybody who reads through it. A guest here creates
    tasks and cancels those, and neither stops the loop nor touches its executor or Zarr's settings.
    Nothing on the loop waits for a decode: what has come is appended to the queue of the decode
    threads.

    A job is in exactly one place: in the backlog, with its task, or handed over. Whoever takes it
    out of its place, under the lock, ends it.
    """

    def __init__(self, store: Store, steps: JobSteps) -> None:
        """Start nothing; the account in `steps` calls `granted`."""
        self._store = store
        self._steps = steps
        self._prototype = numpy_buffer_prototype()
        self._lock = threading.Lock()
        self._backlog: deque[ReadJob] = deque()
        self._granted: deque[Permit] = deque()
        self._awaited: set[ReadJob] = set()
        self._pump_is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Changed on the loop only, or with the loop.
        self._tasks: dict[ReadJob, asyncio.Task[Buffer | None]] = {}
        self._cancelled: set[ReadJob] = set()

    def __str__(self) -> str:
        return "Zarr's event loop"

    def submit(self, jobs: Sequence[ReadJob], *, first: bool = False) -> None:
        """Queue jobs, with one call to the loop however many they are.

        Raises:
            RuntimeError: The loop is closed; no job was queued.
        """
        loop = zarr_loop()
        lost: list[ReadJob] = []
        try:
            with self._lock:
                if loop is not self._loop:
                    # Zarr replaced its loop, and with it went the tasks that counted here.
                    lost = list(self._tasks)
                    self._loop, self._pump_is_due = loop, False
                    self._tasks, self._cancelled = {}, set()
                if first:
                    self._backlog.extendleft(jobs)
                else:
                    self._backlog.extend(jobs)
                is_due, self._pump_is_due = self._pump_is_due, True
            for job in lost:
                job.end_permit()
            if not is_due:
                loop.call_soon_threadsafe(self._pump)
        except BaseException as cause:
            # Also after an interrupt: a pump that is due and never comes would hold up every load.
            self._pump_is_due = False
            if isinstance(cause, RuntimeError):
                with self._lock:
                    for job in jobs:
                        self._backlog.remove(job)
            raise

    def take_waiting(self) -> list[ReadJob]:
        """Remove and return every job whose bytes have not come; their tasks are cancelled.

        No task writes into a slot, so that the jobs can be ended at once, whatever the store does.
        """
        with self._lock:
            jobs = [*self._backlog, *self._awaited]
            self._backlog.clear()
            self._awaited.clear()
            # Their permits are idle, and the account ends them as it withdraws.
            self._granted.clear()
            # An interrupt may have come between a note that the pump is due and the call for it.
            self._pump_is_due = False
            loop = self._loop if self._tasks else None
        # Whatever was taken: an interrupt may have come between an earlier taking and this call.
        self._call(loop, self._cancel_tasks)
        return jobs

    def take_failed(self) -> list[ReadJob]:
        """Remove and return those of them whose load has failed."""
        with self._lock:
            awaited = take_failed(self._awaited)
            jobs = take_failed(self._backlog)
            loop = self._loop
            is_spare = bool(self._granted) and not self._backlog
        if awaited:
            self._call(loop, self._cancel_tasks)
        if is_spare:
            self._call(loop, self._pump)
        return jobs + awaited

    def land(self, job: ReadJob) -> bool:
        """Decode what has come."""
        return self._steps.decode(job)

    def granted(self, permit: Permit) -> None:
        """There is room for one more read."""
        with self._lock:
            loop = self._loop
            is_wanted = bool(self._backlog) and loop is not None
            if is_wanted:
                permit.is_idle = True
                self._granted.append(permit)
                is_due, self._pump_is_due = self._pump_is_due, True
        if not is_wanted or loop is None:
            permit.end()
        elif not is_due:
            self._call(loop, self._pump)

    def dismiss(self) -> LeavingThreads:
        """There are no threads here."""
        return LeavingThreads([], [])

    def settle(self, timeout_s: float) -> None:
        """Wait until cancelled tasks have ended, at most `timeout_s`."""
        loop = self._loop
        if loop is not None and loop.is_running():
            ended = asyncio.run_coroutine_threadsafe(self._tasks_ended(timeout_s), loop)
            with contextlib.suppress(TimeoutError, RuntimeError):
                ended.result(timeout_s)

    async def _tasks_ended(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=timeout_s)

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        failed: list[ReadJob] = []
        # A job and its task become known together: a cancellation from another thread comes before
        # both or finds both.
        with self._lock:
            self._pump_is_due = False
            while self._backlog:
                job = self._backlog[0]
                if job.has_failed:
                    failed.append(self._backlog.popleft())
                    continue
                permit = self._granted.popleft() if self._granted else self._steps.ask(job)
                if permit is None:
                    break
                self._backlog.popleft()
                self._steps.begin(job, permit)
                task = loop.create_task(self._get(job.key, job.span))
                task.add_done_callback(partial(self._come, job))
                self._tasks[job] = task
                self._awaited.add(job)
            spare = [] if self._backlog else list(self._granted)
            if not self._backlog:
                self._granted.clear()
        for permit in spare:
            permit.end()
        for job in failed:
            job.end(None)

    async def _get(self, key: str, span: ByteSpan | None) -> Buffer | None:
        try:
            if span is None:
                return await self._store.get(key, self._prototype)
            part: ByteRequest = RangeByteRequest(span.start, span.stop)
            if span.start < 0:
                part = SuffixByteRequest(span.n_bytes)
            return await self._store.get(key, self._prototype, part)
        except FileNotFoundError:
            return None
        except (KeyboardInterrupt, SystemExit) as cause:
            # asyncio would end the loop, which is not ours.
            raise RuntimeError(f"the store raised {type(cause).__name__}") from cause

    def _come(self, job: ReadJob, task: asyncio.Task[Buffer | None]) -> None:
        """A task has ended; also one that was cancelled before it began."""
        self._tasks.pop(job, None)
        self._cancelled.discard(job)
        error: BaseException | None = None
        payload: NDArray[np.uint8] | None = None
        try:
            buffer = task.result()
            payload = None if buffer is None else buffer.as_numpy_array().view(np.uint8)
        except asyncio.CancelledError as cause:
            error = ReadCancelledError("the store cancelled the read")
            error.__cause__ = cause
        except BaseException as caught:  # noqa: BLE001
            error = caught
        with self._lock:
            # The permit that this read gives back may come straight here again: no call is needed
            # for it, since the pump follows.
            self._pump_is_due = True
        self._steps.come(job, payload, error, self._lock, self._take)
        self._pump()

    def _take(self, job: ReadJob) -> bool:
        is_here = job in self._awaited
        self._awaited.discard(job)
        return is_here

    def _cancel_tasks(self) -> None:
        """Cancel the tasks of all jobs that were taken, each once: it may have to clean up."""
        with self._lock:
            taken = [j for j in self._tasks if j not in self._awaited and j not in self._cancelled]
        self._cancelled.update(taken)
        for job in taken:
            self._tasks[job].cancel()

    def _call(self, loop: asyncio.AbstractEventLoop | None, function: Callable[[], None]) -> None:
        # A closed loop ends at the end of the process, with nobody left to wait for a read.
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function)
