"""From the values of a stored chunk to those of a slot: field, time, CF conventions, cast."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.cf_packing import CFPacking
from torchdata_insitu.geometry.listed_names import listed
from torchdata_insitu.geometry.torch_dtypes import holds
from torchdata_insitu.geometry.value_pieces import pieces

_CF_ATTRIBUTES = ("_FillValue", "missing_value", "scale_factor", "add_offset")


class CastError(ValueError):
    """A value that the dtype asked for cannot hold."""


@dataclass(frozen=True)
class ValueDecoding:
    """What becomes of the values of one array on the way into a slot.

    In this order: one field of structured values; times as int64; CF mask, scale and offset; the
    dtype that was asked for.

    Example:
        >>> stored = np.dtype([("u", ">f8"), ("quality", "u1")])
        >>> decoding = ValueDecoding.choose("wind", stored, field="u", dtype=np.dtype("f4"))
        >>> out = np.empty(2, decoding.dtype)
        >>> decoding.decode(np.array([(1.5, 0), (2.5, 1)], stored), out)
        >>> out.dtype, out.tolist(), str(decoding)
        (dtype('float32'), [1.5, 2.5], "field 'u' >f8 -> float32")
    """

    stored_dtype: np.dtype
    """Of stored values, in their byte order; structured where they have fields."""
    dtype: np.dtype
    """What a slot and a batch hold, in native byte order."""
    field: str | None = None
    """The field that is read of structured values."""
    cf: CFPacking | None = None
    """How stored numbers become physical ones; None where they are used as they are."""

    @classmethod
    def choose(
        cls,
        name: str,
        stored_dtype: np.dtype,
        *,
        field: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        fill_value: Any = None,
        dtype: np.dtype | None = None,
    ) -> Self:
        """What an array is decoded to.

        Args:
            name: The array, for errors.
            stored_dtype: A dtype that `stored_dtype.is_readable`.
            field: The field to read of structured values.
            attributes: Attributes of the array whose CF conventions are followed; None for none.
            fill_value: As for `CFPacking.from_attributes`.
            dtype: What a slot holds; None for what the steps before it give.

        Raises:
            GeometryError: No field, a field that is none or no number, a dtype that numpy does not
                cast to within the same kind, CF attributes that are not supported.
        """
        numbers = chosen_field(name, stored_dtype, field)
        cf = None
        if attributes is not None and field is None and numbers.kind not in "mM":
            cf = CFPacking.from_attributes(name, attributes, numbers, fill_value=fill_value)
        elif attributes is not None:
            _check_no_packing(name, attributes, numbers, field)
        natural = _without_unit(numbers).newbyteorder("=") if cf is None else cf.dtype
        if dtype is not None:
            _check_cast(name, numbers if numbers.kind in "mM" else natural, natural, dtype, cf)
        return cls(stored_dtype, natural if dtype is None else dtype, field, cf)

    @property
    def numbers(self) -> np.dtype:
        """Dtype of stored values, or of the field that is read of them, in its byte order."""
        return self.stored_dtype if self.field is None else self.stored_dtype[self.field]

    @property
    def unit(self) -> str | None:
        """The unit of times, as "ns" or "10s", which are int64 with NaT as the least of them."""
        if self.numbers.kind not in "mM":
            return None
        unit, count = np.datetime_data(self.numbers)
        return unit if count == 1 else f"{count}{unit}"

    @property
    def in_place(self) -> bool:
        """Whether stored values lie in memory as in a slot, but for what `finish` does."""
        if self.cf is None:
            return _without_unit(self.stored_dtype) == self.dtype
        return self.cf.in_place and self.cf.dtype == self.dtype

    def finish(self, out: NDArray[Any]) -> None:
        """Decode stored values that have been read into the slot itself, where `in_place`."""
        if self.cf is not None:
            self.cf.decode(out, out)

    def decode(
        self,
        stored: NDArray[Any],
        out: NDArray[Any],
        scratch: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> None:
        """Write the values of a slot into `out`.

        Args:
            stored: Stored values, any shape.
            out: Same shape, of `dtype`.
            scratch: Gives so many bytes for a piece of decoded numbers before their cast; None for
                fresh ones.

        Raises:
            CastError: A value that `dtype` cannot hold; `out` then holds anything.
        """
        values = stored if self.field is None else stored[self.field]
        if values.dtype.kind in "mM":
            values = values.view(_without_unit(values.dtype))
        cf = self.cf
        if cf is None:
            self._cast(values, out)
        elif cf.dtype == self.dtype:
            cf.decode(values, out)
        else:
            get = scratch or _fresh
            for piece in pieces(out.shape):
                part = out[piece]
                numbers = get(part.size * cf.dtype.itemsize).view(cf.dtype).reshape(part.shape)
                cf.decode(values[piece], numbers)
                self._cast(numbers, part)

    def _cast(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        if values.dtype.newbyteorder("=") == out.dtype:
            np.copyto(out, values)
        elif np.can_cast(values.dtype, out.dtype):
            _copy(values, out)
        elif out.dtype.kind in "iu":
            for piece in pieces(out.shape):
                _check_range(values[piece], out.dtype)
                np.copyto(out[piece], values[piece], casting="same_kind")
        else:
            try:
                _copy(values, out)
            except FloatingPointError:
                raise CastError(_overflow(values, out.dtype)) from None

    def __str__(self) -> str:
        """Stored dtype and decoded one, and the unit of times."""
        stored, decoded = _text(self.numbers), self.dtype.name
        field = "" if self.field is None else f"field {self.field!r} "
        changed = stored if stored == decoded else f"{stored} -> {decoded}"
        return f"{field}{changed}" + (f" in {self.unit}" if self.unit else "")


def chosen_field(name: str, stored_dtype: np.dtype, field: str | None) -> np.dtype:
    """The dtype of the numbers that are read of an array, in the stored byte order.

    Raises:
        GeometryError: A field is needed or not there, or it is no number; the text lists them.
    """
    if stored_dtype.names is None:
        if field is not None:
            raise GeometryError(
                f"array {name!r} has dtype {_text(stored_dtype)}, which has no fields, but "
                f"field={field!r} is given: leave it out, or give field={{array: field}} for the "
                "arrays that have some"
            )
        return stored_dtype
    fields = {each: stored_dtype[each] for each in stored_dtype.names}
    usable = [each for each in fields if _is_number(fields[each])]
    names = listed(f"{each!r} ({_text(dtype)})" for each, dtype in fields.items())
    advice = (
        f"open_arrays(..., field={usable[0]!r}) reads one of them"
        if usable
        else "none of them is a number, leave the array out"
    )
    if field is None:
        raise GeometryError(f"array {name!r} has structured values, of fields {names}: {advice}")
    if field not in fields:
        raise GeometryError(f"array {name!r} has no field {field!r} but {names}: {advice}")
    if field not in usable:
        raise GeometryError(
            f"field {field!r} of array {name!r} is {_text(fields[field])}, which cannot become a "
            f"tensor; its fields are {names}: {advice}"
        )
    return fields[field]


def _is_number(dtype: np.dtype) -> bool:
    return holds(dtype.newbyteorder("=")) or dtype.kind in "mM"


def _without_unit(dtype: np.dtype) -> np.dtype:
    """Times as the integers they are, in the same byte order."""
    if dtype.kind not in "mM":
        return dtype
    return np.dtype(np.int64).newbyteorder("=" if dtype.isnative else "S")


def _check_no_packing(
    name: str, attributes: Mapping[str, Any], numbers: np.dtype, field: str | None
) -> None:
    # As for arrays, `_Unsigned` is looked at among integers only.
    keys = (*_CF_ATTRIBUTES, "_Unsigned") if numbers.kind in "iu" else _CF_ATTRIBUTES
    given = [key for key in keys if attributes.get(key) is not None]
    if given:
        what = "times" if field is None else "a field of structured values"
        raise GeometryError(
            f"array {name!r} has the attribute {given[0]}={attributes[given[0]]!r}, which means "
            f"nothing for {what}: open it with decode_cf=False to get the stored numbers"
        )


def _check_cast(
    name: str, source: np.dtype, natural: np.dtype, dtype: np.dtype, cf: CFPacking | None
) -> None:
    if dtype == natural or np.can_cast(source, dtype, "same_kind"):
        return
    if source.kind in "mM":
        advice = f"times are int64 in {source}; convert them in a batch transform"
    elif cf is not None and np.can_cast(cf.stored_dtype, dtype, "same_kind"):
        advice = f"decode_cf=False gives the stored {_text(cf.stored_dtype)}, which casts to it"
    else:
        advice = "leave dtype out for this array, or convert it in a batch transform"
    raise GeometryError(
        f"array {name!r} has values of dtype {_text(source)}, and dtype {dtype} is asked for, to "
        f"which numpy does not cast within the same kind: {advice}"
    )


def _copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    # A signalling NaN is in the data, and stays a NaN.
    with np.errstate(over="raise", invalid="ignore"):
        np.copyto(out, values, casting="same_kind")


def _check_range(values: NDArray[Any], dtype: np.dtype) -> None:
    if not values.size:
        return
    limits = np.iinfo(dtype)
    for value in (int(values.min()), int(values.max())):
        if not limits.min <= value <= limits.max:
            raise CastError(
                f"the value {value} does not fit {dtype}, which holds {limits.min} to {limits.max}"
            )


def _overflow(values: NDArray[Any], dtype: np.dtype) -> str:
    """Which value became infinite; it is looked for among all, since this ends the load."""
    with np.errstate(over="ignore", invalid="ignore"):
        is_lost = np.isinf(values.astype(dtype)) & ~np.isinf(values)
    value = values[is_lost][0]
    return f"the value {value!s} does not fit {dtype}, which holds up to {np.finfo(dtype).max!s}"


def _fresh(n_bytes: int) -> NDArray[np.uint8]:
    return np.empty(n_bytes, np.uint8)


def _text(dtype: np.dtype) -> str:
    """A dtype as messages name it: native numbers by name, others with their byte order."""
    if dtype.names is not None:
        return f"a structure of {len(dtype.names)} fields"
    if not dtype.isnative:
        return dtype.str
    return dtype.name
