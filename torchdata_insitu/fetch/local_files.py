"""Reads of whole files, however much the system returns at a time."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import obstore.store
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import LocalStore, ObjectStore

from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.page_memory import page_aligned


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


def open_file(root: str, key: str) -> int | None:
    """A descriptor of the file of a key; None where there is no such file.

    A folder of that name has a descriptor too, and a read of it raises `IsADirectoryError`.
    """
    try:
        # As Zarr joins them: a key is a relative path with forward slashes.
        return os.open(f"{root}/{key}", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        # As for Zarr there is no such key below what is a file.
        return None


def read_file(file: int, buffer: NDArray[np.uint8], grow: "Grow") -> NDArray[np.uint8]:
    """The whole content of a file, in a buffer.

    Args:
        file: The descriptor.
        buffer: Where to read to first, of at least a byte.
        grow: Makes a larger buffer.
    """
    total = 0
    # Only a read of nothing is the end: network file systems return less than was asked for.
    while n_bytes := os.readv(file, [memoryview(buffer)[total:]]):
        total += n_bytes
        if total == buffer.size:
            buffer = grow(buffer, total)
    return buffer[:total]


def fill_span(file: int, start: int, target: memoryview) -> int:
    """Read from a place in a file until `target` is full or the file ends; returns the bytes."""
    total = 0
    while total < len(target) and (n_bytes := os.preadv(file, [target[total:]], start + total)):
        total += n_bytes
    return total


def read_span(file: int, span: ByteSpan) -> NDArray[np.uint8]:
    """Part of a file in new memory; less where the file ends before."""
    file_bytes = os.fstat(file).st_size
    start = span.start if span.start >= 0 else max(0, file_bytes + span.start)
    # No more memory than there are bytes: a damaged index states any number.
    buffer = page_aligned(min(span.n_bytes, max(0, file_bytes - start)))
    return buffer[: fill_span(file, start, memoryview(buffer))]


type Grow = Callable[[NDArray[np.uint8], int], NDArray[np.uint8]]
"""From a full buffer and its bytes in use to a larger one that begins with these."""


def fill_from_file(file: int, target: memoryview) -> int:
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
