"""Reads of files in the local file system, fused with their decoding."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import obstore.store
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import LocalStore, ObjectStore

from torchdata_insitu.fetch.chunk_job import ChunkJob
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.fetch_errors import read_error
from torchdata_insitu.fetch.read_counts import ReadCounts
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers

_SMALLEST_BUFFER = 1 << 16


def local_root(store: Store) -> str | None:
    """Folder whose files are the keys of a store, None where only the store knows.

    Only the very classes of Zarr and obstore count: a subclass or a wrapper may override `get`.
    """
    if not hasattr(os, "readv"):
        return None
    if type(store) is LocalStore:
        return os.fspath(store.root)
    if type(store) is ObjectStore and type(store.store) is obstore.store.LocalStore:
        prefix = store.store.prefix
        return None if prefix is None else os.fspath(prefix)
    return None


class LocalFileReader:
    """Opens, reads and closes a file per stored chunk on the decode threads.

    A file is read into a buffer of the thread that decodes it, which costs less than a new buffer
    per chunk or a second thread; plain bytes are read into the slot.
    """

    def __init__(
        self, root: str, threads: DecodeThreads, buffers: ThreadBuffers, counts: ReadCounts
    ) -> None:
        self._root = root
        self._threads = threads
        self._buffers = buffers
        self._counts = counts

    def submit(self, jobs: Sequence[ChunkJob]) -> None:
        """Queue jobs for the decode threads."""
        self._threads.put(jobs)

    def take_waiting(self) -> list[ChunkJob]:
        """Jobs whose bytes have not come: none, since a read and its decode are one step."""
        return []

    def land(self, job: ChunkJob) -> None:
        """Read and decode one stored chunk into its slot; runs on a decode thread.

        Raises:
            ReadError: The file exists but cannot be read.
            DecodeError: Its bytes are not the stored chunk.
        """
        request, decoder, out = job.request, job.decoder, job.out
        raw = decoder.raw_target(request, out)
        self._counts.asked(job.array)
        try:
            # As Zarr joins them: a key is a relative path with forward slashes.
            file = os.open(f"{self._root}/{request.key}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._counts.missed(job.array)
            decoder.missing(request, out)
            return
        except OSError as cause:
            raise read_error(job.array, request, cause) from cause
        payload: NDArray[np.uint8] | None = None
        try:
            if raw is None:
                payload = self._read(file)
                n_bytes = payload.size
            else:
                n_bytes = _fill(file, raw)
        except OSError as cause:
            raise read_error(job.array, request, cause) from cause
        finally:
            os.close(file)
        self._counts.found(job.array, n_bytes)
        if payload is not None:
            decoder.decode(payload, request, out)
        elif raw is not None and n_bytes == len(raw):
            decoder.finish(request, out)
        else:
            raise decoder.wrong_size(request, n_bytes)

    def _read(self, file: int) -> NDArray[np.uint8]:
        """The whole file, in the buffer of this thread."""
        buffer = self._buffers.encoded(_SMALLEST_BUFFER)
        total = 0
        # Only a read of nothing is the end: network file systems return less than was asked for.
        while n_bytes := os.readv(file, [memoryview(buffer)[total:]]):
            total += n_bytes
            if total == buffer.size:
                buffer = self._buffers.encoded(2 * total, keep=total)
        return buffer[:total]


def _fill(file: int, target: memoryview) -> int:
    """Read a file into `target`; returns the bytes of the file, also where they do not fit."""
    surplus = bytearray(1)
    total = 0
    views: list[Any] = [target, surplus]
    while n_bytes := os.readv(file, views):
        total += n_bytes
        if total > len(target):
            return os.fstat(file).st_size
        views = [target[total:], surplus]
    return total
