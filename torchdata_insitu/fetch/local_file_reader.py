"""Reads of local files: fused with their decoding, or on threads of their own."""

import bisect
import os
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.fetch.chunk_job import ChunkJob, ReadJob, take_failed
from torchdata_insitu.fetch.chunk_reader import LeavingThreads
from torchdata_insitu.fetch.fetch_errors import read_error
from torchdata_insitu.fetch.job_steps import JobSteps
from torchdata_insitu.fetch.limiter import MOST_BYTES, Permit
from torchdata_insitu.fetch.local_files import fill_from_file, open_file, read_file, read_span
from torchdata_insitu.fetch.local_shards import LocalShards
from torchdata_insitu.fetch.read_waits import ReadWaits
from torchdata_insitu.fetch.reader_threads import ReaderThreads
from torchdata_insitu.fetch.shard_job import ShardJob
from torchdata_insitu.fetch.shard_reads import ShardReads
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.page_memory import page_aligned

_SMALLEST_BUFFER = 1 << 16


class LocalFileReader:
    """Opens, reads and closes a file per stored chunk, at first on the decode threads.

    A file is read into a buffer of the thread that decodes it, which costs less than a new buffer
    per chunk or a second thread; plain bytes are read into the slot. While reads wait longer than a
    millisecond, as on network file systems, they go to threads of their own, for the decode threads
    would mostly wait.

    A decode thread never waits for a permit: a job without one is parked here until there is room.
    """

    def __init__(
        self,
        root: str,
        steps: JobSteps,
        buffers: ThreadBuffers,
        n_threads: int,
        *,
        shards: ShardReads,
        waits: ReadWaits | None = None,
    ) -> None:
        """Start nothing.

        Args:
            root: The folder of the store.
            steps: The account in it calls `granted`.
            buffers: What the decode threads read into.
            n_threads: Most reader threads, if it comes to them.
            shards: Where the stored chunks of shards are.
            waits: Tells when that is; None for the clock of the system.
        """
        self._root = root
        self._steps = steps
        self._buffers = buffers
        self._waits = ReadWaits() if waits is None else waits
        self._shards = LocalShards(root, steps, buffers, self._waits, shards)
        self._files = _WholeFiles(root, self._waits)
        self._readers = ReaderThreads(
            self._files, steps, n_threads, "local files that answer slowly,"
        )
        self._lock = threading.Lock()
        self._parked: deque[ReadJob] = deque()

    def __str__(self) -> str:
        return str(self._readers) if self._waits.is_slow else "local files"

    def submit(self, jobs: Sequence[ReadJob], *, first: bool = False) -> None:
        """Queue jobs for the decode threads, or for the reader threads."""
        if self._waits.is_slow:
            self._readers.submit(jobs, first=first)
        else:
            # Fast files are opened for each stored chunk, so that all threads share in a shard.
            singles = [one for job in jobs for one in _singles(job)]
            self._steps.threads.put(singles, first=first)

    def take_waiting(self) -> list[ReadJob]:
        """Remove and return every job that waits for a permit or sits in a read of its own."""
        with self._lock:
            parked = list(self._parked)
            self._parked.clear()
        return parked + self._readers.take_waiting()

    def take_failed(self) -> list[ReadJob]:
        """Remove and return those of them whose load has failed."""
        with self._lock:
            parked = take_failed(self._parked)
        return parked + self._readers.take_failed()

    def land(self, job: ReadJob) -> bool:
        """Read and decode one stored chunk into its slot; runs on a decode thread.

        Raises:
            ReadError: The file exists but cannot be read.
            DecodeError: Its bytes are not the stored chunk.
        """
        if job.has_come:
            payload = job.payload
            is_done = self._steps.decode(job)
            if job.request.place is None:
                # Of a shard, others may still decode their parts.
                self._files.give_back(payload)
            return is_done
        raw = job.decoder.raw_target(job.request, job.out) if isinstance(job, ChunkJob) else None
        permit = job.permit
        if permit is None:
            if self._waits.is_slow:
                return not self._readers.pass_on(job)
            # What is read into the slot is no memory besides it.
            expected = 0 if raw is not None else None
            permit = self._steps.ask(job, expected)
            if permit is None:
                permit, is_parked = self._ask_or_park(job, expected)
                if permit is None:
                    return not is_parked
        self._steps.begin(job, permit)
        if isinstance(job, ShardJob):
            self._shards.land(job)
        elif isinstance(job, ChunkJob):
            self._read_and_decode(job, raw)
        return True

    def _ask_or_park(self, job: ReadJob, expected: int | None) -> tuple[Permit | None, bool]:
        """A permit for a job, or the job parked until there is one.

        Under the lock, so that the permit that was asked for does not come before the job is here.
        Who cancels takes what is parked after it has declared the load over: it finds the job, or
        the job is not parked.
        """
        with self._lock:
            permit = self._steps.ask(job, expected)
            is_parked = permit is None and not job.is_over
            if is_parked:
                self._parked.append(job)
        return permit, is_parked

    def granted(self, permit: Permit) -> None:
        """There is room for one more read."""
        refused: list[ReadJob] = []
        spare: Permit | None = permit
        with self._lock:
            while spare is not None and self._parked:
                job = self._parked.popleft()
                job.permit, spare = spare, None
                job.permit.is_idle = True
                try:
                    self._steps.threads.put((job,), first=True)
                except RuntimeError:
                    refused.append(job)
                if self._parked:
                    spare = self._steps.ask(self._parked[0])
        # Nothing is parked any more: it may be reader threads that asked.
        if spare is not None:
            self._readers.granted(spare)
        else:
            self._readers.wake()
        for job in refused:
            job.end_permit()
            job.end(RuntimeError("no thread can be started any more"))

    def dismiss(self) -> LeavingThreads:
        """Let the reader threads leave, if there are any."""
        self._files.forget()
        return self._readers.dismiss()

    def settle(self, timeout_s: float) -> None:
        """Nothing to do: a read of a file ends when it ends."""

    def _read_and_decode(self, job: ChunkJob, raw: memoryview | None) -> None:
        request, decoder, out = job.request, job.decoder, job.out
        payload: NDArray[np.uint8] | None = None
        n_bytes = 0
        began = self._waits.begin()
        try:
            file = open_file(self._root, request.key)
            if file is not None:
                try:
                    if raw is None:
                        buffer = self._buffers.encoded(_SMALLEST_BUFFER)
                        payload = read_file(file, buffer, self._grow)
                        n_bytes = payload.size
                    else:
                        n_bytes = fill_from_file(file, raw)
                finally:
                    os.close(file)
        except IsADirectoryError:
            # To Zarr it is no chunk either.
            file = None
        except OSError as cause:
            raise read_error(job.array, request, cause) from cause
        self._waits.end(began, n_bytes)
        if file is None:
            self._steps.missing(job)
            return
        self._steps.found(job, n_bytes)
        if payload is not None:
            decoder.decode(payload, request, out)
        elif raw is not None and n_bytes == len(raw):
            decoder.finish(request, out)
        else:
            raise decoder.wrong_size(request, n_bytes)

    def _grow(self, buffer: NDArray[np.uint8], n_bytes: int) -> NDArray[np.uint8]:
        # The buffer is the one of this thread.
        del buffer
        return self._buffers.encoded(2 * n_bytes, keep=n_bytes)


class _WholeFiles:
    """Reads files into memory that is used again, because the first touch of it is slow.

    Parts of files, of shards, are read into new memory: several decode threads share it.
    """

    def __init__(self, root: str, waits: ReadWaits) -> None:
        self._root = root
        self._waits = waits
        self._lock = threading.Lock()
        # By size, and as many bytes at most as may be under way.
        self._spare: list[NDArray[np.uint8]] = []
        self._spare_bytes = 0

    def __call__(self, job: ReadJob) -> NDArray[np.uint8] | None:
        began = self._waits.begin()
        payload = self._read(job)
        self._waits.end(began, 0 if payload is None else payload.size)
        return payload

    def _read(self, job: ReadJob) -> NDArray[np.uint8] | None:
        file = open_file(self._root, job.key)
        if file is None:
            return None
        try:
            if job.span is not None:
                return read_span(file, job.span)
            # A byte more than there is, so that a full buffer means that the file has grown.
            return read_file(file, self._buffer(os.fstat(file).st_size + 1), _twice)
        except IsADirectoryError:
            return None
        finally:
            os.close(file)

    def _buffer(self, n_bytes: int) -> NDArray[np.uint8]:
        with self._lock:
            # The smallest that is large enough, or small files would sit in the buffers of large
            # ones, and these in others that grow to their size.
            place = bisect.bisect_left(self._spare, n_bytes, key=_size)
            if place < len(self._spare):
                buffer = self._spare.pop(place)
                self._spare_bytes -= buffer.size
                return buffer
        return page_aligned(n_bytes)

    def give_back(self, payload: NDArray[np.uint8] | None) -> None:
        """What was read is decoded, and another file may be read into the memory."""
        if payload is None or not isinstance(payload.base, np.ndarray):
            return
        with self._lock:
            bisect.insort(self._spare, payload.base, key=_size)
            self._spare_bytes += payload.base.size
            # The smallest ones are those that cost least to make again.
            while self._spare_bytes > MOST_BYTES and len(self._spare) > 1:
                self._spare_bytes -= self._spare.pop(0).size

    def forget(self) -> None:
        """Let go of the memory."""
        with self._lock:
            self._spare.clear()
            self._spare_bytes = 0


def _singles(job: ReadJob) -> Sequence[ReadJob]:
    return job.singles() if isinstance(job, ShardJob) else (job,)


def _size(buffer: NDArray[np.uint8]) -> int:
    return buffer.size


def _twice(buffer: NDArray[np.uint8], n_bytes: int) -> NDArray[np.uint8]:
    larger = page_aligned(2 * n_bytes)
    larger[:n_bytes] = buffer[:n_bytes]
    return larger
