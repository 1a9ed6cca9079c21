"""Where the stored chunks of an array begin and end."""

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import GeometryError

_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class AxisChunks:
    """The stored chunks along one axis, by a constant step or by a list of edges.

    Exactly one of `step` and `edges` is set, so that regular and rectilinear grids are the same
    code to whoever asks for bounds.

    Example:
        >>> axis = AxisChunks.regular(length=10, step=4)
        >>> axis.n_chunks, axis.bounds(2)
        (3, (8, 10))
        >>> AxisChunks.rectilinear([0, 3, 10]).chunk_of(np.array([0, 2, 3, 9])).tolist()
        [0, 0, 1, 1]
    """

    length: int
    """Number of elements along the axis."""
    step: int | None
    """Elements in every chunk, also where the last one reaches past `length`; None with edges."""
    edges: tuple[int, ...] | None
    """`0, ..., length`, strictly increasing; None with a step."""
    overhang: int = 0
    """With edges, how many elements the last stored chunk reaches past `length`."""
    n_chunks: int = field(init=False, repr=False, compare=False)
    """Number of chunks along the axis."""

    def __post_init__(self) -> None:
        """Check that the values describe one grid.

        Raises:
            GeometryError: Both or neither of step and edges, a step below 1, edges out of order, an
                overhang without edges.
        """
        if (self.step is None) == (self.edges is None):
            raise GeometryError(
                f"give a step or edges, exactly one: step={self.step}, edges={self.edges}"
            )
        if self.length < 0 or (self.step is not None and self.step < 1):
            raise GeometryError(
                f"an axis of length {self.length} cannot have chunks of {self.step or self.edges}"
            )
        if self.overhang < 0 or (self.overhang and len(self._edges) < 2):  # noqa: PLR2004
            raise GeometryError(
                f"an overhang belongs to a chunk between edges and is not negative: "
                f"overhang={self.overhang}, step={self.step}, edges={self.edges}"
            )
        if self.edges is not None:
            ends_fit = bool(self.edges) and self.edges[0] == 0 and self.edges[-1] == self.length
            if not ends_fit or (np.diff(self.edges) <= 0).any():
                raise GeometryError(
                    f"chunk edges must rise from 0 to the length {self.length} of the axis: "
                    f"{self.edges}"
                )
        # Kept, for it is asked for several times with every stored chunk.
        n_chunks = len(self._edges) - 1 if self.step is None else -(-self.length // self.step)
        object.__setattr__(self, "n_chunks", n_chunks)

    @classmethod
    def regular(cls, length: int, step: int) -> Self:
        """Chunks of equal size; the last one may reach past the end.

        Example:
            >>> AxisChunks.regular(3, 8).n_chunks
            1
        """
        return cls(length=length, step=step, edges=None)

    @classmethod
    def rectilinear(cls, edges: Iterable[int], *, overhang: int = 0) -> Self:
        """Chunks of any sizes.

        Args:
            edges: First element of every chunk, and the length of the axis as the last value.
            overhang: How many elements the last stored chunk reaches past that.

        Example:
            >>> AxisChunks.rectilinear([0, 31, 59]).largest
            31
        """
        values = tuple(int(edge) for edge in edges)
        length = values[-1] if values else 0
        return cls(length=length, step=None, edges=values, overhang=overhang)

    @classmethod
    def of_sizes(cls, length: int, sizes: Sequence[int]) -> Self:
        """Chunks of these stored sizes, which cover the axis; equal ones become a step.

        Args:
            length: Elements along the axis.
            sizes: Elements of every stored chunk; those that begin at or past the end are no part
                of the grid, and the last one that is may reach past it.

        Raises:
            GeometryError: A size below 1, or fewer elements than the axis has.

        Example:
            >>> AxisChunks.of_sizes(59, [31, 28]).edges, AxisChunks.of_sizes(60, [31, 31]).step
            ((0, 31, 59), 31)
        """
        if any(size < 1 for size in sizes) or sum(sizes) < length:
            raise GeometryError(
                f"chunks of {_shown(sizes)} elements do not cover an axis of {length}: each has at "
                "least 1, and all together as many as the axis"
            )
        ends = [*itertools.accumulate(sizes)]
        n_chunks = bisect.bisect_left(ends, length) + 1 if length else 0
        used = sizes[:n_chunks]
        if not used or len(set(used)) == 1:
            return cls.regular(length, used[0] if used else 1)
        edges = (0, *ends[: n_chunks - 1], length)
        return cls.rectilinear(edges, overhang=ends[n_chunks - 1] - length)

    @property
    def largest(self) -> int:
        """Elements of the longest stored chunk, even where that reaches past `length`."""
        if self.step is not None:
            return self.step
        if not self.n_chunks:
            return 0
        # Python's integers: metadata may say anything of what lies past the end.
        return max(int(np.diff(self._edges).max()), self.stored_size(self.n_chunks - 1))

    def stored_size(self, chunk: int) -> int:
        """Elements of a stored chunk, also where it reaches past `length`.

        Raises:
            GeometryError: There is no such chunk.

        Example:
            >>> AxisChunks.regular(10, 4).stored_size(2)
            4
        """
        start, stop = self.bounds(chunk)
        if self.step is not None:
            return self.step
        return stop - start + (self.overhang if chunk == self.n_chunks - 1 else 0)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """First element of a chunk and the one after its last, cut at the length of the axis.

        Raises:
            GeometryError: There is no such chunk.
        """
        if not 0 <= chunk < self.n_chunks:
            raise GeometryError(f"chunk {chunk} is outside the {self.n_chunks} chunks of the axis")
        if self.step is not None:
            return chunk * self.step, min((chunk + 1) * self.step, self.length)
        return self._edges[chunk], self._edges[chunk + 1]

    def chunk_at(self, element: int) -> int:
        """Number of the chunk that holds one element, whatever its size: no integer of NumPy.

        Args:
            element: An element inside the axis.

        Example:
            >>> AxisChunks.regular(10**30, 10**29).chunk_at(5 * 10**29)
            5
            >>> AxisChunks.rectilinear([0, 3, 10]).chunk_at(3)
            1
        """
        if self.step is not None:
            return element // self.step
        return bisect.bisect_right(self._edges, element) - 1

    def chunk_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of the chunk that holds each element.

        Args:
            index: Elements inside the axis, of any shape.

        Returns:
            Chunk numbers in the shape of `index`.
        """
        if self.step is not None:
            return np.asarray(index, dtype=np.int64) // self.step
        return np.searchsorted(self._edges, index, side="right").astype(np.int64, copy=False) - 1

    def starts(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """First element of each chunk, in the shape of `chunks`."""
        if self.step is not None:
            return np.asarray(chunks, dtype=np.int64) * self.step
        return np.asarray(self._edges, dtype=np.int64)[chunks]

    def all_edges(self) -> NDArray[np.int64]:
        """`0, ..., length`: the first element of every chunk, then the end of the axis."""
        if self.step is not None:
            starts = np.arange(self.n_chunks, dtype=np.int64) * self.step
            return np.append(starts, np.int64(self.length))
        return np.asarray(self._edges, dtype=np.int64)

    @property
    def _edges(self) -> tuple[int, ...]:
        return self.edges if self.edges is not None else ()


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The stored chunks of an array, axis by axis in Zarr's order.

    Example:
        >>> grid = ChunkGrid((AxisChunks.regular(10, 4), AxisChunks.regular(6, 3)))
        >>> grid.shape, grid.ndim, grid.n_chunks
        ((3, 2), 2, 6)
    """

    axes: tuple[AxisChunks, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(axis.n_chunks for axis in self.axes)

    @property
    def n_chunks(self) -> int:
        """Number of stored chunks of the array."""
        return math.prod(self.shape)


def _shown(sizes: Sequence[int]) -> str:
    texts = [str(size) for size in sizes[:_MOST_SHOWN]]
    return ", ".join(texts) + (" ..." if len(sizes) > _MOST_SHOWN else "")
