"""Integers whose bits mean those of the other sign: the attribute `_Unsigned`.

netCDF's classic formats have signed bytes only, and `_Unsigned = "true"` says that the bits are
those of unsigned integers; DAP2 has unsigned bytes only, and "false" says the reverse. Source:
netCDF User Guide, "Best Practices", "Unsigned Data". xarray follows the lower-case texts and takes
every other value for nothing; one that means another sign is refused here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchdata_insitu.geometry.cf_refusal import not_decoded

_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


def has_other_sign(name: str, attributes: Mapping[str, Any], stored: np.dtype) -> bool:
    """Whether stored integers mean those of the other sign.

    Args:
        name: The array, for errors.
        attributes: `_Unsigned` is looked at, and only of integers: floats have no other sign.
        stored: Dtype of the stored numbers.

    Raises:
        GeometryError: The value says neither, or says that the sign is another one in a spelling
            that xarray does not follow.

    Example:
        >>> has_other_sign("t2m", {"_Unsigned": "true"}, np.dtype("i1"))
        True
        >>> has_other_sign("t2m", {"_Unsigned": "true"}, np.dtype("u1"))
        False
    """
    value = attributes.get("_Unsigned")
    if value is None or stored.kind not in "iu":
        return False
    is_scalar = isinstance(value, str | int)
    unsigned = _TRUTHS.get(str(value).lower()) if is_scalar else None
    if unsigned is None:
        what = f"the attribute _Unsigned={value!r:.80}, which is neither 'true' nor 'false'"
        raise not_decoded(name, what)
    if unsigned == (stored.kind == "u"):
        return False
    plain = str(unsigned).lower()
    if value != plain:
        what = f"the attribute _Unsigned={value!r}, which xarray does not take for {plain!r}"
        raise not_decoded(name, what)
    return True


def other_sign(dtype: np.dtype) -> np.dtype:
    """The integers of the same size and byte order with the other sign.

    Example:
        >>> other_sign(np.dtype(">i2")), other_sign(np.dtype("u1"))
        (dtype('>u2'), dtype('int8'))
    """
    order, kind, size = dtype.str[0], dtype.str[1], dtype.str[2:]
    return np.dtype(order + {"i": "u", "u": "i"}[kind] + size)


def is_one_of(integers: np.dtype, value: Any) -> bool:
    """Whether a number is one of an integer dtype.

    Example:
        >>> is_one_of(np.dtype("u1"), 255.0), is_one_of(np.dtype("i1"), 255)
        (True, False)
    """
    limits = np.iinfo(integers)
    return bool(limits.min <= value <= limits.max and value == int(value))


def with_other_sign(
    name: str, fills: Mapping[str, Sequence[Any]], stored: np.dtype
) -> dict[str, list[Any]]:
    """Fill values, of `stored`, as numbers among the integers of the other sign.

    A `_FillValue` is given as it is stored, or as what it means: where both are possible, both are
    the same number. A `missing_value` is compared with decoded numbers, as in xarray, unless it is
    a `_FillValue` too.

    Args:
        name: The array, for errors.
        fills: The numbers of `missing_value` and `_FillValue`, each where it is given; those of
            `_FillValue` are integers of either sign, or NaN.
        stored: Dtype of the stored integers.

    Raises:
        GeometryError: A `missing_value` that is a stored number only, which would mask nothing.

    Example:
        >>> fills = {"missing_value": [200], "_FillValue": [-1]}
        >>> with_other_sign("t2m", fills, np.dtype("i1"))
        {'missing_value': [200], '_FillValue': [255]}
    """
    read_as = other_sign(stored)
    given = fills.get("_FillValue", ())
    converted: dict[str, list[Any]] = {"missing_value": []}
    for value in fills.get("missing_value", ()):
        plain = value.item() if isinstance(value, np.generic) else value
        is_stored = is_one_of(stored, plain)
        if is_stored and value in given:
            # It becomes what the `_FillValue` becomes.
            continue
        if is_stored and not is_one_of(read_as, plain):
            what = (
                f"the missing_value {plain!r}, which none of its values is once _Unsigned makes "
                f"them {read_as.newbyteorder('=')}"
            )
            raise not_decoded(name, what)
        converted["missing_value"].append(value)
    converted["_FillValue"] = [
        value if np.isnan(value) else _of_other_sign(value, stored) for value in given
    ]
    return {key: values for key, values in converted.items() if key in fills}


def _of_other_sign(value: Any, stored: np.dtype) -> Any:
    read_as = other_sign(stored).newbyteorder("=")
    given = stored.newbyteorder("=") if is_one_of(stored, value) else read_as
    number = np.array(int(value), given).view(read_as)[()]
    # Of the types that xarray compares with: a plain integer takes the precision of the numbers.
    return number.item() if read_as.kind == "u" else number
