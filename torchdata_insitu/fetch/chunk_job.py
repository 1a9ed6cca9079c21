"""A load on its way: the state that its requests share, and one request of it."""

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.fetch.chunk_load import Cancelled, ChunkLoad
from torchdata_insitu.fetch.decoder import ChunkDecoder
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

    def end_request(self, error: BaseException | None) -> None:
        """One request left the slot; the first error is the one that `done` gets."""
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
        except BaseException:  # noqa: BLE001
            # A decode thread outlives what it calls, or the loads behind this one would never end;
            # and nobody waits for this call who could be told.
            where = threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), where)))


class ChunkJob:
    """One request of one load, until it has been decoded or dropped."""

    __slots__ = ("decoder", "error", "payload", "request", "running")

    def __init__(self, running: RunningLoad, request: Request, decoder: ChunkDecoder) -> None:
        self.running = running
        self.request = request
        self.decoder = decoder
        self.payload: NDArray[np.uint8] | None = None
        self.error: BaseException | None = None

    @property
    def array(self) -> ArrayGeometry:
        """The array."""
        return self.running.load.array

    @property
    def out(self) -> NDArray[Any]:
        """The slot."""
        return self.running.load.out
