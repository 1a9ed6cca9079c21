"""One array of a Zarr store, from its metadata document to its geometry."""

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from zarr.codecs import ShardingCodec
from zarr.core.array import parse_array_metadata
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.metadata import ArrayV3Metadata
from zarr.errors import ZarrUserWarning
from zarr.registry import get_numcodec

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.array_options import ArrayOption
from torchdata_insitu.geometry.chunk_layout import chunk_layout, with_regular_grid
from torchdata_insitu.geometry.codec_rules import check_codecs
from torchdata_insitu.geometry.fill_value import default_fill_value, with_fill_value
from torchdata_insitu.geometry.sample_axis import resolve_sample_axis
from torchdata_insitu.geometry.value_decoding import ValueDecoding, chosen_field

_FORMAT_2 = 2
_FORMAT_3 = 3
_MOST_ELEMENTS = 2**63 - 1


def read_geometry(array: ArrayDocument, label: str | None, option: ArrayOption) -> ArrayGeometry:
    """Check one array and describe it.

    Raises:
        GeometryError: It cannot be drawn.
    """
    shape = array.shape
    if not shape:
        raise GeometryError(f"{array.label} is a scalar: it has no axis that counts samples")
    # Before anything of Zarr sees the document: an object array's fill value is never looked at.
    stored_dtype = array.stored_dtype()
    chosen_field(array.name, stored_dtype, option.field)
    check_codecs(array)
    layout = chunk_layout(array)
    longest = max(*shape, *(axis.largest for axis in layout.grid.axes))
    if longest > _MOST_ELEMENTS:
        raise GeometryError(
            f"{array.label} has an axis or a chunk of {longest} elements in its metadata: indices "
            f"go up to {_MOST_ELEMENTS}"
        )
    array = with_fill_value(array)
    metadata = _parsed(array)
    _check_same_dtype(array, stored_dtype, metadata.dtype.to_native_dtype())
    # xarray takes format 2's fill value for "no value", and opens arrays with dimensions only.
    means_no_value = array.zarr_format == _FORMAT_2 and array.has_dimension_names
    decoding = ValueDecoding.choose(
        array.name,
        stored_dtype,
        field=option.field,
        attributes=array.attributes if option.decode_cf else None,
        fill_value=metadata.fill_value if means_no_value else None,
        dtype=option.dtype,
    )
    return ArrayGeometry(
        name=array.name,
        path=array.path,
        store=label,
        shape=shape,
        sample_axis=resolve_sample_axis(array, option.sample_axis),
        grid=layout.grid,
        dimension_names=array.dimension_names,
        zarr_format=array.zarr_format,
        metadata=array.text(),
        decoding=decoding,
        shards=layout.shards,
    )


def _check_same_dtype(array: ArrayDocument, ours: np.dtype, zarrs: np.dtype) -> None:
    """Refuse what Zarr, which decodes and fills, takes for other values than this package does."""
    if ours.newbyteorder("=") != zarrs.newbyteorder("="):
        raise GeometryError(
            f"{array.label} of dtype {array.dtype_text} cannot be opened: it is {ours} here and "
            f"{zarrs} to the installed Zarr; check which data types are registered with Zarr"
        )


def _parsed(array: ArrayDocument) -> Any:
    """The metadata as zarr reads it, which knows every codec that is installed."""
    document = with_regular_grid(json.loads(array.text()))
    try:
        metadata = _whole_metadata(document)
    except Exception as error:
        # zarr raises many types here, some of them bare: an array that cannot be used is one case.
        what = _fill_value_fault(array, document) or f"{array.label} of dtype {array.dtype_text}"
        raise GeometryError(f"{what} cannot be opened: {type(error).__name__}: {error}") from error
    return metadata


def _fill_value_fault(array: ArrayDocument, document: dict[str, Any]) -> str | None:
    """Whether Zarr takes the metadata with another fill value; errors name dtype or value only."""
    default = None
    if array.zarr_format == _FORMAT_3:
        default = default_fill_value(array.stored_dtype())
    try:
        _whole_metadata({**document, "fill_value": default})
    except Exception:  # noqa: BLE001 - whatever it is, the first error has told it
        return None
    given = repr(document["fill_value"]) if "fill_value" in document else "missing"
    return f"{array.label} of dtype {array.dtype_text}, whose fill_value is {given:.80},"


def _whole_metadata(document: dict[str, Any]) -> Any:
    metadata: Any = parse_array_metadata(document)
    if isinstance(metadata, ArrayV3Metadata):
        with warnings.catch_warnings():
            # That codecs around a shard rule out partial reads: the shard is the stored chunk then.
            warnings.simplefilter("ignore", ZarrUserWarning)
            _check_chain(metadata.codecs)
    return metadata


def _check_chain(codecs: Sequence[Any]) -> None:
    """Check what Zarr itself looks at with the first chunk only.

    That is the order of codecs, in shards too, and whether numcodecs makes those it is asked for.
    """
    BatchedCodecPipeline.from_codecs(codecs)
    for codec in codecs:
        if isinstance(codec, ShardingCodec):
            _check_chain(codec.codecs)
            _check_chain(codec.index_codecs)
        elif hasattr(codec, "codec_config"):
            get_numcodec(codec.codec_config)
