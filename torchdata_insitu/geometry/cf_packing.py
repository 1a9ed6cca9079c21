"""Stored numbers to physical ones by the CF conventions.

The rules are those of xarray's `mask_and_scale` (`xarray.coding.variables`), and where it decodes
attributes as their writer meant them, the results equal its results bit for bit, dtype included.
Some spellings are read here that it takes for something else: a scale or offset as a list of one
number, a `_FillValue` in base64 in format 2 too, "NaN" as text among floats, and with `_Unsigned` a
`_FillValue` of big-endian numbers. The fill value of format 2 masks no truth values. What can be
meant in several ways is refused. Source of the attributes: CF conventions 1.11, sections 2.5.1
"Missing data" and 8.1 "Simple packing".
"""

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.geometry.cf_refusal import not_decoded
from torchdata_insitu.geometry.unsigned_integers import (
    has_other_sign,
    is_one_of,
    other_sign,
    with_other_sign,
)
from torchdata_insitu.geometry.value_pieces import pieces


@dataclass(frozen=True)
class CFPacking:
    """Mask, scale and offset of one array.

    Example:
        >>> attributes = {"_FillValue": -1, "scale_factor": 0.5, "add_offset": 10.0}
        >>> packing = CFPacking.from_attributes("t2m", attributes, np.dtype("<i2"))
        >>> out = np.empty(3, packing.dtype)
        >>> packing.decode(np.array([-1, 0, 4], "<i2"), out)
        >>> out.dtype, out.tolist()
        (dtype('float64'), [nan, 10.0, 12.0])
    """

    fill_values: tuple[Any, ...]
    """Stored numbers, as numpy scalars, that mean "no value" and become NaN. NaN is not among
    them: it stays what it is."""
    scale: float | None
    """What a stored number is multiplied by, None for nothing."""
    offset: float | None
    """What is added after the scale, None for nothing."""
    stored_dtype: np.dtype
    """Dtype of the stored numbers, in their byte order."""
    dtype: np.dtype
    """Dtype after decoding, in native byte order."""
    is_other_sign: bool = False
    """Whether the bits of stored numbers are those of integers of the other sign."""

    @classmethod
    def from_attributes(
        cls,
        name: str,
        attributes: Mapping[str, Any],
        stored_dtype: np.dtype,
        *,
        fill_value: Any = None,
    ) -> Self | None:
        """Read the packing of an array off its attributes.

        Args:
            name: The array, for errors.
            attributes: `_FillValue` (plain, or as the base64 text that xarray writes into Zarr
                format 3), `missing_value`, `scale_factor`, `add_offset`, `_Unsigned` of integers,
                and `dtype` where it is "bool". Others are not looked at, so "hours since
                1990-01-01" stays a number.
            stored_dtype: A bool, integer, float or complex dtype.
            fill_value: The fill value of the Zarr array where that means "no value": in format 2
                and an array with dimension names. It goes before the attribute `_FillValue`, and
                means nothing among truth values.

        Returns:
            None if stored numbers are used as they are.

        Raises:
            GeometryError: An attribute that is not supported, or that is no number.
        """
        stored = np.dtype(stored_dtype)
        is_other = has_other_sign(name, attributes, stored)
        read_as = other_sign(stored) if is_other else stored
        fills = _fill_lists(name, attributes, stored, fill_value, is_other_sign=is_other)
        scale = _number(name, attributes, "scale_factor")
        offset = _number(name, attributes, "add_offset")
        packed = scale is not None or offset is not None
        _check_supported(name, attributes, stored, fills, packed=packed)
        if attributes.get("dtype") == "bool" and stored.kind in "iu":
            return cls((), None, None, stored, np.dtype(bool), is_other)
        masking = tuple(dict.fromkeys(v for values in fills for v in values if not np.isnan(v)))
        if not masking and not packed:
            return cls((), None, None, stored, _native(read_as), is_other) if is_other else None
        dtype = _decoded_dtype(read_as, scale, offset, filled=bool(fills), masking=bool(masking))
        if dtype.kind not in "fc" and (
            masking or stored.kind == "f" or not is_one_of(dtype, scale)
        ):
            raise not_decoded(name, f"the integer scale_factor {scale!r}")
        return cls(masking, scale, offset, stored, dtype, is_other)

    @property
    def in_place(self) -> bool:
        """Whether stored numbers can be decoded where they lie, in the memory of the result."""
        stored = self.stored_dtype
        return (other_sign(stored) if self.is_other_sign else stored) == self.dtype

    def decode(self, stored: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the physical numbers of `stored` into `out`.

        Args:
            stored: Stored numbers, any shape.
            out: Same shape, of `dtype`; the same memory is fine where `in_place`.
        """
        if self.dtype.kind == "b":
            np.not_equal(stored, 0, out=out)
            return
        # An overflow is in the data and gives infinity, as it does in xarray.
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in pieces(out.shape):
                self._decode_piece(stored[piece], out[piece])

    def _decode_piece(self, stored: NDArray[Any], out: NDArray[Any]) -> None:
        if stored.ctypes.data != out.ctypes.data:
            # By the byte order that is at hand: a fill value comes in native order.
            bits = stored.view(other_sign(stored.dtype)) if self.is_other_sign else stored
            np.copyto(out, bits, casting="unsafe")
        if self.fill_values:
            # Compared after the cast, as in xarray: of two near numbers it decides which is masked.
            masked = out == self.fill_values[0]
            for fill_value in self.fill_values[1:]:
                masked |= out == fill_value
            no_value = complex(math.nan, math.nan) if self.dtype.kind == "c" else math.nan
            np.copyto(out, no_value, where=masked)
        if self.scale is not None:
            np.multiply(out, self.scale, out=out)
        if self.offset is not None:
            np.add(out, self.offset, out=out)


def _fill_lists(
    name: str,
    attributes: Mapping[str, Any],
    stored: np.dtype,
    fill_value: Any,
    *,
    is_other_sign: bool,
) -> list[list[Any]]:
    """Per attribute that is given, the fill values as the numpy scalars that xarray compares with.

    An attribute of integers that holds no number is left out, as if it were not there.
    """
    given = {
        "missing_value": attributes.get("missing_value"),
        "_FillValue": _plain_fill_value(name, attributes.get("_FillValue"), stored),
    }
    if fill_value is not None and stored.kind != "b":
        given["_FillValue"] = fill_value
    # Stored numbers and what they mean: both are in use for a `_FillValue`.
    signs = (stored, other_sign(stored)) if is_other_sign else (stored,)
    lists = {}
    for key, value in given.items():
        if value is None:
            continue
        values = [_fill_scalar(name, key, item, signs) for item in _items(name, key, value)]
        if stored.kind not in "iu" or not all(np.isnan(item) for item in values):
            lists[key] = values
    if is_other_sign:
        lists = with_other_sign(name, lists, stored)
    return list(lists.values())


def _items(name: str, key: str, value: Any) -> Any:
    try:
        return np.ravel(value)
    except ValueError as error:  # lists of several lengths, or in too many others
        what = f"the {key} {value!r:.80}, which is no list of numbers"
        raise not_decoded(name, what) from error


def _fill_scalar(name: str, key: str, value: Any, signs: tuple[np.dtype, ...]) -> Any:
    stored = signs[0]
    if isinstance(value, str) and value.lower() == "nan" and stored.kind not in "iu":
        return np.float64(math.nan)
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, np.number):
        raise not_decoded(name, f"the {key} {plain!r:.80}, which is no number")
    # No integer is NaN, which masks nothing then; a `missing_value` is compared as it is.
    is_integer = key == "_FillValue" and stored.kind in "iu"
    if is_integer and not (np.isnan(value) or any(is_one_of(sign, plain) for sign in signs)):
        names = " or ".join(_native(sign).name for sign in signs)
        what = f"the {key} {plain!r}, which {names} cannot hold"
        raise not_decoded(name, what)
    return value


def _plain_fill_value(name: str, value: Any, stored: np.dtype) -> Any:
    """`_FillValue` as a number where xarray wrote floats as base64 of 8 bytes each."""
    match stored.kind, value:
        case "c", [real, imaginary]:
            return complex(_plain_float(name, real), _plain_float(name, imaginary))
        case "f" | "c", str():
            return _plain_float(name, value)
        case _:
            return value


def _plain_float(name: str, value: Any) -> float:
    try:
        if isinstance(value, int | float) or value in {"NaN", "Infinity", "-Infinity"}:
            return float(value)
        (number,) = struct.unpack("<d", base64.b64decode(value, validate=True))
        return float(number)
    except (binascii.Error, struct.error, OverflowError, TypeError, ValueError) as error:
        what = f"the _FillValue {value!r:.80}, neither a number nor base64 of 8 bytes"
        raise not_decoded(name, what) from error


def _number(name: str, attributes: Mapping[str, Any], key: str) -> Any:
    """A scale or offset; a list of one number, as netCDF writers leave it, is that number."""
    value = attributes.get(key)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if value is None or (is_number and not isinstance(value, bool) and _is_float(value)):
        return value
    raise not_decoded(name, f"the {key} {value!r:.80}, which is no number")


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _check_supported(
    name: str,
    attributes: Mapping[str, Any],
    stored: np.dtype,
    fills: list[list[Any]],
    *,
    packed: bool,
) -> None:
    if packed and stored.kind in "bc":
        raise not_decoded(name, f"a scale_factor or add_offset on dtype {stored}")
    if attributes.get("dtype") == "bool" and stored.kind in "fc":
        raise not_decoded(name, f"the attribute dtype='bool' on dtype {stored}")
    if (packed or fills) and (stored.kind == "b" or attributes.get("dtype") == "bool"):
        raise not_decoded(name, "a fill value, scale or offset on truth values")


def _decoded_dtype(
    stored: np.dtype, scale: Any, offset: Any, *, filled: bool, masking: bool
) -> np.dtype:
    """The dtype that xarray decodes to."""
    if scale is None and offset is None:
        # Of integers, float32 holds those of 16 bits, and float64 is taken for all longer ones.
        return np.result_type(stored, np.float32) if stored.kind in "iu" else _native(stored)
    if filled and not masking:
        # A fill value of NaN fixes the dtype of floats before the scale is looked at.
        return _native(stored)
    if offset is None:
        return np.dtype(type(scale))
    both_float32 = type(scale) is np.float32 and type(offset) is np.float32
    if both_float32 and _native(stored) not in (np.dtype(np.int32), np.dtype(np.uint32)):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def _native(dtype: np.dtype) -> np.dtype:
    return dtype.newbyteorder("=")
