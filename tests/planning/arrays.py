"""Arrays without data, to plan over."""

import numpy as np

from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.value_decoding import ValueDecoding


def make_array(name, length, chunks, *, field=(4,), field_chunks=(4,), axis="time", store=None):
    """An array of `length` samples, chunked by a step or by a list of edges."""
    if isinstance(chunks, int):
        sample_chunks = AxisChunks.regular(length, chunks)
    else:
        sample_chunks = AxisChunks.rectilinear(chunks)
    field_axes = [AxisChunks.regular(*pair) for pair in zip(field, field_chunks, strict=True)]
    return ArrayGeometry(
        name=name,
        path=name,
        store=store,
        shape=(length, *field),
        sample_axis=0,
        grid=ChunkGrid((sample_chunks, *field_axes)),
        dimension_names=(axis, *(None for _ in field)),
        zarr_format=3,
        metadata="{}",
        decoding=ValueDecoding(np.dtype("f4"), np.dtype("f4")),
    )
