"""How arrays are opened: options for all of them, or by array."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.listed_names import listed
from torchdata_insitu.geometry.torch_dtypes import slot_dtype

if TYPE_CHECKING:
    from torchdata_insitu.geometry.torch_dtypes import SlotDType


class ArrayOption(NamedTuple):
    """How one array is opened."""

    sample_axis: object
    """Number or dimension name of the axis that counts samples."""
    decode_cf: bool
    """Whether CF conventions are followed."""
    field: str | None
    """The field to read of structured values."""
    dtype: np.dtype | None
    """What a slot holds; None for what decoding gives."""


@dataclass(frozen=True)
class ArrayOptions:
    """The options of one call, each for all arrays or, as a mapping, by array.

    Example:
        >>> options = ArrayOptions(dtype={"t2m": "float16"}, decode_cf=False)
        >>> options.of("t2m").dtype, options.of("u10").dtype
        (dtype('float16'), None)
    """

    sample_axis: object = 0
    """An array that a mapping does not name has axis 0."""
    decode_cf: bool = True
    field: str | Mapping[str, str] | None = None
    """An array that a mapping does not name is read as it is."""
    dtype: "SlotDType | Mapping[str, SlotDType] | None" = None
    """An array that a mapping does not name keeps its own."""
    path: Callable[[str], str] = str
    """Turns a name as it was given into the name of the array."""

    def __post_init__(self) -> None:
        """Check the values, and name arrays as they are opened.

        Raises:
            GeometryError: A dtype or a field that is none.
        """
        for option in ("sample_axis", "field", "dtype"):
            given = getattr(self, option)
            if isinstance(given, Mapping):
                object.__setattr__(self, option, {self.path(k): v for k, v in given.items()})
        for field in _values(self.field):
            if not isinstance(field, str):
                raise GeometryError(f"field is the name of a field, or {{array: field}}: {field!r}")
        for dtype in _values(self.dtype):
            slot_dtype(dtype)

    def of(self, name: str) -> ArrayOption:
        """The options of an array."""
        dtype = _of(self.dtype, name, None)
        return ArrayOption(
            sample_axis=_of(self.sample_axis, name, 0),
            decode_cf=self.decode_cf,
            field=_of(self.field, name, None),
            dtype=None if dtype is None else slot_dtype(dtype),
        )

    def names(self, name: str) -> bool:
        """Whether an option is given for this very array."""
        return any(name in named for _, named in self._mappings())

    def check_opened(self, opened: Iterable[str]) -> None:
        """Refuse options for arrays that are not opened.

        Raises:
            GeometryError: There are some.
        """
        names = list(opened)
        for option, named in self._mappings():
            for name in named:
                if name not in names:
                    raise GeometryError(
                        f"{option} names array {name!r}, which is not among the arrays opened: "
                        f"{listed(map(repr, names)) or 'no arrays'}"
                    )

    def _mappings(self) -> list[tuple[str, Mapping[str, Any]]]:
        given = {"sample_axis": self.sample_axis, "field": self.field, "dtype": self.dtype}
        return [(option, value) for option, value in given.items() if isinstance(value, Mapping)]


def _values(given: object) -> list[Any]:
    values = given.values() if isinstance(given, Mapping) else [given]
    return [value for value in values if value is not None]


def _of(given: Any, name: str, default: Any) -> Any:
    return given.get(name, default) if isinstance(given, Mapping) else given
