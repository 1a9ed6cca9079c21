"""The steps of a job that all ways of reading have in common."""

import threading
from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.fetch.chunk_job import ChunkJob, ReadJob
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.fetch_errors import missing_error, read_error
from torchdata_insitu.fetch.limiter import Account, Permit
from torchdata_insitu.fetch.read_counts import ReadCounts
from torchdata_insitu.fetch.retries import Retries
from torchdata_insitu.fetch.shard_job import ShardJob


class JobSteps:
    """A permit, a read that begins, bytes that come, a decode: counted and charged.

    Attributes:
        threads: Where a job goes whose bytes came.
        account: Whose permits it asks for.
        take_apart: What the read of a shard has brought goes here; may raise `DecodeError`.
    """

    def __init__(
        self,
        threads: DecodeThreads,
        counts: ReadCounts,
        account: Account,
        retries: Retries,
        *,
        missing_is_error: bool,
        take_apart: Callable[[ShardJob, NDArray[np.uint8] | None], None],
    ) -> None:
        self.threads = threads
        self.account = account
        self.take_apart = take_apart
        self._limiter = account.limiter
        self._counts = counts
        self._retries = retries
        self._missing_is_error = missing_is_error

    def ask(self, job: ReadJob, n_bytes: int | None = None) -> Permit | None:
        """A permit for the read of a job; None where `account.granted` gets one later.

        Args:
            job: What is to be read.
            n_bytes: Encoded bytes to reckon with; None for what earlier reads of the array brought.
        """
        if n_bytes is None:
            n_bytes = job.expected_bytes(self._counts.of(job.array).expected_bytes)
        return self._limiter.ask(self.account, n_bytes)

    def begin(self, job: ReadJob, permit: Permit) -> None:
        """The read of a job begins."""
        permit.is_idle = False
        job.permit = permit
        is_again = not self._retries.begin(job) and not job.goes_on
        job.goes_on = False
        self._counts.requested(job.array, job.count_reads(), again=is_again)

    def come(
        self,
        job: ReadJob,
        payload: NDArray[np.uint8] | None,
        error: BaseException | None,
        lock: threading.Lock,
        is_wanted: Callable[[ReadJob], bool],
    ) -> None:
        """The read of a job has ended: hand it to the decode threads, or drop what came.

        Args:
            job: The job.
            payload: The stored bytes; None where there is no such key, or with an error.
            error: What the store raised.
            lock: Held while the job is handed over: who cancels under it finds the job with the
                reader or in the queue, and no thread is started for it after the fetcher was
                closed.
            is_wanted: Takes the job from the reader, under the lock; False where somebody else has
                taken and ended it.
        """
        permit = job.permit
        if permit is not None:
            permit.landed(0 if payload is None else payload.size)
        refused: RuntimeError | None = None
        with lock:
            wanted = is_wanted(job)
            if wanted:
                job.has_come, job.payload, job.error = True, payload, error
                if payload is not None:
                    self._found(job, payload.size)
                try:
                    self.threads.put((job,))
                except RuntimeError as cause:
                    refused = cause
        if not wanted:
            # `job` has no load any more; its permit is all that is left of it.
            job.end_permit()
        elif refused is not None:
            job.end_permit()
            job.end(refused)

    def decode(self, job: ReadJob) -> bool:
        """Decode a stored chunk that has come into its slot; runs on a decode thread.

        Returns:
            False where others go on with what has come: it was the read of a shard.

        Raises:
            ReadError: The store raised, or the chunk is missing and must not.
            DecodeError: The bytes are not the stored chunk.
        """
        if job.permit is not None:
            job.permit.is_idle = False
        if job.error is not None:
            raise read_error(job.array, job.request, job.error)
        payload, job.payload = job.payload, None
        if isinstance(job, ShardJob):
            self.take_apart(job, payload)
            return False
        stored_chunk = cast("ChunkJob", job)
        if payload is None:
            self.missing(stored_chunk)
        else:
            stored_chunk.decoder.decode(payload, job.request, stored_chunk.out)
        return True

    def found(self, job: ReadJob, n_bytes: int) -> None:
        """Bytes came that are decoded at once, by the thread that has read them.

        The request counts on until the end of the decode, where nobody waits for its place.
        """
        permit = job.permit
        if permit is not None and self._limiter.is_waited_for:
            permit.landed(n_bytes)
            permit.is_idle = False
        self._found(job, n_bytes)

    def missing(self, job: ChunkJob) -> None:
        """There is no such key: fill the slot.

        Raises:
            ReadError: That is not allowed.
        """
        if self._missing_is_error:
            raise missing_error(job.array, job.request)
        job.decoder.missing(job.request, job.out)
        self._counts.missed(job.array)
        job.running.note_missing()

    def _found(self, job: ReadJob, n_bytes: int) -> None:
        if isinstance(job, ShardJob) or job.n_damaged:
            self._counts.came(n_bytes)
        else:
            self._counts.found(job.array, n_bytes)
