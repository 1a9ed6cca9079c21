"""What to say of a name that no array of a store has."""

import difflib
import unicodedata
from collections.abc import Iterable
from typing import NoReturn, Protocol

from torchdata_insitu.errors import GeometryError, ReadError
from torchdata_insitu.geometry.listed_names import listed
from torchdata_insitu.geometry.store_nodes import Documents, StoreNode, read_node, walk


class StoreDocuments(Documents, Protocol):
    """The JSON documents of a store, and what to say of it."""

    where: str
    """What messages call the store."""

    async def why_empty(self) -> str:
        """What there is in a store in which nothing was found, for the end of a text."""


async def refuse(
    documents: StoreDocuments, root: StoreNode | None, name: str, *, is_group: bool
) -> NoReturn:
    """Raise the error that says what the store has instead.

    Args:
        documents: The store.
        root: What lies at its root.
        name: What was asked for.
        is_group: Whether that is a group.

    Raises:
        GeometryError: Always, but for a store without any metadata.
        ReadError: That.
    """
    if root is None and not is_group:
        raise ReadError(
            f"no Zarr metadata in {documents.where}: looked for zarr.json, .zarray and .zgroup at "
            f"its root and below {name!r}; check the path{await documents.why_empty()}"
        )
    nodes: list[StoreNode] = []
    failure: ReadError | None = None
    try:
        nodes = await walk(documents, root) if root is not None else []
    except ReadError as error:
        failure = error
    gone = next((node.fault for node in nodes if node.path == name), None)
    if gone is not None:
        raise gone
    paths = [node.name for node in nodes if not node.is_group]
    other = await _other_spelling(documents, name, paths)
    if other is not None:
        # Both look the same in any message, and a store may have one beside the other.
        raise GeometryError(
            f"no array {name!r} in the store; it has that name with other code points: ask for "
            f"{other!a} instead of {name!a}"
        )
    if failure is not None:
        raise GeometryError(f"no array {name!r} in the store ({failure})") from failure
    inside = [path for path in paths if path.startswith(f"{name}/")]
    folded = {path.casefold(): path for path in paths}
    close = [folded[text] for text in difflib.get_close_matches(name.casefold(), folded, n=5)]
    has = listed(map(repr, dict.fromkeys([*inside, *close, *paths]))) or "no arrays"
    what = f"{name!r} is a group, not an array" if is_group else f"no array {name!r} in the store"
    raise GeometryError(f"{what}; it has {has}")


async def _other_spelling(documents: StoreDocuments, name: str, paths: Iterable[str]) -> str | None:
    """A path that differs in the Unicode normal form alone, whether the store can list or not."""
    for path in paths:
        if unicodedata.normalize("NFC", path) == unicodedata.normalize("NFC", name):
            return path
    for form in ("NFC", "NFD"):
        other = unicodedata.normalize(form, name)
        if other != name and await read_node(documents, other) is not None:
            return other
    return None
