"""Reads of any Zarr store, on Zarr's own event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.buffer import Buffer, numpy_buffer_prototype

from torchdata_insitu.fetch.chunk_job import ChunkJob
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.fetch_errors import read_error
from torchdata_insitu.fetch.read_counts import ReadCounts
from torchdata_insitu.fetch.zarr_loop import zarr_loop


class ZarrLoopReader:
    """Awaits `store.get` for up to `max_inflight` keys at a time, and hands the bytes over.

    The loop belongs to Zarr and is shared with everybody who reads through it. A guest here creates
    tasks and cancels those, and neither stops the loop nor touches its executor or Zarr's settings.
    Nothing on the loop waits for a decode: what has come is appended to the queue of the decode
    threads.

    A job is in exactly one place: in the backlog, with its task, or handed over. Whoever takes it
    out of its place, under the lock, ends it.
    """

    def __init__(
        self, store: Store, threads: DecodeThreads, counts: ReadCounts, max_inflight: int
    ) -> None:
        self._store = store
        self._threads = threads
        self._counts = counts
        self._max_inflight = max_inflight
        self._prototype = numpy_buffer_prototype()
        self._lock = threading.Lock()
        self._backlog: deque[ChunkJob] = deque()
        self._awaited: set[ChunkJob] = set()
        self._n_tasks = 0
        self._pump_is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Touched on the loop only.
        self._tasks: dict[ChunkJob, asyncio.Task[Buffer | None]] = {}

    def submit(self, jobs: Sequence[ChunkJob]) -> None:
        """Queue jobs, with one call to the loop however many they are.

        Raises:
            RuntimeError: The loop is closed; no job was queued.
        """
        loop = zarr_loop()
        with self._lock:
            if loop is not self._loop:
                # Zarr replaced its loop, and with it went the tasks that counted here.
                self._loop, self._n_tasks, self._pump_is_due = loop, 0, False
                self._tasks = {}
            self._backlog.extend(jobs)
            is_due, self._pump_is_due = self._pump_is_due, True
        if is_due:
            return
        try:
            loop.call_soon_threadsafe(self._pump)
        except RuntimeError:
            with self._lock:
                self._pump_is_due = False
                for job in jobs:
                    self._backlog.remove(job)
            raise

    def take_waiting(self) -> list[ChunkJob]:
        """Remove and return every job whose bytes have not come; their tasks are cancelled.

        No task writes into a slot, so that the jobs can be ended at once, whatever the store does.
        """
        with self._lock:
            awaited = list(self._awaited)
            jobs = [*self._backlog, *awaited]
            self._backlog.clear()
            self._awaited.clear()
            loop = self._loop
        if awaited and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel_tasks, awaited)
        return jobs

    def land(self, job: ChunkJob) -> None:
        """Decode one stored chunk that has come; runs on a decode thread.

        Raises:
            ReadError: The store raised.
            DecodeError: The bytes are not the stored chunk.
        """
        if job.error is not None:
            raise read_error(job.array, job.request, job.error) from job.error
        payload, job.payload = job.payload, None
        if payload is None:
            self._counts.missed(job.array)
            job.decoder.missing(job.request, job.out)
        else:
            self._counts.found(job.array, payload.size)
            job.decoder.decode(payload, job.request, job.out)

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
        # A job and its task become known together: a cancellation from another thread comes before
        # both or finds both.
        with self._lock:
            self._pump_is_due = False
            while self._backlog and self._n_tasks < self._max_inflight:
                job = self._backlog.popleft()
                self._counts.asked(job.array)
                task = loop.create_task(self._get(job.request.key))
                task.add_done_callback(partial(self._come, job))
                self._tasks[job] = task
                self._awaited.add(job)
                self._n_tasks += 1

    async def _get(self, key: str) -> Buffer | None:
        try:
            return await self._store.get(key, self._prototype)
        except FileNotFoundError:
            return None
        except (KeyboardInterrupt, SystemExit) as cause:
            # asyncio would end the loop, which is not ours.
            raise RuntimeError(f"the store raised {type(cause).__name__}") from cause

    def _come(self, job: ChunkJob, task: asyncio.Task[Buffer | None]) -> None:
        """A task has ended; also one that was cancelled before it began."""
        self._tasks.pop(job, None)
        error: BaseException | None = None
        payload: NDArray[np.uint8] | None = None
        try:
            buffer = task.result()
            payload = None if buffer is None else buffer.as_numpy_array().view(np.uint8)
        except asyncio.CancelledError:
            error = TimeoutError("the store cancelled the read")
        except BaseException as caught:  # noqa: BLE001
            error = caught
        refused: RuntimeError | None = None
        # Handed over under the lock: `take_waiting` finds the job here or the queue has it, and no
        # thread is started for it after the fetcher was closed.
        with self._lock:
            self._n_tasks -= 1
            if job in self._awaited:
                self._awaited.discard(job)
                job.payload, job.error = payload, error
                try:
                    self._threads.put((job,))
                except RuntimeError as cause:
                    refused = cause
        if refused is not None:
            job.running.end_request(refused)
        self._pump()

    def _cancel_tasks(self, jobs: Iterable[ChunkJob]) -> None:
        for job in jobs:
            task = self._tasks.get(job)
            if task is not None:
                task.cancel()
