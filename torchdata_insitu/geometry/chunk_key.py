"""The name of a chunk, the unit of residency."""

from collections.abc import Hashable
from typing import NamedTuple


class ChunkKey(NamedTuple):
    """One chunk: all stored chunks of one array over one run of samples and one field tile.

    Planning writes the number of the array, in the order of `array_offsets(views)`, as `source`;
    the chain replaces it by the source that says what a resident chunk holds.

    Attributes:
        source: What the chunk is cut from.
        sample_run: Number of the chunk along the sample axis.
        field_tile: Number of the field tile; 0 where the tile is the whole field.

    Example:
        >>> ChunkKey(source=0, sample_run=7, field_tile=0)
        ChunkKey(source=0, sample_run=7, field_tile=0)
    """

    source: Hashable
    sample_run: int
    field_tile: int

    def of(self, source: Hashable) -> "ChunkKey":
        """The same chunk of another source.

        Example:
            >>> ChunkKey(0, 7, 0).of("t2m")
            ChunkKey(source='t2m', sample_run=7, field_tile=0)
        """
        return ChunkKey(source, self.sample_run, self.field_tile)
