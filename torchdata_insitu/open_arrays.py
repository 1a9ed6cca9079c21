"""The arrays of a store, from a store or a URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchdata_insitu.fetch.store_like import StoreLike
from torchdata_insitu.fetch.stores import close_own_store, open_own_store, store_text
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.metadata import read_arrays

if TYPE_CHECKING:
    from torchdata_insitu.geometry.torch_dtypes import SlotDType

__all__ = ["open_arrays"]


def open_arrays(
    store_or_url: StoreLike,
    /,
    names: Sequence[str] | str | None = None,
    *,
    sample_axis: int | str | Mapping[str, int | str] = 0,
    decode_cf: bool = True,
    field: str | Mapping[str, str] | None = None,
    dtype: SlotDType | Mapping[str, SlotDType] | None = None,
    store: str | None = None,
) -> dict[str, ArrayGeometry]:
    """The arrays of a store, by name: shapes, chunks and data types, no data.

    Without names, all data arrays of the group; coordinates and grid mappings are left out, and so
    is what cannot be read as these options say, such as text. Arrays of nested groups go by their
    path, a store whose root is an array opens as `"data"`.

    What torch holds is kept: booleans, integers, floats and complex numbers of standard sizes, in
    native byte order. `datetime64` and `timedelta64` are int64, NaT the least of them, with their
    unit in `ArrayGeometry.unit` and `InSituLoader.units`. Text and objects are refused.

    Args:
        store_or_url: a Zarr store, or what `open_store` takes.
        names: the arrays wanted; a name is taken at its word, whatever kind of array it is.
        sample_axis: the axis along which samples are counted, as number or dimension name, for all
            arrays or by array.
        decode_cf: decode CF masks, scales and offsets as xarray does.
        field: the field to read of structured values, for all arrays or by array.
        dtype: what a batch holds, as `"float32"` or a dtype of numpy or torch, for all arrays or by
            array; an array that a mapping does not name keeps its own. Values are cast when they
            are decoded, so that memory holds the smaller ones, and only within the same kind
            (integers to floats, not floats to integers). A value that does not fit is an error when
            its chunk is read; that floats have fewer digits is not.
        store: label of this store, for a loader over several.

    Raises:
        GeometryError: no such array, or one that cannot be read as these options say.
        ReadError: the store cannot be read.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3), dtype="float64")
        >>> t2m = tdi.open_arrays(store, dtype="float32")["t2m"]
        >>> t2m.field_shape, t2m.dtype, t2m.chunk_bytes
        ((2, 3), dtype('float32'), 96)
    """
    opened = open_own_store(store_or_url)
    try:
        return read_arrays(
            opened,
            names,
            sample_axis=sample_axis,
            decode_cf=decode_cf,
            field=field,
            dtype=dtype,
            label=store,
            where=store_text(opened),
        )
    finally:
        close_own_store(opened)
