"""One array of a Zarr store, from its metadata document to its geometry."""

import json
from typing import Any

from zarr.core.array import parse_array_metadata

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.cf_packing import CFPacking
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.sample_axis import resolve_sample_axis

_FORMAT_2 = 2
_FORMAT_3 = 3


def read_geometry(
    array: ArrayDocument, label: str | None, sample_axis: object, *, decode_cf: bool
) -> ArrayGeometry:
    """Check one array and describe it.

    Raises:
        GeometryError: It cannot be drawn.
    """
    shape = array.shape
    if not shape:
        raise GeometryError(f"{array.label} is a scalar: it has no axis that counts samples")
    stored_dtype = array.stored_dtype()
    if array.is_rectilinear:
        raise GeometryError(f"{array.label} has a rectilinear chunk grid, which is not read yet")
    metadata = _parsed(array)
    if array.is_sharded:
        raise GeometryError(
            f"{array.label} is sharded, which is not read yet: write it without shards"
        )
    is_format_2 = array.zarr_format == _FORMAT_2
    steps = metadata.chunks if is_format_2 else metadata.chunk_grid.chunk_shape
    cf = None
    if decode_cf:
        # xarray takes format 2's fill value for "no value", and opens arrays with dimensions only.
        means_no_value = is_format_2 and array.has_dimension_names
        cf = CFPacking.from_attributes(
            array.name,
            array.attributes,
            stored_dtype,
            fill_value=metadata.fill_value if means_no_value else None,
        )
    return ArrayGeometry(
        name=array.name,
        path=array.path,
        store=label,
        shape=shape,
        stored_dtype=stored_dtype,
        dtype=stored_dtype.newbyteorder("=") if cf is None else cf.dtype,
        sample_axis=resolve_sample_axis(array, sample_axis),
        grid=ChunkGrid(tuple(map(_axis_chunks, shape, steps))),
        dimension_names=array.dimension_names,
        zarr_format=array.zarr_format,
        metadata=array.text(),
        cf=cf,
    )


def _axis_chunks(length: int, step: int) -> AxisChunks:
    return AxisChunks.regular(length, max(1, step))


def _parsed(array: ArrayDocument) -> Any:
    """The metadata as zarr reads it, which knows every codec that is installed."""
    document = json.loads(array.text())
    if array.zarr_format == _FORMAT_3 and document.get("fill_value") is None:
        raise GeometryError(
            f"{array.label} has fill_value null, which Zarr format 3 does not allow: write a number"
        )
    try:
        return parse_array_metadata(document)
    except Exception as error:
        # zarr raises many types here, some of them bare: an array that cannot be used is one case.
        raise GeometryError(
            f"{array.label} of dtype {array.dtype_text} cannot be opened: "
            f"{type(error).__name__}: {error}"
        ) from error
