"""What the fetcher is asked for: one chunk into one slot."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from torchdata_insitu.errors import FetchError, GeometryError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry


class Cancelled(FetchError):  # noqa: N818
    """A load that ended because its reads were cancelled, not because anything is wrong."""


class ChunkLoad:
    """One chunk that is to be read and decoded into one slot.

    A load holds whatever `done` is bound to for as long as it runs: a callback that holds the
    fetcher's owner strongly keeps that owner alive through a store that never answers.
    """

    __slots__ = ("array", "done", "field_tile", "n_missing", "out", "sample_run")

    array: ArrayGeometry
    """The array the chunk is cut from; one of those the fetcher was made with."""
    sample_run: int
    """Number of the chunk along the sample axis."""
    field_tile: int
    """Number of the field tile; 0 where the tile is the whole field."""
    out: NDArray[Any]
    """The slot: shape `array.chunk_shape`, dtype `array.dtype`, C-contiguous."""
    done: Callable[["ChunkLoad", BaseException | None], None]
    """Called exactly once, from any thread, after the last writer left `out`, with the first error
    or None. It may submit further loads."""
    n_missing: int
    """Its stored chunks that were not in the store and were filled; all of them once `done` is
    called."""

    def __init__(
        self,
        array: ArrayGeometry,
        sample_run: int,
        field_tile: int,
        out: NDArray[Any],
        done: Callable[["ChunkLoad", BaseException | None], None],
    ) -> None:
        self.array = array
        self.sample_run = sample_run
        self.field_tile = field_tile
        self.out = out
        self.done = done
        self.n_missing = 0

    def check_slot(self) -> None:
        """Refuse a slot into which its chunk cannot be decoded.

        Raises:
            GeometryError: Codecs write bytes: it would hold numbers, but others.
        """
        array, out = self.array, self.out
        if out.shape != array.chunk_shape or out.dtype != array.dtype or not out.flags.c_contiguous:
            msg = (
                f"a slot of array {array.name!r} has shape {array.chunk_shape} and dtype "
                f"{array.dtype} in C order, not {out.shape} and {out.dtype}"
            )
            raise GeometryError(msg)

    def __repr__(self) -> str:
        return f"ChunkLoad({self.array.name!r}, {self.sample_run}, {self.field_tile})"
