"""The data type in an array's metadata document, as the numpy dtype of stored values.

Source of the names: the NumPy array protocol strings of the Zarr format 2 specification, the core
data types of format 3, and of its registered extensions those whose values have a fixed size.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from torchdata_insitu.geometry.torch_dtypes import HELD

_FORMAT_2 = 2
_BY_NAME = {dtype.name: dtype for dtype in HELD}
_PROTOCOL_TEXT = re.compile(r"[<>|=]?[A-Za-z]\d{0,9}")
_PROTOCOL_TIME = re.compile(r"([<>|=]?[mM]8)\[(\d{0,9})([A-Za-z\N{GREEK SMALL LETTER MU}]+)\]")
_RAW_BITS = re.compile(r"r([1-9]\d{0,9})")
_TIMES = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}
# Nothing else is given to numpy, which divides by what a unit says it is divided by, be it zero.
_MICRO = "\N{GREEK SMALL LETTER MU}s"
_UNITS = {*"YMWDhms", "ms", "us", _MICRO, "ns", "ps", "fs", "as", "generic"}
_MOST_SCALE = 2**31
_MOST_BYTES = 2**31
"""Of one value, as in numpy, which does not always notice more."""
_DEEPEST = 16
"""Structures inside structures: Zarr, which has to read them too, calls itself for each."""
_FIXED_SIZE = {
    "fixed_length_utf32": ("U", 4),
    "null_terminated_bytes": ("S", 1),
    "raw_bytes": ("V", 1),
}
_STRUCTS = {"struct", "structured"}

_TEXT_ADVICE = "store integer codes instead of text"
_BYTES_ADVICE = "store numbers instead of bytes of a meaning of their own"
_STRUCT_ADVICE = (
    "store each of its fields, a number without a shape of its own, as an array of its own"
)
_NUMBER_ADVICE = "convert it to a number that numpy and torch share, such as float32"
_ADVICE_BY_KIND = {"U": _TEXT_ADVICE, "S": _TEXT_ADVICE, "O": _TEXT_ADVICE, "V": _BYTES_ADVICE}
_ADVICE_BY_WORD = (
    (("datetime", "timedelta"), "write the unit of its times and their scale factor"),
    (("struct", "["), _STRUCT_ADVICE),
    (("str", "utf", "text", "object"), _TEXT_ADVICE),
    (("bytes",), _BYTES_ADVICE),
)


def numpy_dtype(zarr_format: int, value: object) -> np.dtype | None:
    """The numpy dtype of a data type in a metadata document.

    Args:
        zarr_format: 2 or 3.
        value: `dtype` of format 2 or `data_type` of format 3, as parsed JSON.

    Returns:
        Of format 2 with the stored byte order; format 3 says that elsewhere. None for what numpy
        lacks, and for what has no fixed size.

    Example:
        >>> numpy_dtype(2, [["u", ">f4"], ["v", "<i2"]])
        dtype([('u', '>f4'), ('v', '<i2')])
        >>> settings = {"unit": "s", "scale_factor": 10}
        >>> numpy_dtype(3, {"name": "numpy.datetime64", "configuration": settings})
        dtype('<M8[10s]')
        >>> numpy_dtype(3, "bfloat16") is None
        True
    """
    return _of_format_2(value) if zarr_format == _FORMAT_2 else _of_format_3(value)


def is_readable(dtype: np.dtype) -> bool:
    """Whether values become tensors, as they are, as int64 times, or field by field.

    Example:
        >>> [is_readable(np.dtype(text)) for text in (">f4", "M8[ns]", "U5", "O", "u1,f4")]
        [True, True, False, False, True]
    """
    if dtype.names is not None:
        return not dtype.hasobject and not _has_shapes(dtype)
    return dtype.newbyteorder("=") in HELD or dtype.kind in "mM"


def advice(dtype: np.dtype | None, text: str) -> str:
    """What to do about an array whose values become no tensor.

    Args:
        dtype: Its numpy dtype, if there is one.
        text: The dtype as the writer spelled it.
    """
    if dtype is not None:
        found = _STRUCT_ADVICE if dtype.names is not None else _ADVICE_BY_KIND.get(dtype.kind)
        return found or _NUMBER_ADVICE
    for words, found in _ADVICE_BY_WORD:
        if any(word in text for word in words):
            return found
    return _NUMBER_ADVICE


def _of_format_2(value: object, depth: int = 0) -> np.dtype | None:
    if isinstance(value, list):
        if depth == _DEEPEST or not all(_is_field_of_format_2(item) for item in value):
            return None
        return _struct(
            (item[0], _of_format_2(item[1], depth + 1), item[2] if item[2:] else ())
            for item in value
        )
    if not isinstance(value, str):
        return None
    if time := _PROTOCOL_TIME.fullmatch(value):
        kind, scale, unit = time.groups()
        return _time(kind, unit, int(scale or 1))
    return _dtype(value) if _PROTOCOL_TEXT.fullmatch(value) else None


def _is_field_of_format_2(item: object) -> bool:
    return isinstance(item, list) and len(item) in (2, 3)


def _of_format_3(value: object, depth: int = 0) -> np.dtype | None:
    name = value.get("name") if isinstance(value, dict) else value
    given = value.get("configuration") if isinstance(value, dict) else None
    settings: Mapping[str, Any] = given if isinstance(given, dict) else {}
    if not isinstance(name, str):
        return None
    dtype = _BY_NAME.get(name)
    if name in _TIMES:
        dtype = _time(_TIMES[name], settings.get("unit"), settings.get("scale_factor"))
    elif name in _STRUCTS and depth < _DEEPEST:
        dtype = _struct_of_format_3(settings.get("fields"), depth + 1)
    elif raw := _RAW_BITS.fullmatch(name):
        dtype = _sized("V", 8, int(raw[1]))
    elif name in _FIXED_SIZE:
        dtype = _sized(*_FIXED_SIZE[name], settings.get("length_bytes"))
    return dtype


def _time(kind: str, unit: object, scale: object) -> np.dtype | None:
    if not isinstance(unit, str) or unit not in _UNITS:
        return None
    if type(scale) is not int or not 1 <= scale < _MOST_SCALE:
        return None
    return _dtype(kind if unit == "generic" else f"{kind}[{scale}{unit}]")


def _sized(kind: str, item: int, length: object) -> np.dtype | None:
    if type(length) is not int or not 1 <= length < _MOST_BYTES or length % item:
        return None
    return _dtype(f"{kind}{length // item}")


def _struct_of_format_3(fields: object, depth: int) -> np.dtype | None:
    """Fields as `{"name", "data_type"}`, or as pairs in the older spelling."""
    found = []
    for item in fields if isinstance(fields, list) else []:
        if isinstance(item, dict):
            found.append((item.get("name"), _of_format_3(item.get("data_type"), depth), ()))
        elif isinstance(item, list) and len(item) == 2:  # noqa: PLR2004
            found.append((item[0], _of_format_3(item[1], depth), ()))
        else:
            return None
    return _struct(found)


def _struct(fields: Iterable[tuple[Any, np.dtype | None, Any]]) -> np.dtype | None:
    """Fields one after the other without gaps, as Zarr stores them."""
    parts, n_bytes = [], 0
    for name, dtype, shape in fields:
        if dtype is None or not isinstance(name, str):
            return None
        part = _dtype((dtype, tuple(shape) if isinstance(shape, list) else shape))
        n_bytes += 0 if part is None else part.itemsize
        if part is None or n_bytes >= _MOST_BYTES:
            return None
        parts.append((name, part))
    return _dtype(parts) if parts else None


def _dtype(spec: Any) -> np.dtype | None:
    try:
        dtype: np.dtype = np.dtype(spec)
    except (TypeError, ValueError, SyntaxError):
        return None
    return dtype


def _has_shapes(dtype: np.dtype) -> bool:
    """Whether a field, at any depth, is an array in itself."""
    return dtype.subdtype is not None or any(_has_shapes(dtype[n]) for n in dtype.names or ())
