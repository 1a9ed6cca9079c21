"""Whole numbers that people give: counts, seeds, gaps."""

import operator
from typing import SupportsIndex

from torchdata_insitu.errors import PlanError


def whole_number(name: str, value: SupportsIndex | object, *, least: int | None = None) -> int:
    """The value as an `int`; numpy's integers are taken, truth values and floats are not.

    Args:
        name: What it is, for the message.
        value: What was given.
        least: The smallest one allowed.

    Raises:
        PlanError: No whole number, or one below `least`.

    Example:
        >>> whole_number("seed", 7)
        7
        >>> whole_number("block_chunks", 0, least=1)
        Traceback (most recent call last):
        ...
        torchdata_insitu.errors.PlanError: block_chunks is 0: it must be at least 1
    """
    number = None
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        number = operator.index(value)
    if number is None:
        msg = f"{name} is a whole number, not {value!r} of type {type(value).__name__}"
        raise PlanError(msg)
    if least is not None and number < least:
        msg = f"{name} is {number}: it must be at least {least}"
        raise PlanError(msg)
    return number
