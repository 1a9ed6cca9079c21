"""Which arrays of a group only describe others."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NAMING_ATTRIBUTES = ("coordinates", "grid_mapping", "bounds")
"""CF attributes whose words name other arrays (CF conventions 1.11, sections 5, 5.6, 7.1)."""


def named_by_attributes(nodes: Iterable[tuple[str, bool, Mapping[str, Any]]]) -> set[str]:
    """Paths of the arrays that the attributes of others name as coordinates.

    Args:
        nodes: Per array and group its path, whether it is a group, and its attributes. A word is
            looked up from the group that the attribute is in.

    Example:
        >>> nodes = [("run/t2m", False, {"coordinates": "lat lon", "grid_mapping": "crs: x y"})]
        >>> sorted(named_by_attributes(nodes))
        ['run/crs', 'run/lat', 'run/lon', 'run/x', 'run/y']
    """
    named: set[str] = set()
    for path, is_group, attributes in nodes:
        group = path if is_group else posixpath.dirname(path)
        for key in _NAMING_ATTRIBUTES:
            value = attributes.get(key)
            if not isinstance(value, str):
                continue
            words = (word.strip(":") for word in value.split())
            paths = (posixpath.normpath(posixpath.join(group, word)) for word in words if word)
            named.update(other for other in paths if other != path)
    return named


def is_coordinate(
    path: str, dimension_names: Sequence[str | None], attributes: Mapping[str, Any]
) -> bool:
    """Whether an array shows by itself that it is a coordinate or a grid mapping.

    Args:
        path: The array in its store.
        dimension_names: One per axis.
        attributes: Its own.

    Example:
        >>> is_coordinate("run/lat", ("lat",), {}), is_coordinate("run/t2m", ("time", "lat"), {})
        (True, False)
    """
    is_self_named = tuple(dimension_names) == (posixpath.basename(path),)
    return is_self_named or "grid_mapping_name" in attributes
