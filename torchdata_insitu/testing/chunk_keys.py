"""Which keys of a store something concerns."""

from collections.abc import Callable, Collection

from torchdata_insitu.geometry.store_nodes import METADATA_KEYS

type Match = str | Collection[str] | Callable[[str], bool]
"""One key, several, or a function that says whether a key is meant."""


def is_chunk(key: str) -> bool:
    """Whether a key is none of the metadata documents.

    Example:
        >>> is_chunk("t/c/0/0"), is_chunk("t/zarr.json")
        (True, False)
    """
    return key.rpartition("/")[2] not in METADATA_KEYS


def matcher(match: Match) -> Callable[[str], bool]:
    """A function that says whether a key is meant.

    Example:
        >>> [matcher(match)("t/c/0") for match in ("t/c/0", ["t/c/0", "t/c/1"], is_chunk, "t/c")]
        [True, True, True, False]
    """
    if callable(match):
        return match
    return frozenset([match] if isinstance(match, str) else match).__contains__
