"""Which axis of an array counts samples."""

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument


def resolve_sample_axis(array: ArrayDocument, axis: object) -> int:
    """The number of an axis that is given by number or dimension name.

    Args:
        array: The array it is an axis of.
        axis: A number, negative from the end, or a dimension name.

    Returns:
        A number from 0 on.

    Raises:
        GeometryError: The array has no such axis.

    Example:
        >>> document = {"zarr_format": 3, "shape": [2, 9], "dimension_names": ["level", "time"]}
        >>> array = ArrayDocument("t2m", document, {})
        >>> resolve_sample_axis(array, "time"), resolve_sample_axis(array, -1)
        (1, 1)
    """
    names = array.dimension_names
    if isinstance(axis, str):
        if names.count(axis) == 1:
            return names.index(axis)
        if not array.has_dimension_names:
            raise GeometryError(
                f"{array.label} of shape {array.shape} has no dimension names, so sample_axis "
                f"{axis!r} cannot be looked up: give the number of the axis"
            )
        raise GeometryError(
            f"{array.label} has {names.count(axis)} dimensions named {axis!r} among {names}: "
            "sample_axis is one of them, or a number"
        )
    ndim = len(array.shape)
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise GeometryError(
            f"sample_axis of {array.label} is a number, a dimension name or a mapping from arrays "
            f"to these, not {axis!r}"
        )
    if not -ndim <= axis < ndim:
        raise GeometryError(
            f"{array.label} of shape {array.shape} has {ndim} axes but sample_axis is {axis}: "
            f"choose a number from {-ndim} to {ndim - 1}"
        )
    return axis % ndim
