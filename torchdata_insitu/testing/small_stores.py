"""Small Zarr stores whose every value says where it belongs."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numcodecs
import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore

from torchdata_insitu.errors import GeometryError

_V3_COMPRESSORS: dict[str, tuple[Any, ...]] = {
    "none": (),
    "zstd": (ZstdCodec(level=1),),
    "zstd+crc32c": (ZstdCodec(level=1), Crc32cCodec()),
    "crc32c": (Crc32cCodec(),),
    "blosc": (BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"),),
    "gzip": (GzipCodec(level=1),),
}
_V2_COMPRESSORS: dict[str, Any] = {
    "none": None,
    "zstd": numcodecs.Zstd(level=1),
    "blosc": numcodecs.Blosc(cname="lz4", clevel=3),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(level=1),
    "zlib": numcodecs.Zlib(level=1),
}


def make_store(
    arrays: Mapping[str, NDArray[Any] | Sequence[int]],
    *,
    chunks: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    zarr_format: Literal[2, 3] = 3,
    codec: str = "zstd",
    dtype: DTypeLike = "float32",
    path: str | os.PathLike[str] | None = None,
    dims: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Store:
    """A Zarr store that holds a few arrays.

    Args:
        arrays: Values by name, or shapes. An array given by its shape counts up: flat element
            number `i` holds `i`, so that every row and every place in it is recognised; each
            further array of the mapping begins where the one before it ended.
        chunks: Shape of a stored chunk, for all arrays or by name. None: two samples, the whole
            field.
        zarr_format: 2 or 3.
        codec: "none", "zstd", "blosc", "gzip"; "crc32c" and "zstd+crc32c" in format 3; "lz4" and
            "zlib" in format 2.
        dtype: Of the arrays given by shape.
        path: Folder for the store. None: in memory.
        dims: Dimension names, for all arrays or by name.
        attributes: Attributes by name of the array, such as `_FillValue`.
        options: Passed to `zarr.Group.create_array`, such as `fill_value`, `order`, `filters`,
            `serializer` or `chunk_key_encoding`.

    Returns:
        A `zarr.storage.MemoryStore`, or a `LocalStore` at `path`.

    Raises:
        GeometryError: A codec that the format does not have.

    Example:
        >>> import zarr
        >>> store = make_store({"t": (5, 2), "u": (5, 2)}, chunks=(2, 2))
        >>> zarr.open_array(store, path="t")[:2].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
        >>> zarr.open_array(store, path="u")[0].tolist()
        [10.0, 11.0]
    """
    known = _V2_COMPRESSORS if zarr_format == 2 else _V3_COMPRESSORS  # noqa: PLR2004
    if codec not in known:
        msg = f"codec {codec!r} is none of those of format {zarr_format}: {sorted(known)}"
        raise GeometryError(msg)
    store: Store = MemoryStore() if path is None else LocalStore(os.fspath(path))
    group = zarr.create_group(store, zarr_format=zarr_format)
    first = 0
    for name, given in arrays.items():
        if isinstance(given, np.ndarray):
            values = given
        else:
            size = math.prod(given)
            values = np.arange(first, first + size).astype(dtype).reshape(tuple(given))
            first += size
        own_chunks = chunks[name] if isinstance(chunks, Mapping) else chunks
        own_dims = dims[name] if isinstance(dims, Mapping) else dims
        own_attributes = dict((attributes or {}).get(name, {}))
        if own_dims is not None and zarr_format == 2:  # noqa: PLR2004
            own_attributes["_ARRAY_DIMENSIONS"] = list(own_dims)
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=tuple(own_chunks or (2, *values.shape[1:])),
            compressors=known[codec],
            dimension_names=own_dims if zarr_format == 3 else None,  # noqa: PLR2004
            attributes=own_attributes,
            **options,
        )
        array[...] = values
    return store
