"""How the stored chunks of an array lie in its shards."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid

_ENTRY_BYTES = 16
_CHECKSUM_BYTES = 4


class AxisPlace(NamedTuple):
    """Where a stored chunk lies in its shard, along one axis."""

    shard: int
    """Number of the shard."""
    inner: int
    """Number of the stored chunk within the shard."""
    n_inner: int
    """Stored chunks that the shard has room for."""
    n_inside: int
    """Those of them that begin inside the array."""


class ShardPlace(NamedTuple):
    """Where a stored chunk lies in its shard."""

    entry: int
    """Number of its entry in the index of the shard."""
    n_entries: int
    """Entries of the index."""
    n_inside: int
    """Entries whose stored chunks begin inside the array."""


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Shards of one array: which keys there are, and what the index of each looks like.

    The index states, for each stored chunk in C order, two integers of 8 bytes: where it begins in
    the object and how many bytes it has. Source: Zarr v3 codec `sharding_indexed`, version 1.0.

    Example:
        >>> shards = ChunkGrid((AxisChunks.regular(25, 8), AxisChunks.regular(6, 6)))
        >>> layout = ShardLayout(shards, index_first=False, has_checksum=True, is_big_endian=False)
        >>> layout.axis_place(0, AxisChunks.regular(25, 2), chunk=12)
        AxisPlace(shard=3, inner=0, n_inner=4, n_inside=1)
        >>> layout.index_bytes(n_entries=4)
        68
    """

    grid: ChunkGrid
    """The shards, in Zarr's axis order."""
    index_first: bool
    """Whether the index is at the beginning of the object, else it is at its end."""
    has_checksum: bool
    """Whether 4 bytes of CRC-32C follow the integers of the index."""
    is_big_endian: bool
    """Byte order of the integers of the index."""

    def axis_place(self, axis: int, chunks: AxisChunks, chunk: int) -> AxisPlace:
        """Where a stored chunk lies along one axis.

        Args:
            axis: Number of the axis.
            chunks: Stored chunks along it, all of one size that divides every shard.
            chunk: Number of one of them.
        """
        shards = self.grid.axes[axis]
        size = chunks.stored_size(chunk)
        begin = chunk * size
        # Not by `chunk_of`: metadata may state shards larger than any integer of numpy.
        shard = shards.chunk_at(begin)
        first, stop = shards.bounds(shard)
        n_inner = shards.stored_size(shard) // size
        return AxisPlace(shard, (begin - first) // size, n_inner, -(-(stop - first) // size))

    def index_bytes(self, n_entries: int) -> int:
        """Bytes of an index."""
        return n_entries * _ENTRY_BYTES + (_CHECKSUM_BYTES if self.has_checksum else 0)


def shard_place(places: tuple[AxisPlace, ...]) -> ShardPlace:
    """Join the places along all axes.

    Example:
        >>> shard_place((AxisPlace(0, 1, 4, 4), AxisPlace(2, 2, 3, 3)))
        ShardPlace(entry=5, n_entries=12, n_inside=12)
    """
    entry = 0
    for place in places:
        entry = entry * place.n_inner + place.inner
    return ShardPlace(
        entry,
        math.prod(place.n_inner for place in places),
        math.prod(place.n_inside for place in places),
    )
