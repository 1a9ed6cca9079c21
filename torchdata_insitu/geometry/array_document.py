"""The metadata document of one array as its writer stored it, before any codec is looked at."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.stored_dtype import advice, is_readable, numpy_dtype

ROOT_NAME = "data"
"""What an array at the root of a store is called."""

_FORMAT_2 = 2
_FORMAT_3 = 3

_LONGEST_TEXT = 80


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
    def is_rectilinear(self) -> bool:
        """Whether stored chunks have a list of edges instead of one size."""
        grid = self.document.get("chunk_grid")
        return isinstance(grid, dict) and grid.get("name") == "rectilinear"

    @property
    def dtype_text(self) -> str:
        """The dtype as the writer spelled it, its beginning where that is long."""
        value = self._dtype_value
        if isinstance(value, dict):
            value = value.get("name")
        text = value if isinstance(value, str) else json.dumps(value)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."

    def stored_dtype(self) -> np.dtype:
        """The numpy dtype of stored values, in the stored byte order; structured ones have fields.

        Raises:
            GeometryError: A dtype that no tensor holds, nor one of its fields; the text says what
                to do instead.
        """
        dtype = numpy_dtype(self.zarr_format, self._dtype_value)
        if dtype is None or not is_readable(dtype):
            text = self.dtype_text
            raise GeometryError(
                f"{self.label} has dtype {text!r}, which cannot become a tensor: "
                f"{advice(dtype, text)}, or leave the array out"
            )
        is_swapped = self.zarr_format == _FORMAT_3 and self._is_big_endian()
        return dtype.newbyteorder(">") if is_swapped else dtype

    @property
    def _dtype_value(self) -> Any:
        return self.document.get("dtype" if self.zarr_format == _FORMAT_2 else "data_type")

    def text(self) -> str:
        """The document without its attributes, as JSON text."""
        kept = {key: value for key, value in self.document.items() if key != "attributes"}
        return json.dumps(kept, sort_keys=True)

    def codecs(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Name and configuration of each codec of format 3."""
        return self.codecs_of(self.document.get("codecs"))

    @staticmethod
    def codecs_of(value: object) -> list[tuple[str, Mapping[str, Any]]]:
        """The same for a chain that is part of another codec's configuration."""
        found: list[tuple[str, Mapping[str, Any]]] = []
        for codec in value if isinstance(value, list) else []:
            named = codec if isinstance(codec, dict) else {"name": codec}
            settings = named.get("configuration")
            found.append((str(named.get("name")), settings if isinstance(settings, dict) else {}))
        return found

    def _is_big_endian(self) -> bool:
        chain = self.codecs()
        while chain:
            name, settings = chain[-1]
            if name != "sharding_indexed":
                break
            chain = self.codecs_of(settings.get("codecs"))
        return ("bytes", "big") in [(name, settings.get("endian")) for name, settings in chain]
