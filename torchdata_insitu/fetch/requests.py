"""Which stored chunks make up a chunk, and where each goes in its slot."""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.stored_metadata import stored_metadata
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.shard_layout import AxisPlace, ShardPlace, shard_place


@dataclass(frozen=True, slots=True)
class Request:
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
    """A stored chunk along the field axes: the same at every place of the sample axis."""

    coordinates: tuple[int, ...]
    shape: tuple[int, ...]
    target: tuple[slice, ...]
    clip: tuple[slice, ...]
    places: tuple[AxisPlace, ...]


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
        rows = slice(0, stop - start)
        stored_rows = chunks.stored_size(sample_run)
        axis = array.sample_axis
        sample_places = self._axis_places(axis, sample_run)
        requests = []
        for tile in self._tiles:
            number = (*tile.coordinates[:axis], sample_run, *tile.coordinates[axis:])
            places = (*tile.places[:axis], *sample_places, *tile.places[axis:])
            key_number = tuple(place.shard for place in places) if places else number
            requests.append(
                Request(
                    key=self._prefix + self._metadata.encode_chunk_key(key_number),
                    coordinates=number,
                    shape=(*tile.shape[:axis], stored_rows, *tile.shape[axis:]),
                    target=(rows, *tile.target),
                    clip=(rows, *tile.clip),
                    direct=self._contiguous and tile.shape == array.field_shape,
                    place=shard_place(places) if places else None,
                )
            )
        return tuple(requests)

    @functools.cached_property
    def _tiles(self) -> list[_Tile]:
        # Not before something is read: the budget refuses the chunks of a field of too many.
        axes = self._array.grid.axes
        field_axes = [axis for axis in range(len(axes)) if axis != self._array.sample_axis]
        counts = (range(axes[axis].n_chunks) for axis in field_axes)
        return [self._tile(field_axes, numbers) for numbers in itertools.product(*counts)]

    def _tile(self, field_axes: list[int], numbers: tuple[int, ...]) -> _Tile:
        axes = [self._array.grid.axes[axis] for axis in field_axes]
        bounds = [axis.bounds(number) for axis, number in zip(axes, numbers, strict=True)]
        return _Tile(
            coordinates=numbers,
            shape=tuple(axis.stored_size(n) for axis, n in zip(axes, numbers, strict=True)),
            target=tuple(slice(start, stop) for start, stop in bounds),
            clip=tuple(slice(0, stop - start) for start, stop in bounds),
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
