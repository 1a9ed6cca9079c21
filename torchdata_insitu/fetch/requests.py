"""Which stored chunks make up a chunk, and where each goes in its slot."""

import itertools
from typing import NamedTuple

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.stored_metadata import stored_metadata
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.shard_layout import AxisPlace, ShardPlace, shard_place


class Request(NamedTuple):
    """One stored chunk, and what its content fills."""

    key: str
    """Key in the store: of the stored chunk, or of the shard that it lies in."""
    coordinates: tuple[int, ...]
    """Number of the stored chunk along each axis, in Zarr's order."""
    shape: tuple[int, ...]
    """Shape that the stored chunk decodes to, in Zarr's order; it may reach past the array."""
    target: tuple[slice, ...]
    """Where the values go in the slot."""
    clip: tuple[slice, ...]
    """Which part of the stored chunk, sample axis first, lies inside the array."""
    direct: bool
    """Whether the whole stored chunk, as it lies in memory, is the beginning of the slot."""
    place: ShardPlace | None = None
    """Where it lies in its shard; None where it is an object of its own."""


class _Tile(NamedTuple):
    """A stored chunk along the field axes, in chunks of as many rows: the same in all of these."""

    before: tuple[int, ...]
    """Its number along the axes before the sample axis."""
    behind: tuple[int, ...]
    shape: tuple[int, ...]
    target: tuple[slice, ...]
    clip: tuple[slice, ...]
    direct: bool
    places: tuple[AxisPlace, ...]
    """Along the field axes."""


# Chunks along the sample axis have one length, and the last one another; calendars have four.
_MOST_LENGTHS = 16


class RequestTable:
    """The requests of every chunk of one array; what does not depend on the chunk is kept."""

    def __init__(self, array: ArrayGeometry) -> None:
        self._array = array
        self._metadata = stored_metadata(array)
        self._prefix = f"{array.path}/" if array.path else ""
        axes = array.grid.axes
        # Moving the sample axis to the front leaves the memory as it is only where the axes before
        # it have one element.
        leading = [axis.largest for axis in axes[: array.sample_axis]]
        self._contiguous = all(size == 1 for size in leading)
        # By rows inside the array, and rows that are stored.
        self._tiles: dict[tuple[int, int], list[_Tile]] = {}

    def requests(self, sample_run: int, field_tile: int = 0) -> tuple[Request, ...]:
        """The requests of one chunk, in the order of the stored chunks.

        Raises:
            GeometryError: The array has no such chunk.
        """
        array = self._array
        chunks = array.sample_chunks
        if field_tile != 0 or not 0 <= sample_run < chunks.n_chunks:
            msg = (
                f"array {array.name!r} has the chunks (0, 0) to ({chunks.n_chunks - 1}, 0): "
                f"({sample_run}, {field_tile}) is none of them"
            )
            raise GeometryError(msg)
        start, stop = chunks.bounds(sample_run)
        axis = array.sample_axis
        sample_places = self._axis_places(axis, sample_run)
        requests = []
        for tile in self._tiles_of(stop - start, chunks.stored_size(sample_run)):
            number = key_number = (*tile.before, sample_run, *tile.behind)
            place = None
            if sample_places:
                places = (*tile.places[:axis], *sample_places, *tile.places[axis:])
                key_number = tuple(place.shard for place in places)
                place = shard_place(places)
            requests.append(
                Request(
                    key=self._prefix + self._metadata.encode_chunk_key(key_number),
                    coordinates=number,
                    shape=tile.shape,
                    target=tile.target,
                    clip=tile.clip,
                    direct=tile.direct,
                    place=place,
                )
            )
        return tuple(requests)

    def _tiles_of(self, n_rows: int, stored_rows: int) -> list[_Tile]:
        tiles = self._tiles.get((n_rows, stored_rows))
        if tiles is None:
            # Not before something is read: the budget refuses the chunks of a field of too many.
            axes = self._array.grid.axes
            field_axes = [axis for axis in range(len(axes)) if axis != self._array.sample_axis]
            numbers = itertools.product(*(range(axes[axis].n_chunks) for axis in field_axes))
            tiles = [self._tile(field_axes, number, n_rows, stored_rows) for number in numbers]
            if len(self._tiles) >= _MOST_LENGTHS:
                self._tiles.clear()
            self._tiles[n_rows, stored_rows] = tiles
        return tiles

    def _tile(
        self, field_axes: list[int], numbers: tuple[int, ...], n_rows: int, stored_rows: int
    ) -> _Tile:
        axes = [self._array.grid.axes[axis] for axis in field_axes]
        bounds = [axis.bounds(number) for axis, number in zip(axes, numbers, strict=True)]
        shape = tuple(axis.stored_size(n) for axis, n in zip(axes, numbers, strict=True))
        axis, rows = self._array.sample_axis, slice(0, n_rows)
        return _Tile(
            before=numbers[:axis],
            behind=numbers[axis:],
            shape=(*shape[:axis], stored_rows, *shape[axis:]),
            target=(rows, *(slice(start, stop) for start, stop in bounds)),
            clip=(rows, *(slice(0, stop - start) for start, stop in bounds)),
            direct=self._contiguous and shape == self._array.field_shape,
            places=tuple(
                place
                for axis, number in zip(field_axes, numbers, strict=True)
                for place in self._axis_places(axis, number)
            ),
        )

    def _axis_places(self, axis: int, number: int) -> tuple[AxisPlace, ...]:
        """Where a stored chunk lies in its shard along an axis; nothing without shards."""
        shards = self._array.shards
        if shards is None:
            return ()
        return (shards.axis_place(axis, self._array.grid.axes[axis], number),)
