"""A load on its way: the state that its requests share, and one stored chunk of it."""

import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.chunk_load import Cancelled, ChunkLoad
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.limiter import Permit
from torchdata_insitu.fetch.requests import Request
from torchdata_insitu.geometry.array_geometry import ArrayGeometry


class Generation:
    """The loads submitted between two cancellations."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


class RunningLoad:
    """Counts the requests of one load down and calls `done` after the last one left the slot."""

    __slots__ = ("_error", "_left", "_lock", "generation", "load")

    def __init__(
        self, load: ChunkLoad, n_requests: int, generation: Generation, lock: threading.Lock
    ) -> None:
        self.load = load
        self.generation = generation
        self._left = n_requests
        self._error: BaseException | None = None
        self._lock = lock

    @property
    def is_over(self) -> bool:
        """Whether it has failed or was cancelled, so that further reads are of no use."""
        return self._error is not None or self.generation.cancelled

    @property
    def has_failed(self) -> bool:
        """Whether another of its requests has failed.

        What waits for a reader is then ended by the reader; after a cancellation it is ended by
        whoever cancels, before the call returns.
        """
        return self._error is not None

    def note_missing(self) -> None:
        """A stored chunk of it, whose request has not ended, was missing and is filled."""
        with self._lock:
            self.load.n_missing += 1

    def end_request(self, error: BaseException | None) -> None:
        """One request left the slot; the first error is the one that `done` gets.

        What `done` raises is reported and goes no further, but for an interrupt of the main thread.
        """
        with self._lock:
            if error is not None and self._error is None:
                self._error = error
            self._left -= 1
            if self._left:
                return
            error = self._error
        load = self.load
        # What still refers to this object, a frame of a kept traceback, must not keep the slot.
        del self.load
        if error is None and self.generation.cancelled:
            error = Cancelled(f"the reads of {load!r} were cancelled")
        try:
            load.done(load, error)
        except BaseException as raised:
            where = threading.current_thread()
            if where is threading.main_thread() and not isinstance(raised, Exception):
                # An interrupt, which is for whoever called: this is no thread of ours.
                raise
            # A decode thread outlives what it calls, or the loads behind this one would never end;
            # and nobody waits for this call who could be told.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), where)))


class ReadJob(Protocol):
    """One read, until what it brought is decoded or dropped.

    A job is in exactly one place at any time: queued or read by a reader, in the queue of the
    decode threads, at one of these, or waiting to be tried again. Who has it ends it, or passes it
    on.
    """

    permit: Permit | None
    """For the read under way and its bytes."""
    has_come: bool
    """Whether the read has ended: with `payload`, `error`, or neither for a missing key."""
    payload: NDArray[np.uint8] | None
    error: BaseException | None
    """What the store raised; while the job waits to be tried again, what it failed with."""
    n_attempts: int
    """Times it was read."""
    n_damaged: int
    """Times it did not decode."""
    began_s: float
    """When it was read first, by the clock of `Retries`."""
    goes_on: bool
    """Whether its read goes on where that of an index has ended, and is no further try."""
    tag: str | None
    """Of a shard: the content that is asked for, or that has come, where it has a tag."""

    @property
    def array(self) -> ArrayGeometry:
        """The array."""

    @property
    def request(self) -> Request:
        """A stored chunk that the read is for."""

    @property
    def key(self) -> str:
        """What is read."""

    @property
    def span(self) -> ByteSpan | None:
        """Which bytes of it; None for all."""

    @property
    def is_over(self) -> bool:
        """Whether a further read is of no use to anybody."""

    @property
    def has_failed(self) -> bool:
        """Whether every load that it is for has failed."""

    def expected_bytes(self, stored_chunk: int) -> int:
        """Encoded bytes to reckon with, where a stored chunk of the array has so many."""

    def count_reads(self) -> int:
        """Stored chunks that are read for the first time; called as a read begins."""

    def end(self, error: BaseException | None) -> None:
        """It is over, for every load that it is for."""

    def end_permit(self) -> None:
        """The bytes are decoded or dropped."""

    def forget(self, failure: BaseException | None) -> None:
        """Be as before the read, but for what was tried and how it failed last."""

    def take_failed(self) -> "list[ReadJob]":
        """What may be ended at once, since the load it is for has failed; itself if that is all."""


class ReadState:
    """What is known of the read of a job."""

    __slots__ = (
        "began_s",
        "error",
        "goes_on",
        "has_come",
        "n_attempts",
        "n_damaged",
        "payload",
        "permit",
        "tag",
    )

    def __init__(self) -> None:
        self.permit: Permit | None = None
        self.has_come = False
        self.payload: NDArray[np.uint8] | None = None
        self.error: BaseException | None = None
        self.n_attempts = 0
        self.n_damaged = 0
        self.began_s = 0.0
        self.goes_on = False
        self.tag: str | None = None

    def end_permit(self) -> None:
        """See `ReadJob.end_permit`."""
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.account.limiter.end(permit)

    def forget(self, failure: BaseException | None) -> None:
        """See `ReadJob.forget`."""
        self.has_come = False
        self.payload = None
        self.error = failure


class ChunkJob(ReadState):
    """One stored chunk of one load, read or to be read by itself."""

    __slots__ = ("_is_counted", "decoder", "request", "running")

    span = None

    def __init__(self, running: RunningLoad, request: Request, decoder: ChunkDecoder) -> None:
        super().__init__()
        self.running = running
        self.request = request
        self.decoder = decoder
        self._is_counted = False

    @property
    def array(self) -> ArrayGeometry:
        """See `ReadJob`."""
        return self.running.load.array

    @property
    def out(self) -> NDArray[Any]:
        """The slot."""
        return self.running.load.out

    @property
    def key(self) -> str:
        """See `ReadJob`."""
        return self.request.key

    @property
    def is_over(self) -> bool:
        """See `ReadJob`."""
        return self.running.is_over

    @property
    def has_failed(self) -> bool:
        """See `ReadJob`."""
        return self.running.has_failed

    def expected_bytes(self, stored_chunk: int) -> int:
        """See `ReadJob`."""
        return stored_chunk

    def count_reads(self) -> int:
        """See `ReadJob`."""
        is_counted, self._is_counted = self._is_counted, True
        return 0 if is_counted else 1

    def end(self, error: BaseException | None) -> None:
        """See `ReadJob`."""
        self.running.end_request(error)

    def take_failed(self) -> list[ReadJob]:
        """See `ReadJob`."""
        return [self] if self.running.has_failed else []


def take_failed(jobs: deque[ReadJob] | set[ReadJob] | list[ReadJob]) -> list[ReadJob]:
    """Remove and return what is for loads that have failed, under the lock of whoever has them."""
    taken: list[ReadJob] = []
    for job in list(jobs):
        failed = job.take_failed()
        if job in failed:
            jobs.remove(job)
        taken += failed
    return taken


def end_jobs(jobs: Iterable[ReadJob], error: BaseException | None = None) -> None:
    """End jobs, all of them also where an interrupt comes in between."""
    interrupt: BaseException | None = None
    for job in jobs:
        try:
            job.end(error)
        except BaseException as raised:  # noqa: BLE001 - raised once the others have ended
            interrupt = raised
    if interrupt is not None:
        raise interrupt
