"""A load on its way: the state that its requests share, and one request of it."""

import sys
import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


class ChunkJob:
    """One request of one load, until it has been decoded or dropped.

    It is in exactly one place at any time: queued or read by a reader, in the queue of the decode
    threads, at one of these, or waiting to be tried again.
    """

    __slots__ = (
        "began_s",
        "decoder",
        "error",
        "has_come",
        "n_attempts",
        "n_damaged",
        "payload",
        "permit",
        "request",
        "running",
    )

    def __init__(self, running: RunningLoad, request: Request, decoder: ChunkDecoder) -> None:
        self.running = running
        self.request = request
        self.decoder = decoder
        self.permit: Permit | None = None
        """For the read under way and its bytes."""
        self.has_come = False
        """Whether the read has ended: with `payload`, `error`, or neither for a missing key."""
        self.payload: NDArray[np.uint8] | None = None
        self.error: BaseException | None = None
        """What the store raised; while the job waits to be tried again, what it failed with."""
        self.n_attempts = 0
        """Times it was read."""
        self.n_damaged = 0
        """Times it did not decode."""
        self.began_s = 0.0
        """When it was read first, by the clock of `Retries`."""

    @property
    def array(self) -> ArrayGeometry:
        """The array."""
        return self.running.load.array

    @property
    def out(self) -> NDArray[Any]:
        """The slot."""
        return self.running.load.out

    def end_permit(self) -> None:
        """The bytes are decoded or dropped."""
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.account.limiter.end(permit)

    def forget(self, failure: BaseException | None) -> None:
        """Be as before the read, but for what was tried and how it failed last."""
        self.has_come = False
        self.payload = None
        self.error = failure


def take_failed(jobs: deque[ChunkJob] | set[ChunkJob]) -> list[ChunkJob]:
    """Remove and return the jobs whose load has failed, under the lock of whoever has them."""
    taken = [job for job in jobs if job.running.has_failed]
    for job in taken:
        jobs.remove(job)
    return taken
