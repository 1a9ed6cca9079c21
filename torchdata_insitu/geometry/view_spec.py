"""A view written down before any array is open, as in a YAML file."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View, stack

__all__ = ["ViewSpec"]


@dataclasses.dataclass(frozen=True)
class ViewSpec:
    """One entry of a batch by the names of its arrays: plain values, for YAML and command lines.

    Args:
        arrays: name of an array, or several names, which are stacked as channels of one view.
        window: offsets from the anchor along the sample axis, which get an axis of their own in the
            batch; None for the anchor alone, without that axis.
        shift: how many samples later all of it is; 4 is the future.

    Raises:
        GeometryError: no name, a name that is no text, an empty window, or an offset that is no
            integer.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"u10": (9, 4), "v10": (9, 4)}, chunks=(2, 4))
        >>> spec = tdi.ViewSpec(["u10", "v10"], window=[-1, 0], shift=4)
        >>> view = spec.view(tdi.open_arrays(store))
        >>> view.offsets, view.sample_shape
        ((3, 4), (2, 2, 4))
    """

    arrays: str | tuple[str, ...] | list[str]
    window: tuple[int, ...] | list[int] | None = None
    shift: int = 0

    def __post_init__(self) -> None:
        """Check the values, and keep lists, as YAML has them, as tuples."""
        object.__setattr__(self, "arrays", _checked_names(self.arrays))
        if self.window is not None:
            offsets: object = self.window
            if not isinstance(offsets, list | tuple) or not offsets:
                msg = (
                    f"the window of {self._what} is {self.window!r}: give offsets such as "
                    "[-1, 0], or None"
                )
                raise GeometryError(msg)
            window = tuple(_offset("window", offset, self._what) for offset in self.window)
            object.__setattr__(self, "window", window)
        object.__setattr__(self, "shift", _offset("shift", self.shift, self._what))

    @property
    def _what(self) -> str:
        return f"the view of {self.arrays!r}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in the order of the channels."""
        return (self.arrays,) if isinstance(self.arrays, str) else tuple(self.arrays)

    def view(self, arrays: Mapping[str, ArrayGeometry]) -> View:
        """The view over arrays of an open store.

        Args:
            arrays: what `open_arrays` gave.

        Raises:
            GeometryError: an array that is not there, or arrays that cannot be stacked.
        """
        missing = [name for name in self.names if name not in arrays]
        if missing:
            msg = f"{self._what} names {missing}, which are not among {sorted(arrays)}"
            raise GeometryError(msg)
        found = [arrays[name] for name in self.names]
        view = View((found[0],)) if isinstance(self.arrays, str) else stack(*found)
        if self.window is not None:
            view = view.window(*self.window)
        return view.shift(self.shift)


def _checked_names(arrays: Any) -> str | tuple[str, ...]:
    names = [arrays] if isinstance(arrays, str) else arrays
    is_list = isinstance(names, list | tuple) and len(names) > 0
    if not is_list or not all(isinstance(name, str) and name for name in names):
        msg = f"arrays of a view are {arrays!r}: give a name, or a list of names to stack"
        raise GeometryError(msg)
    return arrays if isinstance(arrays, str) else tuple(names)


def _offset(field: str, value: Any, what: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301 - a truth value is an integer to Python only
        return operator.index(value)
    except TypeError:
        msg = f"{field} of {what} has {value!r} of type {type(value).__name__}: give integers"
        raise GeometryError(msg) from None
