"""Finding the arrays and groups of a store by their metadata documents."""

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torchdata_insitu.errors import GeometryError, InSituError, ReadError
from torchdata_insitu.geometry.array_document import ROOT_NAME, ArrayDocument

_FORMAT_2 = 2
_FORMAT_3 = 3
_KEYS_2 = (".zarray", ".zattrs", ".zgroup")
_KEYS_3 = ("zarr.json",)
_CONSOLIDATED_2 = ".zmetadata"
METADATA_KEYS = frozenset({*_KEYS_3, *_KEYS_2, _CONSOLIDATED_2})
"""Names of the documents of a store, below any of its arrays and groups."""


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
        is_group = document.get("node_type") == "group"
        attributes = document.get("attributes")
        fault = None
        if not is_group:
            fault = _format_fault(path, document) or _attributes_fault(path, attributes)
        return StoreNode(path, document, _attributes(attributes), is_group, fault)
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
    metadata, and every node is still read from its own document; one that is listed there and has
    none is in the result with that fault. A group may hold nodes of the other format.

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
        nodes = [
            _gone(path) if node is None else node for path, node in zip(paths, read, strict=True)
        ]
    return [root, *sorted(nodes, key=lambda node: node.path)]


async def _below(documents: Documents, group: StoreNode) -> list[StoreNode]:
    is_format_2 = group.document.get("zarr_format") == _FORMAT_2
    names = sorted(set(await documents.children(group.path)))
    paths = [posixpath.join(group.path, name) for name in names]
    read = await asyncio.gather(
        *(_child(documents, path, is_format_2=is_format_2) for path in paths)
    )
    nodes = [node for node in read if node is not None]
    groups = [node for node in nodes if node.is_group]
    for deeper in await asyncio.gather(*(_below(documents, child) for child in groups)):
        nodes.extend(deeper)
    return nodes


async def _child(documents: Documents, path: str, *, is_format_2: bool) -> StoreNode | None:
    # Nearly every child has the format of its group: one of the other costs further reads.
    first, second = (_KEYS_2, _KEYS_3) if is_format_2 else (_KEYS_3, _KEYS_2)
    node = await read_node(documents, path, first)
    return await read_node(documents, path, second) if node is None else node


async def _consolidated_paths(documents: Documents, root: StoreNode) -> list[str]:
    if root.document.get("zarr_format") == _FORMAT_2:
        consolidated = await documents.read(posixpath.join(root.path, _CONSOLIDATED_2))
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


def _format_fault(path: str, document: Mapping[str, Any]) -> InSituError | None:
    """Drafts of format 3 have a `zarr.json` of another form, which is neither array nor group."""
    zarr_format = document.get("zarr_format")
    if zarr_format == _FORMAT_3:
        return None
    return GeometryError(
        f"array {path or ROOT_NAME!r} has zarr_format {zarr_format!r} in its zarr.json, which is "
        f"that of format {_FORMAT_3}: write the store again"
    )


def _attributes_fault(path: str, attributes: object) -> GeometryError | None:
    """An array whose scale or mask may be lost with its attributes is not read without them."""
    if attributes is None or isinstance(attributes, Mapping):
        return None
    name = path or ROOT_NAME
    return GeometryError(
        f"array {name!r} has attributes that are no JSON object: {attributes!r:.60}"
    )


def _gone(path: str) -> StoreNode:
    fault = GeometryError(
        f"{path!r} is in the consolidated metadata, but has no metadata document of its own: it "
        "was deleted, or the store was not copied whole"
    )
    return StoreNode(path, {}, {}, is_group=False, fault=fault)
