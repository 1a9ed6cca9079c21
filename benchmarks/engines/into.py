"""Files read and decoded into memory that stays in the cache of a core: the hard limit."""

import os
import threading
from typing import Any

import numpy as np
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, ZstdCodec

from benchmarks.engines.bare_decode import BareDecode
from benchmarks.engines.engine import Task, UnsupportedError
from benchmarks.stored_keys import StoredArray, StoredKey
from torchdata_insitu.page_memory import page_aligned


class Into(BareDecode):
    """`readv` and `numcodecs` with `decode(out=)`, into two buffers of each thread.

    Partly out of reach: values that somebody wants have to be written to memory.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._codecs = {name: _codec(of) for name, of in self._arrays.items()}
        files = [task.path / key.key for key in self._keys]
        self._longest = max(file.stat().st_size for file in files)
        self._buffers = threading.local()

    def read(self, key: StoredKey) -> NDArray[np.uint8]:
        """See `BareDecode.read`.

        Raises:
            OSError: The file has grown or shrunk.
        """
        encoded = self._buffer("encoded", self._longest + 1)
        file = os.open(self.task.path / key.key, os.O_RDONLY)
        try:
            total = 0
            while n_bytes := os.readv(file, [memoryview(encoded)[total:]]):
                total += n_bytes
        finally:
            os.close(file)
        return encoded[:total]

    def decode(self, of: StoredArray, payload: NDArray[np.uint8]) -> NDArray[Any]:
        """See `BareDecode.decode`."""
        codec = self._codecs[of.name]
        if codec is None:
            decoded = payload
        else:
            decoded = self._buffer("decoded", of.chunk_bytes)[: of.chunk_bytes]
            codec.decode(payload, decoded)
        return decoded.view(of.array.dtype).reshape(of.chunks)

    def _buffer(self, name: str, n_bytes: int) -> NDArray[np.uint8]:
        buffer: NDArray[np.uint8] | None = getattr(self._buffers, name, None)
        if buffer is None or buffer.size < n_bytes:
            buffer = page_aligned(n_bytes)
            setattr(self._buffers, name, buffer)
        return buffer


def _codec(of: StoredArray) -> Any:
    known = {ZstdCodec: Zstd, BloscCodec: Blosc}
    names = [type(codec) for codec in of.codecs[1:]]
    if not names:
        return None
    if len(names) > 1 or names[0] not in known:
        raise UnsupportedError(f"the codecs {of.codecs}")
    return known[names[0]]()
