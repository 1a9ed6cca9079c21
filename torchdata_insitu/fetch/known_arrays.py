"""What a fetcher has for each of the arrays that it was made for."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.requests import RequestTable
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.geometry.array_geometry import ArrayGeometry


class KnownArray(NamedTuple):
    """One array, and how its chunks are asked for and decoded."""

    array: ArrayGeometry
    table: RequestTable
    decoder: ChunkDecoder


class KnownArrays:
    """The arrays of a fetcher.

    Told apart by identity, as in `ReadCounts`: to hash what they are costs more than a request.
    """

    def __init__(self, arrays: Sequence[ArrayGeometry], buffers: ThreadBuffers) -> None:
        self._known = {
            id(array): KnownArray(array, RequestTable(array), ChunkDecoder(array, buffers))
            for array in arrays
        }

    def __iter__(self) -> Iterator[KnownArray]:
        return iter(self._known.values())

    def of(self, array: ArrayGeometry) -> KnownArray:
        """What there is for an array.

        Raises:
            GeometryError: The fetcher was not made for it.
        """
        known = self._known.get(id(array))
        if known is None:
            names = [known.array.name for known in self]
            msg = f"array {array.name!r} is none of those this fetcher was made for: {names}"
            raise GeometryError(msg)
        return known
