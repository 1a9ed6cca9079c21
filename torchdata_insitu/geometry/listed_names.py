"""The first of many names, for the text of an error."""

import itertools
from collections.abc import Iterable

_MOST_LISTED = 20


def listed(names: Iterable[str], *, separator: str = ", ") -> str:
    """The first 20 of some names, and how many more there are.

    Args:
        names: As they are to be shown, such as quoted, or with what is said of each.
        separator: Between them.

    Returns:
        One line; empty without names.

    Example:
        >>> listed(["'t2m'", "'u10'"])
        "'t2m', 'u10'"
        >>> listed(map(str, range(22)), separator="; ").partition("; 18")[2]
        '; 19 and 2 more'
    """
    left = iter(names)
    text = separator.join(itertools.islice(left, _MOST_LISTED))
    n_more = sum(1 for _ in left)
    return f"{text} and {n_more} more" if n_more else text
