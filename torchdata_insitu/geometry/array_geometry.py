"""What one array is, read from its metadata."""

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchdata_insitu.geometry.cf_packing import CFPacking
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.shard_layout import ShardLayout
from torchdata_insitu.geometry.value_decoding import ValueDecoding

if TYPE_CHECKING:
    from torchdata_insitu.geometry.view import View


@dataclass(frozen=True)
class ArrayGeometry:
    """One array of a store: its shape, chunks and dtypes, without its data.

    A value: equal metadata gives equal geometries, and it pickles. `shape` is in Zarr's axis order;
    everything after decoding is sample first.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(
        ...     store,
        ...     name="t2m",
        ...     shape=(3, 10, 6),
        ...     chunks=(3, 4, 3),
        ...     dtype="f4",
        ...     dimension_names=("level", "time", "lat"),
        ... )
        >>> t2m = read_arrays(store, sample_axis="time")["t2m"]
        >>> t2m.n_samples, t2m.field_shape, t2m.chunk_shape, t2m.stored_per_chunk
        (10, (3, 6), (4, 3, 6), 2)
        >>> t2m.shift(4).offsets, t2m.window(-1, 0).sample_shape
        ((4,), (2, 3, 6))
    """

    name: str
    """Name in the mapping it was opened in: its path, or "data" for a root array."""
    path: str
    """Path inside the store, without a leading slash; empty for a root array."""
    store: str | None
    """Label of the store where a loader reads from several, else None."""
    shape: tuple[int, ...]
    """Zarr's axis order."""
    sample_axis: int
    """Number of the axis along which samples are counted, not negative."""
    grid: ChunkGrid
    """Stored chunks, in Zarr's axis order."""
    dimension_names: tuple[str | None, ...]
    """One per axis; None where the store names none."""
    zarr_format: int
    """2 or 3."""
    metadata: str
    """The array's own metadata document as JSON text, without its attributes: codecs and chunk keys
    can be rebuilt from it without I/O, and a changed comment does not make another array."""
    decoding: ValueDecoding
    """What becomes of stored values on the way into a slot."""
    shards: ShardLayout | None = None
    """How stored chunks lie in shards; None where each has a key of its own."""

    @property
    def stored_dtype(self) -> np.dtype:
        """Of stored values, in the stored byte order; structured where they have fields."""
        return self.decoding.stored_dtype

    @property
    def dtype(self) -> np.dtype:
        """What a slot and a batch hold: native byte order, after field, CF decoding and cast."""
        return self.decoding.dtype

    @property
    def unit(self) -> str | None:
        """The unit of times, which are int64: "ns", "10s"; None for other numbers."""
        return self.decoding.unit

    @property
    def cf(self) -> CFPacking | None:
        """How stored numbers become physical ones; None where they are used as they are."""
        return self.decoding.cf

    @property
    def n_samples(self) -> int:
        """Length of the sample axis."""
        return self.shape[self.sample_axis]

    @property
    def sample_axis_name(self) -> str | None:
        """Dimension name of the sample axis, None where the store has none."""
        return self.dimension_names[self.sample_axis]

    @functools.cached_property
    def field_shape(self) -> tuple[int, ...]:
        """Shape of one sample: the other axes, in order."""
        return self.shape[: self.sample_axis] + self.shape[self.sample_axis + 1 :]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one decoded sample."""
        return math.prod(self.field_shape) * self.dtype.itemsize

    @property
    def sample_chunks(self) -> AxisChunks:
        """Stored chunks along the sample axis."""
        return self.grid.axes[self.sample_axis]

    @functools.cached_property
    def rows_per_chunk(self) -> int:
        """Samples in the longest chunk."""
        return self.sample_chunks.largest

    @functools.cached_property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of a slot: `(rows_per_chunk, *field_shape)`."""
        return (self.rows_per_chunk, *self.field_shape)

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of a slot."""
        return self.rows_per_chunk * self.sample_bytes

    @property
    def n_chunks(self) -> int:
        """Number of chunks, each the whole field over one run of samples."""
        return self.sample_chunks.n_chunks

    @property
    def stored_per_chunk(self) -> int:
        """Stored chunks in one chunk: what reading it asks the store for."""
        counts = self.grid.shape
        return math.prod(counts[: self.sample_axis] + counts[self.sample_axis + 1 :])

    @property
    def stored_chunk_shape(self) -> tuple[int, ...]:
        """Shape of the largest stored chunk, in Zarr's axis order."""
        return tuple(axis.largest for axis in self.grid.axes)

    def shift(self, k: int) -> "View":
        """Read the sample `k` after the anchor; a batch has the shape `(B, *field)`.

        The sign is that of an offset: `shift(4)` is the future. xarray's and pandas' `shift(4)`
        move the data the other way and show the past.

        Raises:
            GeometryError: `k` is not an integer.
        """
        return self._view().shift(k)

    def window(self, *offsets: int) -> "View":
        """Read several samples around the anchor; a batch has `(B, len(offsets), *field)`.

        Args:
            offsets: Samples after the anchor (negative: before), in the order they are wanted.

        Raises:
            GeometryError: No offset, or one that is not an integer.
        """
        return self._view().window(*offsets)

    def _view(self) -> "View":
        # A view holds geometries, so its module imports this one.
        from torchdata_insitu.geometry.view import View  # noqa: PLC0415

        return View(arrays=(self,))
