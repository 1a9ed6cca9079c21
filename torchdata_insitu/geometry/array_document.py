"""The metadata document of one array as its writer stored it, before any codec is looked at."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.torch_dtypes import holds

ROOT_NAME = "data"
"""What an array at the root of a store is called."""

_FORMAT_2 = 2
_FORMAT_3 = 3

_FORMAT_3_DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""Data types of the Zarr v3 core specification that numpy has under the same name."""

_ADVICE = (
    (("datetime", "timedelta"), "store or convert it as int64 and keep the unit as an attribute"),
    (("struct",), "store each of its fields as an array of its own"),
    (("str", "utf", "bytes", "object", "text"), "store integer codes instead of text"),
    (("",), "convert it to a number that numpy and torch share, such as float32"),
)
_TEXT_BY_KIND = {"M": "datetime", "m": "timedelta", "V": "struct", "S": "bytes", "U": "text"}


@dataclass(frozen=True)
class ArrayDocument:
    """An array's `zarr.json`, or its `.zarray` and `.zattrs`, as parsed JSON.

    A document of a foreign writer may lack anything: what is asked for and missing raises
    `GeometryError`.

    Example:
        >>> document = {"zarr_format": 2, "shape": [9, 4], "dtype": ">f4", "filters": None}
        >>> array = ArrayDocument("run/t2m", document, {"_ARRAY_DIMENSIONS": ["time", "lat"]})
        >>> array.shape, array.stored_dtype(), array.dimension_names
        ((9, 4), dtype('>f4'), ('time', 'lat'))
    """

    path: str
    """Inside the store, empty for a root array."""
    document: Mapping[str, Any]
    """Without attributes in format 2."""
    attributes: Mapping[str, Any]
    """The array's own."""

    @property
    def zarr_format(self) -> int:
        """2 or 3.

        Raises:
            GeometryError: The document says neither.
        """
        zarr_format = self.document.get("zarr_format")
        if zarr_format not in (_FORMAT_2, _FORMAT_3):
            raise GeometryError(
                f"{self.label} has zarr_format {zarr_format!r} in its metadata: 2 and 3 are read"
            )
        return int(zarr_format)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array.

        Raises:
            GeometryError: The document has none.
        """
        shape = self.document.get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise GeometryError(f"{self.label} has the shape {shape!r} in its metadata")
        return tuple(shape)

    @property
    def name(self) -> str:
        """The path, and "data" for a root array."""
        return self.path or ROOT_NAME

    @property
    def label(self) -> str:
        """How errors name the array."""
        return f"array {self.name!r}"

    @property
    def has_dimension_names(self) -> bool:
        """Whether the writer named the dimensions, so that xarray could open the array."""
        return any(name is not None for name in self.dimension_names)

    @property
    def dimension_names(self) -> tuple[str | None, ...]:
        """One name per axis, None where there is none.

        Format 3 has `dimension_names`; format 2 xarray's attribute `_ARRAY_DIMENSIONS`, or the
        `dimrefs` of netCDF-C.
        """
        names: Any
        if self.zarr_format == _FORMAT_2:
            nczarr = self.document.get("_NCZARR_ARRAY")
            dimrefs = nczarr.get("dimrefs") if isinstance(nczarr, dict) else None
            names = self.attributes.get("_ARRAY_DIMENSIONS", dimrefs)
        else:
            names = self.document.get("dimension_names")
        if not isinstance(names, list) or len(names) != len(self.shape):
            return (None,) * len(self.shape)
        return tuple(posixpath.basename(n) if isinstance(n, str) and n else None for n in names)

    @property
    def is_sharded(self) -> bool:
        """Whether several stored chunks lie in one key."""
        return "sharding_indexed" in [name for name, _ in self._codecs()]

    @property
    def is_rectilinear(self) -> bool:
        """Whether stored chunks have a list of edges instead of one size."""
        grid = self.document.get("chunk_grid")
        return isinstance(grid, dict) and grid.get("name") == "rectilinear"

    @property
    def dtype_text(self) -> str:
        """The dtype as the writer spelled it."""
        value = self.document.get("dtype", self.document.get("data_type"))
        if isinstance(value, dict):
            value = value.get("name")
        return value if isinstance(value, str) else json.dumps(value)

    def stored_dtype(self) -> np.dtype:
        """The numpy dtype of stored numbers, in the stored byte order.

        Raises:
            GeometryError: A dtype that no tensor holds; the text says what to do instead.
        """
        text = self.dtype_text
        dtype = _FORMAT_3_DTYPES.get(text)
        kind = text
        if self.zarr_format == _FORMAT_2:
            kind = "struct" if text.startswith("[") else text
            try:
                dtype = np.dtype(text)
            except (TypeError, ValueError, SyntaxError):
                dtype = None
            else:
                kind = _TEXT_BY_KIND.get(dtype.kind, dtype.name)
        if dtype is None or not holds(dtype.newbyteorder("=")):
            advice = next(say for words, say in _ADVICE if any(word in kind for word in words))
            raise GeometryError(
                f"{self.label} has dtype {text!r}, which cannot become a tensor: {advice}, or "
                "leave the array out"
            )
        return dtype.newbyteorder(">") if self._is_big_endian() else dtype

    def text(self) -> str:
        """The document without its attributes, as JSON text."""
        kept = {key: value for key, value in self.document.items() if key != "attributes"}
        return json.dumps(kept, sort_keys=True)

    def _codecs(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Name and configuration of each codec of format 3."""
        codecs = self.document.get("codecs")
        found: list[tuple[str, Mapping[str, Any]]] = []
        for codec in codecs if isinstance(codecs, list) else []:
            named = codec if isinstance(codec, dict) else {"name": codec}
            settings = named.get("configuration")
            found.append((str(named.get("name")), settings if isinstance(settings, dict) else {}))
        return found

    def _is_big_endian(self) -> bool:
        return ("bytes", "big") in [
            (name, settings.get("endian")) for name, settings in self._codecs()
        ]
