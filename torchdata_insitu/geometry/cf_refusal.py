"""The error of attributes of the CF conventions that are not decoded."""

from torchdata_insitu.errors import GeometryError


def not_decoded(name: str, what: str) -> GeometryError:
    """What to raise for an attribute that cannot be followed.

    Args:
        name: The array.
        what: The attribute and its value.

    Example:
        >>> str(not_decoded("t2m", "the scale_factor 'x', which is no number"))[:57]
        "array 't2m' has the scale_factor 'x', which is no number:"
    """
    return GeometryError(
        f"array {name!r} has {what}: this is not decoded; open it with decode_cf=False to get the "
        "stored numbers"
    )
