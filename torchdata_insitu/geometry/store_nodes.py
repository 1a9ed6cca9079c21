"""Finding the arrays and groups of a store by their metadata documents."""

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torchdata_insitu.errors import InSituError, ReadError
from torchdata_insitu.geometry.array_document import ROOT_NAME, ArrayDocument

_FORMAT_2 = 2
_KEYS_2 = (".zarray", ".zattrs", ".zgroup")
_KEYS_3 = ("zarr.json",)


class Documents(Protocol):
    """The JSON documents of a store."""

    async def read(self, key: str) -> Mapping[str, Any] | None:
        """One document, None if there is none.

        Raises:
            ReadError: The store gave an error instead.
            GeometryError: The document is not a JSON object.
        """

    async def children(self, path: str) -> list[str]:
        """Names directly below a group, whatever they are.

        Raises:
            ReadError: The store cannot list.
        """


@dataclass(frozen=True)
class StoreNode:
    """An array or a group of a store."""

    path: str
    """Inside the store, empty at the root."""
    document: Mapping[str, Any]
    """`zarr.json`, `.zarray` or `.zgroup`; empty where it cannot be read."""
    attributes: Mapping[str, Any]
    """The node's own."""
    is_group: bool
    """False for arrays and for what cannot be read."""
    fault: InSituError | None = None
    """Why the node cannot be read."""

    @property
    def name(self) -> str:
        """The path, and "data" at the root."""
        return self.path or ROOT_NAME

    def array(self) -> ArrayDocument:
        """The metadata of an array.

        Raises:
            InSituError: It could not be read.
        """
        if self.fault is not None:
            raise self.fault
        return ArrayDocument(self.path, self.document, self.attributes)


async def read_node(
    documents: Documents, path: str, keys: Sequence[str] = (*_KEYS_3, *_KEYS_2)
) -> StoreNode | None:
    """What lies at a path, by its own documents; format 3 where both formats are there.

    Args:
        documents: The store.
        path: An array or a group.
        keys: Documents to look for.

    Returns:
        None if there is no document.
    """
    results = await asyncio.gather(
        *(documents.read(posixpath.join(path, key)) for key in keys), return_exceptions=True
    )
    found: dict[str, Mapping[str, Any]] = {}
    faults: dict[str, InSituError] = {}
    for key, result in zip(keys, results, strict=True):
        if isinstance(result, InSituError):
            faults[key] = result
        elif isinstance(result, BaseException):
            raise result
        elif result is not None:
            found[key] = result
    if "zarr.json" in found:
        document = found["zarr.json"]
        attributes = _attributes(document.get("attributes"))
        return StoreNode(path, document, attributes, document.get("node_type") == "group")
    # A bucket that may not be listed refuses missing keys too: what was found counts first.
    if ".zarray" in found and ".zattrs" not in faults:
        attributes = _attributes(found.get(".zattrs"))
        return StoreNode(path, found[".zarray"], attributes, is_group=False)
    if ".zgroup" in found and ".zarray" not in faults:
        return StoreNode(path, found[".zgroup"], _attributes(found.get(".zattrs")), is_group=True)
    if faults:
        return StoreNode(path, {}, {}, is_group=False, fault=next(iter(faults.values())))
    return None


async def walk(documents: Documents, root: StoreNode) -> list[StoreNode]:
    """All arrays and groups of a store, sorted by path, the root included.

    Where the store lists nothing below a root group, the names are those of the consolidated
    metadata, and every node is still read from its own document.

    Args:
        documents: The store.
        root: Its root.

    Raises:
        ReadError: The store cannot list and has no consolidated metadata.
    """
    try:
        nodes = await _below(documents, root)
        failure = None
    except ReadError as error:
        nodes, failure = [], error
    if not nodes:
        paths = await _consolidated_paths(documents, root)
        if failure is not None and not paths:
            raise failure
        read = await asyncio.gather(*(read_node(documents, path) for path in paths))
        nodes = [node for node in read if node is not None]
    return [root, *sorted(nodes, key=lambda node: node.path)]


async def _below(documents: Documents, group: StoreNode) -> list[StoreNode]:
    keys = _KEYS_2 if group.document.get("zarr_format") == _FORMAT_2 else _KEYS_3
    names = sorted(set(await documents.children(group.path)))
    paths = [posixpath.join(group.path, name) for name in names]
    read = await asyncio.gather(*(read_node(documents, path, keys) for path in paths))
    nodes = [node for node in read if node is not None]
    groups = [node for node in nodes if node.is_group]
    for deeper in await asyncio.gather(*(_below(documents, child) for child in groups)):
        nodes.extend(deeper)
    return nodes


async def _consolidated_paths(documents: Documents, root: StoreNode) -> list[str]:
    if root.document.get("zarr_format") == _FORMAT_2:
        consolidated = await documents.read(posixpath.join(root.path, ".zmetadata"))
    else:
        consolidated = root.document.get("consolidated_metadata")
    entries = consolidated.get("metadata") if isinstance(consolidated, Mapping) else None
    paths = {
        posixpath.dirname(key) if posixpath.basename(key) in _KEYS_2 else key
        for key in (entries if isinstance(entries, Mapping) else {})
    }
    return sorted(path for path in paths if path)


def _attributes(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
