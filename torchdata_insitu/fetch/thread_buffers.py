"""Memory that a decode thread uses again and again."""

import threading

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.page_memory import page_aligned

_HEADROOM = 4096


class ThreadBuffers(threading.local):
    """Byte buffers per thread: what a read fills, what a codec fills, and what is then cast.

    Reused because the first touch of memory is slow. The first two grow to the largest
    stored chunk seen, the third to a piece of one; all end with the thread.
    """

    def __init__(self) -> None:
        self._encoded: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._decoded: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._cast: NDArray[np.uint8] = np.empty(0, np.uint8)

    def encoded(self, n_bytes: int, *, keep: int = 0) -> NDArray[np.uint8]:
        """A buffer for at least `n_bytes` of stored bytes.

        Args:
            n_bytes: Bytes it must hold.
            keep: Bytes at its beginning that a larger buffer takes over.
        """
        if self._encoded.size < n_bytes:
            larger = page_aligned(n_bytes + _HEADROOM)
            larger[:keep] = self._encoded[:keep]
            self._encoded = larger
        return self._encoded

    def decoded(self, n_bytes: int) -> NDArray[np.uint8]:
        """Scratch of exactly `n_bytes` for one decoded stored chunk."""
        if self._decoded.size < n_bytes:
            self._decoded = page_aligned(n_bytes)
        return self._decoded[:n_bytes]

    def cast(self, n_bytes: int) -> NDArray[np.uint8]:
        """Scratch of exactly `n_bytes` for numbers that are cast into a slot."""
        if self._cast.size < n_bytes:
            self._cast = page_aligned(n_bytes)
        return self._cast[:n_bytes]
