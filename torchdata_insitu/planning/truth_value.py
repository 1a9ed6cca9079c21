"""Truth values that people give."""

from torchdata_insitu.errors import PlanError


def truth_value(name: str, value: object) -> bool:
    """The value if it is True or False; nothing else is taken for one of them.

    Args:
        name: What it is, for the message.
        value: What was given.

    Raises:
        PlanError: Anything else.

    Example:
        >>> truth_value("strict", False)
        False
        >>> truth_value("strict", "no")
        Traceback (most recent call last):
        ...
        torchdata_insitu.errors.PlanError: strict is 'no' of type str: choose True or False
    """
    if not isinstance(value, bool):
        raise PlanError(f"{name} is {value!r} of type {type(value).__name__}: choose True or False")
    return value
