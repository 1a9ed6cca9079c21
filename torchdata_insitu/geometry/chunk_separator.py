"""The separator in the chunk keys of a format 2 array whose metadata do not state it."""

import posixpath
from dataclasses import replace
from typing import Protocol

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.store_nodes import StoreNode

_FORMAT_2 = 2
_FIELD = "dimension_separator"
_DEFAULT = "."
_NESTED = "/"


class Keys(Protocol):
    """The keys of a store."""

    async def has(self, key: str) -> bool | None:
        """Whether there is such a key; None where the store gives no answer."""


async def with_separator(keys: Keys, node: StoreNode) -> StoreNode:
    """State the separator of chunk keys in the metadata of an array that lacks it.

    Writers of nested keys (`0/1`) may leave it out, and by the specification of format 2 it is then
    a dot: such an array would read as fill values. Which one it is shows the first chunk, if it is
    stored. Where it is not, or the store gives no answer, the metadata stay as they are.

    Args:
        keys: What is asked, at most twice, and only where there is a choice.
        node: Anything in a store.

    Returns:
        The node, or one that differs in this field of its document.
    """
    first = _first_chunk(node)
    if first is None:
        return node
    plain, nested = (
        posixpath.join(node.path, separator.join(first)) for separator in (_DEFAULT, _NESTED)
    )
    found = _DEFAULT
    if len(first) > 1 and await keys.has(plain) is False and await keys.has(nested):
        found = _NESTED
    elif node.document.get(_FIELD, found) is not None:
        return node
    return replace(node, document={**node.document, _FIELD: found})


def _first_chunk(node: StoreNode) -> list[str] | None:
    """Coordinates of a chunk, None where metadata state the separator or there is no chunk."""
    if node.is_group or node.fault is not None or node.document.get(_FIELD) is not None:
        return None
    array = node.array()
    try:
        shape = array.shape if array.zarr_format == _FORMAT_2 else ()
    except GeometryError:
        # The array is refused for its broken metadata, with that reason.
        return None
    return ["0"] * len(shape) if shape and all(shape) else None
