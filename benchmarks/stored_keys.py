"""The keys of a store, and the stored chunks that the bytes of each hold.

For those who decode a store without this library: Zarr's metadata says what there is, and the index
at the end of a shard is read here (Zarr's specification of the sharding codec: pairs of offset and
length, 64 bits each and little-endian, and a checksum of 32 bits).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec

from benchmarks.oracle import Piece

_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class StoredArray:
    """What all keys of one array have in common."""

    name: str
    """Name of the array."""
    array: zarr.Array[Any]
    """The array itself."""
    chunks: tuple[int, ...]
    """Shape of a stored chunk."""
    codecs: tuple[Codec, ...]
    """Of a stored chunk; of an inner one in a shard."""
    per_key: tuple[int, ...]
    """Stored chunks of a key along each axis; all 1 without shards."""

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of a stored chunk."""
        return math.prod(self.chunks) * self.array.dtype.itemsize

    def piece(self, corner: tuple[int, ...], values: NDArray[Any]) -> Piece:
        """A decoded stored chunk without what lies beyond the array."""
        ends = [
            min(start + length, whole)
            for start, length, whole in zip(corner, self.chunks, self.array.shape, strict=True)
        ]
        inside = values[
            tuple(slice(0, end - start) for start, end in zip(corner, ends, strict=True))
        ]
        field = tuple(slice(start, end) for start, end in zip(corner[1:], ends[1:], strict=True))
        return Piece(self.name, np.arange(corner[0], ends[0]), 0, field, inside)


@dataclass(frozen=True)
class StoredKey:
    """One key: a stored chunk, or a shard of them."""

    of: StoredArray
    """The array."""
    key: str
    """Below the store."""
    corner: tuple[int, ...]
    """Where its first value is in the array."""

    def parts(
        self, payload: NDArray[np.uint8]
    ) -> Iterator[tuple[tuple[int, ...], NDArray[np.uint8]]]:
        """Corner and encoded bytes of each stored chunk, from the bytes of the key."""
        n_chunks = math.prod(self.of.per_key)
        if n_chunks == 1:
            yield self.corner, payload
            return
        index = payload[-16 * n_chunks - _CHECKSUM_BYTES : -_CHECKSUM_BYTES]
        entries = np.frombuffer(index.tobytes(), "<u8").reshape(n_chunks, 2).astype(np.int64)
        places = itertools.product(*(range(n) for n in self.of.per_key))
        for place, (start, n_bytes) in zip(places, entries.tolist(), strict=True):
            corner = tuple(
                first + at * length
                for first, at, length in zip(self.corner, place, self.of.chunks, strict=True)
            )
            yield corner, payload[start : start + n_bytes]


def stored_keys(path: Path) -> list[StoredKey]:
    """Every key of every array of a store in format 3 that has all of them, in store order."""
    found = []
    for name, array in sorted(zarr.open_group(path, mode="r").arrays()):
        shape_of_key = array.shards or array.chunks
        of = StoredArray(
            name,
            array,
            array.chunks,
            _inner_codecs(array.metadata.codecs),
            tuple(n // m for n, m in zip(shape_of_key, array.chunks, strict=True)),
        )
        n_keys = [math.ceil(n / step) for n, step in zip(array.shape, shape_of_key, strict=True)]
        for place in itertools.product(*(range(n) for n in n_keys)):
            corner = tuple(at * step for at, step in zip(place, shape_of_key, strict=True))
            key = f"{name}/{array.metadata.encode_chunk_key(place)}"
            found.append(StoredKey(of, key, corner))
    return found


def _inner_codecs(codecs: tuple[Codec, ...]) -> tuple[Codec, ...]:
    first = codecs[0]
    return tuple(first.codecs) if isinstance(first, ShardingCodec) else codecs
