"""Which stored chunks make up a chunk, and where each goes in its slot."""

import itertools
from dataclasses import dataclass

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.stored_metadata import stored_metadata
from torchdata_insitu.geometry.array_geometry import ArrayGeometry


@dataclass(frozen=True, slots=True)
class Request:
    """One read of one key, and what its content fills."""

    key: str
    """Key in the store."""
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


class RequestTable:
    """The requests of every chunk of one array; what does not depend on the chunk is kept."""

    def __init__(self, array: ArrayGeometry) -> None:
        self._array = array
        self._metadata = stored_metadata(array)
        self._prefix = f"{array.path}/" if array.path else ""
        axes = array.grid.axes
        self._fields = axes[: array.sample_axis] + axes[array.sample_axis + 1 :]
        # Per stored chunk of a field: its coordinates, its shape, its place in a sample, its clip.
        self._tiles = [
            (
                coordinates,
                tuple(
                    axis.step or axis.bounds(number)[1] - axis.bounds(number)[0]
                    for axis, number in zip(self._fields, coordinates, strict=True)
                ),
                tuple(
                    slice(*axis.bounds(number))
                    for axis, number in zip(self._fields, coordinates, strict=True)
                ),
                tuple(
                    slice(0, axis.bounds(number)[1] - axis.bounds(number)[0])
                    for axis, number in zip(self._fields, coordinates, strict=True)
                ),
            )
            for coordinates in itertools.product(*(range(axis.n_chunks) for axis in self._fields))
        ]
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
        stored_rows = chunks.step or stop - start
        axis = array.sample_axis
        requests = []
        for coordinates, shape, place, clip in self._tiles:
            number = (*coordinates[:axis], sample_run, *coordinates[axis:])
            requests.append(
                Request(
                    key=self._prefix + self._metadata.encode_chunk_key(number),
                    coordinates=number,
                    shape=(*shape[:axis], stored_rows, *shape[axis:]),
                    target=(rows, *place),
                    clip=(rows, *clip),
                    direct=self._contiguous and shape == array.field_shape,
                )
            )
        return tuple(requests)
