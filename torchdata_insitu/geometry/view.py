"""Views: one array, or a stack of equal arrays, at one or several offsets from the anchor."""

import operator
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry


@dataclass(frozen=True)
class View:
    """What a draw reads under one name of the batch.

    Made by `ArrayGeometry.shift`, `ArrayGeometry.window` and `stack`.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> for name in ("u10", "v10"):
        ...     _ = zarr.create_array(store, name=name, shape=(9, 4), chunks=(2, 4), dtype="f4")
        >>> arrays = read_arrays(store)
        >>> view = stack(arrays["u10"], arrays["v10"]).window(-1, 0).shift(4)
        >>> view.offsets, view.sample_shape
        ((3, 4), (2, 2, 4))
    """

    arrays: tuple[ArrayGeometry, ...]
    """The stacked arrays in channel order, or the only one."""
    offsets: tuple[int, ...] = (0,)
    """Samples after the anchor, in the order they come in the batch; repeats are kept."""
    stacked: bool = False
    """Whether the batch has an axis of arrays."""
    windowed: bool = False
    """Whether the batch has an axis of offsets."""

    def __post_init__(self) -> None:
        """Check that the arrays can lie next to each other.

        Raises:
            GeometryError: No array, no offset, several without an axis for them in the batch, or
                arrays that differ in what a sample is.
        """
        if not self.arrays:
            raise GeometryError("a view needs at least one array")
        if not self.offsets:
            raise GeometryError(
                f"the window of array {self.arrays[0].name!r} has no offsets: give at least one, "
                "for example window(-1, 0)"
            )
        first = self.arrays[0]
        if (len(self.arrays) > 1 and not self.stacked) or (
            len(self.offsets) > 1 and not self.windowed
        ):
            raise GeometryError(
                f"a view of {len(self.arrays)} arrays at offsets {self.offsets} needs axes for "
                f"them: stacked={self.stacked}, windowed={self.windowed}; use stack() and window()"
            )
        for other in self.arrays[1:]:
            _check_stackable(first, other)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the batch, in native byte order."""
        return self.arrays[0].dtype

    @property
    def unit(self) -> str | None:
        """The unit of times, as "ns" or "10s"; None for other numbers."""
        return self.arrays[0].unit

    @property
    def field_shape(self) -> tuple[int, ...]:
        """Shape of one sample of one array."""
        return self.arrays[0].field_shape

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one draw: `([offsets], [arrays], *field)`, axes in brackets where they exist."""
        offsets = (len(self.offsets),) if self.windowed else ()
        arrays = (len(self.arrays),) if self.stacked else ()
        return (*offsets, *arrays, *self.field_shape)

    @property
    def min_offset(self) -> int:
        """The offset farthest into the past."""
        return min(self.offsets)

    @property
    def max_offset(self) -> int:
        """The offset farthest into the future."""
        return max(self.offsets)

    def shift(self, k: int) -> "View":
        """The same view `k` samples later; negative `k` is earlier.

        The sign is that of an offset: `shift(4)` is the future. xarray's and pandas' `shift(4)`
        move the data the other way and show the past.

        Raises:
            GeometryError: `k` is not an integer.
        """
        step = _integer(k, self.arrays[0].name)
        return replace(self, offsets=tuple(offset + step for offset in self.offsets))

    def window(self, *offsets: int) -> "View":
        """Several offsets as one view, counted from where this view stands.

        Args:
            offsets: Samples after the anchor (negative: before), in the order they are wanted.

        Raises:
            GeometryError: No offset, one that is not an integer, or a view that is a window.
        """
        name = self.arrays[0].name
        if self.windowed:
            raise GeometryError(
                f"the view of array {name!r} is a window of {self.offsets} already: "
                "give all offsets in one window"
            )
        base = self.offsets[0]
        steps = tuple(base + _integer(offset, name) for offset in offsets)
        return replace(self, offsets=steps, windowed=True)


def stack(*arrays: ArrayGeometry | View) -> View:
    """Equal arrays as channels of one view, gathered into place.

    Args:
        arrays: Arrays, or views of single arrays at the same offsets. Their chunks may differ.

    Returns:
        A view of shape `(B, [offsets], len(arrays), *field)` in a batch.

    Raises:
        GeometryError: Nothing to stack; a stack in a stack; other offsets; arrays that differ in
            field shape, dtype or number of samples.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> for name in ("u10", "v10"):
        ...     _ = zarr.create_array(store, name=name, shape=(9, 4), chunks=(2, 4), dtype="f4")
        >>> arrays = read_arrays(store)
        >>> stack(arrays["u10"], arrays["v10"]).sample_shape
        (2, 4)
    """
    views = [_as_view(item, f"argument {number} of stack") for number, item in enumerate(arrays)]
    if not views:
        raise GeometryError("stack needs at least one array")
    first = views[0]
    for view in views:
        if view.stacked:
            names = [array.name for array in view.arrays]
            raise GeometryError(f"{names} are stacked already: name all arrays in one stack")
        if (view.offsets, view.windowed) != (first.offsets, first.windowed):
            raise GeometryError(
                f"cannot stack array {first.arrays[0].name!r} at offsets {first.offsets} and array "
                f"{view.arrays[0].name!r} at offsets {view.offsets}: stack first, then shift or "
                "window the stack"
            )
    return replace(first, arrays=tuple(view.arrays[0] for view in views), stacked=True)


def as_views(mapping: Mapping[str, View | ArrayGeometry]) -> dict[str, View]:
    """Check that views can be drawn together, and turn bare arrays into views.

    Args:
        mapping: What a batch holds, by name.

    Returns:
        The views in the order given.

    Raises:
        GeometryError: No view; a name that is no text; a value that is no view; arrays of unequal
            length along the sample axis, of 0 samples or of empty fields; offsets so far apart that
            no anchor has them all.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(9, 4), chunks=(2, 4), dtype="f4")
        >>> t2m = read_arrays(store)["t2m"]
        >>> [(name, view.offsets) for name, view in as_views({"x": t2m, "y": t2m.shift(4)}).items()]
        [('x', (0,)), ('y', (4,))]
    """
    # Callers without a type checker may pass anything.
    items: object = mapping
    if not isinstance(items, Mapping) or not items:
        raise GeometryError(
            "views are a mapping with at least one entry, for example {'x': arrays['t2m']}, not "
            f"{type(items).__name__} of length {len(items) if isinstance(items, Sized) else 1}"
        )
    views = {}
    for name, item in items.items():
        if not isinstance(name, str) or not name:
            raise GeometryError(f"the name of a view is a text, not {name!r}")
        views[name] = _as_view(item, f"view {name!r}")
    _check_samples([array for view in views.values() for array in view.arrays])
    _check_span(views)
    return views


def array_offsets(views: Mapping[str, View]) -> dict[ArrayGeometry, tuple[int, ...]]:
    """The distinct arrays that views read, in order of first appearance, and at which offsets.

    Returns:
        Per array the sorted union of its offsets in all views.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(9, 4), chunks=(2, 4), dtype="f4")
        >>> t2m = read_arrays(store)["t2m"]
        >>> array_offsets(as_views({"x": t2m.window(-1, 0), "y": t2m.shift(4)}))[t2m]
        (-1, 0, 4)
    """
    offsets: dict[ArrayGeometry, set[int]] = {}
    for view in views.values():
        for array in view.arrays:
            offsets.setdefault(array, set()).update(view.offsets)
    return {array: tuple(sorted(values)) for array, values in offsets.items()}


def _as_view(item: object, where: str) -> View:
    if isinstance(item, View):
        return item
    if isinstance(item, ArrayGeometry):
        return item.shift(0)
    raise GeometryError(
        f"{where} is a {type(item).__name__}: give an array of open_arrays(...), or its shift(), "
        "window() or stack()"
    )


def _integer(value: object, name: str) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise GeometryError(f"an offset of array {name!r} is a whole number of samples, not {value!r}")


def _check_stackable(first: ArrayGeometry, other: ArrayGeometry) -> None:
    for what, ours, theirs, advice in (
        ("field shape", first.field_shape, other.field_shape, "give them as two views"),
        ("dtype", first.dtype, other.dtype, "give them as two views"),
        ("time unit", first.unit, other.unit, "give them as two views"),
        ("number of samples", first.n_samples, other.n_samples, "check sample_axis"),
    ):
        if ours != theirs:
            raise GeometryError(
                f"cannot stack arrays {first.name!r} and {other.name!r}: {what} {ours} against "
                f"{theirs}; {advice}"
            )


def _check_samples(arrays: Sequence[ArrayGeometry]) -> None:
    first = arrays[0]
    for array in arrays:
        if array.n_samples == 0 or array.sample_bytes == 0:
            what = "samples" if array.n_samples == 0 else "values in a sample"
            raise GeometryError(
                f"array {array.name!r} of shape {array.shape} has 0 {what} with sample axis "
                f"{array.sample_axis}: choose another array or sample_axis"
            )
        if array.n_samples != first.n_samples:
            raise GeometryError(
                f"array {first.name!r} has {first.n_samples} samples but array {array.name!r} has "
                f"{array.n_samples}: arrays that are drawn together need sample axes of equal "
                f"length (shapes {first.shape} with axis {first.sample_axis}, {array.shape} with "
                f"axis {array.sample_axis})"
            )


def _check_span(views: Mapping[str, View]) -> None:
    earliest = min(views, key=lambda name: views[name].min_offset)
    latest = max(views, key=lambda name: views[name].max_offset)
    # An anchor is itself a sample of the axis, so offset 0 counts even where no view reads it.
    low = min(views[earliest].min_offset, 0)
    high = max(views[latest].max_offset, 0)
    array = views[earliest if low < 0 else latest].arrays[0]
    if high - low >= array.n_samples:
        raise GeometryError(
            f"views reach from {low} (view {earliest!r}) to {high:+d} (view {latest!r}) around the "
            f"anchor, {high - low + 1} samples, but array {array.name!r} has {array.n_samples}: no "
            "anchor has them all; use nearer offsets"
        )
