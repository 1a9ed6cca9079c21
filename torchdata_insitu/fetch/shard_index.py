"""The index of a shard: where its stored chunks begin, and how long they are."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.geometry.shard_layout import ShardLayout

_CHECKSUM_BYTES = 4
_NOWHERE = np.uint64(2**64 - 1)
# What file systems and the interfaces of stores can name.
_LAST_BYTE = np.uint64(2**63 - 1)
_MOST_KEPT_BYTES = 32_000_000


class ShardIndexError(ValueError):
    """Bytes that are no index of a shard."""


class ShardIndex:
    """Where the stored chunks of one shard are.

    Example:
        >>> import zarr, numpy as np
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> t2m = zarr.create_array(
        ...     store, shape=(8, 2), chunks=(2, 2), shards=(8, 2), dtype="f4", compressors=None
        ... )
        >>> t2m[2:] = np.ones((6, 2))
        >>> layout = read_arrays(store)["data"].shards
        >>> shard = np.frombuffer(store._store_dict["c/0/0"].to_bytes(), np.uint8)
        >>> index = ShardIndex.of_shard(shard, layout, n_entries=4)
        >>> index.span(0), index.span(1)
        (None, ByteSpan(start=0, stop=16))
    """

    __slots__ = ("_entries", "state")

    def __init__(self, entries: NDArray[np.uint64]) -> None:
        """Take the two columns of an index: begin and size of each stored chunk, in bytes."""
        self._entries = entries
        self.state: object = None
        """What identifies the content of the shard that it was read from; None where unknown."""

    @property
    def n_bytes(self) -> int:
        """Memory that the index takes."""
        return int(self._entries.nbytes)

    def span(self, entry: int) -> ByteSpan | None:
        """Where a stored chunk is in the shard; None where it is in no place, for it is missing."""
        start, size = map(int, self._entries[entry])
        return None if start == size == _NOWHERE else ByteSpan(start, start + size)

    @classmethod
    def read(cls, encoded: NDArray[np.uint8], layout: ShardLayout, n_entries: int) -> "ShardIndex":
        """Check and read the bytes of an index.

        Raises:
            ShardIndexError: They are too few or too many, are not those that were written, or state
                a place that no object has.
        """
        expected = layout.index_bytes(n_entries)
        if encoded.size != expected:
            msg = f"its index has {expected} bytes, and {encoded.size} of them are there"
            raise ShardIndexError(msg)
        if layout.has_checksum:
            stated = int.from_bytes(encoded[-_CHECKSUM_BYTES:].tobytes(), "little")
            encoded = encoded[:-_CHECKSUM_BYTES]
            if int(crc32c(encoded)) != stated:
                raise ShardIndexError("the crc32c checksum of its index does not match")
        order = ">" if layout.is_big_endian else "<"
        numbers: NDArray[Any] = np.frombuffer(encoded.tobytes(), f"{order}u8")
        entries = numbers.reshape(-1, 2).astype(np.uint64, copy=False)
        _check_places(entries)
        return cls(entries)

    @classmethod
    def of_shard(
        cls, shard: NDArray[np.uint8], layout: ShardLayout, n_entries: int
    ) -> "ShardIndex":
        """Read the index of a whole shard.

        Raises:
            ShardIndexError: As for `read`.
        """
        n_bytes = layout.index_bytes(n_entries)
        return cls.read(
            shard[:n_bytes] if layout.index_first else shard[-n_bytes:], layout, n_entries
        )


def index_span(layout: ShardLayout, n_entries: int) -> ByteSpan:
    """Where the index of a shard is."""
    n_bytes = layout.index_bytes(n_entries)
    return ByteSpan(0, n_bytes) if layout.index_first else ByteSpan.last(n_bytes)


def _check_places(entries: NDArray[np.uint64]) -> None:
    start, size = entries[:, 0], entries[:, 1]
    is_beyond = (start > _LAST_BYTE) | (size > _LAST_BYTE - np.minimum(start, _LAST_BYTE))
    is_missing = (start == _NOWHERE) & (size == _NOWHERE)
    wrong = np.flatnonzero(is_beyond & ~is_missing)
    if wrong.size:
        entry = int(wrong[0])
        msg = (
            f"entry {entry} of its index states a stored chunk of {int(size[entry])} bytes from "
            f"byte {int(start[entry])} on"
        )
        raise ShardIndexError(msg)


class ShardIndexes:
    """The indexes of the shards that were read last, by key; shared by threads.

    A stored chunk is read with the index that was there when its shard was read first. Where the
    bytes then do not decode, whoever finds out forgets the index, since the shard may have been
    written anew.
    """

    def __init__(self, most_bytes: int = _MOST_KEPT_BYTES) -> None:
        """Keep nothing yet, and later at most so many bytes, or one index."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, ShardIndex] = OrderedDict()
        self._most_bytes = most_bytes
        self._n_bytes = 0

    def find(self, key: str) -> ShardIndex | None:
        """The index of a shard, if it is kept."""
        with self._lock:
            index = self._kept.get(key)
            if index is not None:
                self._kept.move_to_end(key)
        return index

    def keep(self, key: str, index: ShardIndex) -> None:
        """Keep the index of a shard, in place of those that were not used for longest."""
        with self._lock:
            self._drop(key)
            self._kept[key] = index
            self._n_bytes += index.n_bytes
            while self._n_bytes > self._most_bytes and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def forget(self, key: str) -> None:
        """Let go of the index of a shard."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        index = self._kept.pop(key, None)
        if index is not None:
            self._n_bytes -= index.n_bytes
