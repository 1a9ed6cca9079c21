"""What works for a fetcher without holding it: jobs, threads, and the ways out."""

import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import ObjectStore

from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch.chunk_job import (
    ChunkJob,
    Generation,
    ReadJob,
    RunningLoad,
    end_jobs,
    take_failed,
)
from torchdata_insitu.fetch.chunk_load import ChunkLoad
from torchdata_insitu.fetch.chunk_reader import ChunkReader
from torchdata_insitu.fetch.cpu_share import cores_per_rank
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.fetch_errors import forget_frames
from torchdata_insitu.fetch.job_steps import JobSteps
from torchdata_insitu.fetch.known_arrays import KnownArrays
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.local_file_reader import LocalFileReader
from torchdata_insitu.fetch.local_files import local_root
from torchdata_insitu.fetch.missing_chunks import MissingChunkCheck
from torchdata_insitu.fetch.object_reads import ObjectReads
from torchdata_insitu.fetch.read_counts import ReadCounts
from torchdata_insitu.fetch.reader_threads import MOST_READER_THREADS, ReaderThreads
from torchdata_insitu.fetch.retries import Retries
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.shard_job import ShardJob
from torchdata_insitu.fetch.shard_reads import NextJobs, ShardReads
from torchdata_insitu.fetch.stores import store_text
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.fetch.uninterrupted import uninterrupted
from torchdata_insitu.fetch.zarr_loop import call_on_zarr_loop
from torchdata_insitu.fetch.zarr_loop_reader import ZarrLoopReader
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.process_check import check_process

# How long a close waits for reads that block, most of which end by themselves within it.
_MOMENT_S = 0.2


class FetchEngine:
    """What works for a fetcher without holding it."""

    def __init__(
        self,
        store: Store,
        arrays: Sequence[ArrayGeometry],
        max_inflight: int,
        decode_threads: int | None,
        *,
        retry: RetryPolicy,
        on_missing: str,
    ) -> None:
        self._store = store
        self._on_missing = on_missing
        self._pid = os.getpid()
        n_threads = cores_per_rank() if decode_threads is None else max(1, decode_threads)
        self.counts = ReadCounts(arrays)
        buffers = ThreadBuffers()
        self._known = KnownArrays(arrays, buffers)
        if on_missing == "raise":
            for known in self._known:
                known.decoder.check_sees_missing()
        self._threads = DecodeThreads(n_threads, self._perform)
        self._retries = Retries(retry, self._read_again)
        self._account = limiter_of(store).account(max(1, max_inflight))
        self._shards = ShardReads(self.counts)
        steps = JobSteps(
            self._threads,
            self.counts,
            self._account,
            self._retries,
            missing_is_error=on_missing == "raise",
            take_apart=self._take_apart,
        )
        root = local_root(store)
        self._reader = self._choose_reader(store, root, steps, buffers)
        self._missing = MissingChunkCheck(store, root)
        # Held while jobs enter queues and while they are taken out, never while they are ended.
        self._lock = threading.Lock()
        self._loads_lock = threading.Lock()
        self.generation = Generation()
        self._taken: deque[ReadJob] = deque()

    def _choose_reader(
        self, store: Store, root: str | None, steps: JobSteps, buffers: ThreadBuffers
    ) -> ChunkReader:
        account = self._account
        n_threads = min(account.max_inflight, MOST_READER_THREADS)
        reader: LocalFileReader | ReaderThreads | ZarrLoopReader
        if root is not None:
            reader = LocalFileReader(root, steps, buffers, n_threads, shards=self._shards)
        elif type(store) is ObjectStore and account.max_inflight <= MOST_READER_THREADS:
            # A subclass or a wrapper may override `get`; more threads cost more than tasks.
            reads = ObjectReads(store.store)
            reader = ReaderThreads(reads, steps, n_threads, "blocking reads of obstore")
        else:
            reader = ZarrLoopReader(store, steps)
        account.granted = reader.granted
        return reader

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child, where no such thread runs and a lock may be held for ever."""
        return os.getpid() == self._pid

    def submit(self, loads: Sequence[ChunkLoad], generation: Generation | None) -> None:
        """See `ChunkFetcher.submit`."""
        check_process(self, self._pid)
        planned = []
        for load in loads:
            known = self._known.of(load.array)
            load.check_slot()
            requests = known.table.requests(load.sample_run, load.field_tile)
            planned.append((load, requests, known.decoder))
        jobs: list[ChunkJob] = []
        left: list[ReadJob] = []
        try:
            with self._lock:
                own = self.generation if generation is None else generation
                is_late = own.cancelled
                for load, requests, decoder in planned:
                    running = RunningLoad(load, len(requests), own, self._loads_lock)
                    jobs.extend(ChunkJob(running, request, decoder) for request in requests)
                left += jobs
                if not is_late:
                    following = self._shards.grouped(jobs)
                    left[:] = [*following.reads, *following.landed]
                    self._queue(following, left)
            if is_late:
                uninterrupted(lambda: end_jobs(jobs))
        except RuntimeError as cause:
            # No thread could be started, or Zarr's loop is closed: the process is on its way out.
            error = ReadError(f"nothing reads from {store_text(self._store)} any more: {cause}")
            uninterrupted(lambda: end_jobs(left, error))

    def start(self, name: str, is_live: Callable[[], bool]) -> None:
        """See `ChunkFetcher.start`."""
        check_process(self, self._pid)
        self._account.start(name, is_live)

    def cancel(self) -> None:
        """See `ChunkFetcher.cancel`."""
        if self.is_of_this_process:
            self._account.stop()
            with self._lock:
                self._take_all()
            self._end_taken()

    def shut_down(self, *, join: bool, timeout_s: float | None = None) -> None:
        """Cancel and let the threads leave.

        Args:
            join: Wait for them, for those in a read that blocks no longer than a moment.
            timeout_s: Most seconds to wait for the others.
        """
        if not self.is_of_this_process:
            return
        self._account.stop()
        with self._lock:
            self._take_all()
            threads = self._threads.dismiss()
            leaving = self._reader.dismiss()
        self._missing.interrupt()
        self._end_taken()
        if join:
            _join([*threads, *leaving.soon], timeout_s)
            _join(leaving.stuck, _MOMENT_S)

    def abandon(self) -> None:
        """Shut down for a finalizer, which may take no lock."""
        if self.is_of_this_process:
            call_on_zarr_loop(functools.partial(self.shut_down, join=False))

    def interrupt(self) -> None:
        """See `ChunkFetcher.interrupt`."""
        if self.is_of_this_process:
            self._missing.interrupt()

    def settle(self, timeout_s: float) -> None:
        """Wait until cancelled reads have ended, at most so long."""
        if self.is_of_this_process:
            self._reader.settle(timeout_s)

    def check_missing(self, array: ArrayGeometry) -> None:
        """See `ChunkFetcher.check_missing`."""
        check_process(self, self._pid)
        if self._on_missing == "fill":
            return
        first_key = self._known.of(array).table.requests(0)[0].key
        others = [
            other.array.name
            for other in self._known
            if other.array is not array and self.counts.of(other.array).n_found
        ]
        self._missing.check(array, first_key, other_hit=others[0] if others else None)

    def describe(self, array: ArrayGeometry) -> str:
        """See `ChunkFetcher.describe`."""
        path = f"{self._reader}; {self._known.of(array).decoder.path}"
        if array.shards is None:
            return path
        shape = tuple(axis.largest for axis in array.shards.grid.axes)
        return f"{path}; in shards of {shape}"

    def _queue(self, following: NextJobs, left: list[ReadJob], *, first: bool = False) -> None:
        """Queue jobs, under the lock; what was queued leaves `left`, also before an error.

        Raises:
            RuntimeError: Nothing reads or decodes any more.
        """
        if following.landed:
            jobs = following.landed[::-1] if first else following.landed
            self._threads.put(jobs, first=first)
            del left[len(following.reads) :]
        if following.reads:
            jobs = following.reads[::-1] if first else following.reads
            self._reader.submit(jobs, first=first)
            left.clear()

    def _take_apart(self, job: ShardJob, payload: NDArray[np.uint8] | None) -> None:
        """Go on with what the read of a shard has brought; runs on a decode thread.

        Under the lock, as in `_keep`: who cancels finds the stored chunks where they are put, or
        has declared their loads over.
        """
        following = self._shards.taken_apart(job, payload)
        error: BaseException | None = None
        with self._lock:
            # Of a load that has failed elsewhere meanwhile, as in `_end_failed`.
            gone = take_failed(following.reads) + take_failed(following.landed)
            left = [*following.reads, *following.landed]
            if not all(job.is_over for job in left):
                try:
                    self._queue(following, left, first=True)
                except RuntimeError as cause:
                    error = cause
        for job_left in (*gone, *left):
            job_left.end_permit()
            job_left.end(error)

    def _take_all(self) -> None:
        # In this order: a pass that starts after an interrupt in between has a generation that goes
        # on.
        over, self.generation = self.generation, Generation()
        over.cancelled = True
        # In the order in which a job goes on: what is handed over meanwhile is found at the next
        # place. Nothing goes back to an earlier one once its load is over.
        self._taken.extend(self._reader.take_waiting())
        self._taken.extend(self._threads.take())
        self._taken.extend(self._retries.take())
        self._account.withdraw()

    def _end_taken(self) -> None:
        # From where they are kept: what an interrupt leaves is ended by the next cancellation, and
        # not lost, for the slot of a lost job is never free again.
        if self._taken:
            uninterrupted(lambda: end_jobs(self._drained()))

    def _drained(self) -> Iterator[ReadJob]:
        while self._taken:
            try:
                job = self._taken.popleft()
            except IndexError:  # another thread has ended the rest
                return
            yield job

    def _perform(self, job: ReadJob) -> None:
        if job.is_over:
            job.end_permit()
            job.end(None)
            return
        try:
            is_done = self._reader.land(job)
        except BaseException as error:  # noqa: BLE001
            job.end_permit()
            self._fail(job, error)
        else:
            if is_done:
                job.end_permit()
                job.end(None)

    def _fail(self, job: ReadJob, error: BaseException) -> None:
        final: BaseException | None = None
        try:
            forget_frames(error)
            if not job.is_over:
                is_changed = self._shards.changed(job, error)
                delay_s = 0.0 if is_changed else self._retries.delay_s(job, error)
                if delay_s is not None and self._keep(job, error, delay_s):
                    return
                final = self._retries.final(job, error)
        except BaseException as failure:  # noqa: BLE001
            # The errors of stores are code of others too, and so is a policy: a job that nobody
            # ends is waited for for ever.
            final = failure
        job.end(final)
        if final is not None:
            self._end_failed()

    def _end_failed(self) -> None:
        """End the others of a load that has failed: they may wait for long, its error need not."""
        # Under the lock, as in `_keep`: who puts a job somewhere has seen the failure, or the job
        # is found here.
        with self._lock:
            waiting = [*self._reader.take_failed(), *self._retries.take(failed_only=True)]
            queued = self._threads.take_failed()
        for job in queued:
            job.end_permit()
        end_jobs([*waiting, *queued])

    def _keep(self, job: ReadJob, error: BaseException, delay_s: float) -> bool:
        """Try a job again, at once or later; False where it has to end instead."""
        # Under the lock, thread A (a decode thread) either comes before thread B that cancels, and
        # B finds the job where it is put, or sees that the load is over.
        gone: list[ReadJob] = []
        try:
            with self._lock:
                failed = job.take_failed()
                if job.is_over or job in failed:
                    return False
                gone += failed
                job.forget(error)
                if delay_s:
                    self._retries.wait(job, delay_s)
                else:
                    self._reader.submit((self._shards.again(job),), first=True)
        except RuntimeError:
            return False
        finally:
            end_jobs(gone)
        return True

    def _read_again(self, job: ReadJob) -> None:
        """The time of a job has come; runs on Zarr's loop."""
        failure = job.error
        final: BaseException | None = None
        gone: list[ReadJob] = []
        try:
            with self._lock:
                gone = [failed for failed in job.take_failed() if failed is not job]
                is_over = job.is_over
                if not is_over and not self._retries.is_spent(job):
                    job.forget(None)
                    try:
                        self._reader.submit((self._shards.again(job),), first=True)
                    except RuntimeError:
                        pass
                    else:
                        return
            if not is_over and failure is not None:
                final = self._retries.final(job, failure)
        except BaseException as error:  # noqa: BLE001 - as in `_fail`
            final = error
        finally:
            end_jobs(gone)
        job.end(final)
        if final is not None:
            self._end_failed()


def _join(threads: Iterable[threading.Thread], timeout_s: float | None) -> None:
    end = None if timeout_s is None else time.monotonic() + timeout_s
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
