"""Arrays of a Zarr store, each read from its own metadata."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from torchdata_insitu.errors import GeometryError, InSituError, ReadError
from torchdata_insitu.geometry.array_document import ROOT_NAME
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.array_options import ArrayOption, ArrayOptions
from torchdata_insitu.geometry.array_reading import read_geometry
from torchdata_insitu.geometry.chunk_separator import with_separator
from torchdata_insitu.geometry.coordinate_names import is_coordinate, named_by_attributes
from torchdata_insitu.geometry.listed_names import listed
from torchdata_insitu.geometry.store_nodes import METADATA_KEYS, StoreNode, read_node, walk
from torchdata_insitu.geometry.unknown_names import refuse
from torchdata_insitu.redaction import advice, reason, shown

if TYPE_CHECKING:
    from torchdata_insitu.geometry.torch_dtypes import SlotDType

_COORDINATE = "a coordinate, bounds or grid mapping"
_logger = logging.getLogger(__name__)

_MAX_READS = 64


def read_arrays(
    store: Store,
    names: Sequence[str] | str | None = None,
    *,
    sample_axis: int | str | Mapping[str, int | str] = 0,
    decode_cf: bool = True,
    field: str | Mapping[str, str] | None = None,
    dtype: "SlotDType | Mapping[str, SlotDType] | None" = None,
    label: str | None = None,
    where: str = "the store",
) -> dict[str, ArrayGeometry]:
    """Read what the arrays of a store are; no data is read.

    Consolidated metadata may be out of date, so it only serves to find names where a store cannot
    be listed.

    Args:
        store: A Zarr store, format 2 or 3. An array at its root is called "data".
        names: Paths of arrays. None takes the arrays of all groups except coordinates, bounds and
            grid mappings, scalars, and what cannot be drawn (text, unknown codecs, broken metadata,
            an array without the sample axis); each is logged with the reason.
        sample_axis: Number or dimension name of the axis that counts samples, or these by array;
            an array that the mapping does not name has 0.
        decode_cf: Turn stored numbers into physical ones by `_FillValue`, `missing_value`,
            `scale_factor` and `add_offset`, as xarray does. With False they are used as stored.
        field: The field that is read of structured values, or fields by array.
        dtype: What a slot holds, to which decoded values are cast; or dtypes by array. An array
            that the mapping does not name keeps its own.
        label: Label of the store where a loader reads from several.
        where: What messages call the store.

    Returns:
        The arrays by path, in the order of `names`, else sorted.

    Raises:
        GeometryError: No such array; one that was named cannot be drawn; nothing is left.
        ReadError: The store has no Zarr metadata, or does not answer.

    Example:
        >>> import zarr
        >>> store = zarr.storage.MemoryStore()
        >>> for name, dims in (("t2m", ("time", "lat")), ("lat", ("lat",))):
        ...     shape = (9, 4)[-len(dims) :]
        ...     _ = zarr.create_array(
        ...         store, name=name, shape=shape, chunks=shape, dtype="f4", dimension_names=dims
        ...     )
        >>> list(read_arrays(store))
        ['t2m']
        >>> read_arrays(store, "t2m", sample_axis="lat")["t2m"].n_samples
        4
    """
    options = ArrayOptions(
        sample_axis, decode_cf, field, dtype, path=lambda name: _path(name) or ROOT_NAME
    )

    def geometry(node: StoreNode) -> ArrayGeometry:
        return read_geometry(node.array(), label, options.of(node.name))

    documents = _ZarrDocuments(store, where)
    if names is not None:
        nodes = sync(_named_nodes(documents, _wanted(names)))
        arrays = {node.name: geometry(node) for node in nodes}
    else:
        nodes = sync(_all_nodes(documents))
        coordinates = _coordinates(nodes)
        arrays = {}
        left_out: dict[str, str] = {}
        for node in nodes:
            if node.is_group:
                continue
            if node.name in coordinates:
                left_out[node.name] = _COORDINATE
                continue
            try:
                arrays[node.name] = geometry(node)
            except ReadError as error:
                # What the store does not give for the moment decides over no array.
                raise ReadError(f"{error}; or name the arrays to open") from error
            except InSituError as error:
                if options.names(node.name) or len(nodes) == 1:
                    raise
                left_out[node.name] = str(error)
                option = options.of(node.name)
                plain = option._replace(field=None, dtype=None)
                if plain != option and _opens(node, label, plain):
                    _logger.warning(
                        "left out %r, which would open without dtype and field: %s; give these as "
                        "a mapping from arrays to choose",
                        *(node.name, error),
                    )
        options.check_opened([*arrays, *left_out])
        _report_left_out(arrays, left_out)
    options.check_opened(arrays)
    return arrays


class _ZarrDocuments:
    """The JSON documents of a Zarr store, at most `_MAX_READS` read at a time."""

    def __init__(self, store: Store, where: str) -> None:
        self._store = store
        self.where = where
        self._slots = asyncio.Semaphore(_MAX_READS)

    async def open(self) -> None:
        """Open a store that was given unopened, as an archive may be."""
        try:
            await StorePath.open(self._store, "")
        except Exception as error:  # noqa: BLE001
            why = f"{reason(error)}; {advice(error)}"
            raise ReadError(f"{self.where} cannot be opened: {why}") from shown(error)

    async def read(self, key: str) -> Mapping[str, Any] | None:
        async with self._slots:
            try:
                buffer = await self._store.get(key, prototype=default_buffer_prototype())
            except Exception as error:  # noqa: BLE001
                if _is_below_a_file(error):
                    return None
                why = f"{reason(error)}; {advice(error)}"
                raise ReadError(
                    f"metadata {key!r} of {self.where} could not be read: {why}"
                ) from shown(error)
        if buffer is None:
            return None
        try:
            document = json.loads(buffer.to_bytes())
        except ValueError as error:
            raise GeometryError(f"metadata {key!r} is not JSON: {error}") from error
        except RecursionError as error:
            raise GeometryError(f"metadata {key!r} is nested too deep to be read") from error
        if not isinstance(document, dict):
            raise GeometryError(f"metadata {key!r} is no JSON object: {document!r:.60}")
        return document

    async def has(self, key: str) -> bool | None:
        """Whether there is such a key; None where the store gives no answer."""
        async with self._slots:
            try:
                return await self._store.exists(key)
            except Exception as error:  # noqa: BLE001
                _logger.debug(
                    "%s does not say whether it has %r: %s", self.where, key, reason(error)
                )
                return None

    async def why_empty(self) -> str:
        """What a listing says of a store in which nothing is found, for the end of a text."""
        try:
            async for _ in self._store.list_dir(""):
                return "; it has other keys, so that it may be the folder above or below"
        except Exception as error:  # noqa: BLE001
            return f"; keys cannot be listed either: {reason(error)}"
        return "; it has no keys at all"

    async def children(self, path: str) -> list[str]:
        try:
            names = [name.strip("/") async for name in self._store.list_dir(path)]
        except Exception as error:  # noqa: BLE001
            raise ReadError(
                f"{self.where} cannot be listed ({reason(error)}): name the arrays to open"
            ) from shown(error)
        return [name for name in names if name and name not in METADATA_KEYS]


def _is_below_a_file(error: Exception) -> bool:
    """Whether a folder has a file where the key goes on: there is no such key, as for Zarr."""
    # obstore raises an error of no kind of its own for it.
    return isinstance(error, NotADirectoryError) or "Not a directory (os error" in str(error)


def _wanted(names: Sequence[str] | str) -> list[str]:
    """Paths in the order asked for, each once."""
    asked = [names] if isinstance(names, str) else list(names)
    if not asked or not all(isinstance(name, str) for name in asked):
        raise GeometryError(f"names is a path or a sequence of paths, not {names!r}")
    return list(dict.fromkeys(_path(name) or ROOT_NAME for name in asked))


def _path(name: str) -> str:
    """A path as keys have it.

    Raises:
        GeometryError: It leads out of the store, or depends on how the store reads it.
    """
    parts = [part for part in name.split("/") if part]
    if {".", ".."} & set(parts):
        raise GeometryError(f"{name!r} is no path inside a store: it has the part '.' or '..'")
    return "/".join(parts)


async def _root(documents: _ZarrDocuments) -> StoreNode | None:
    await documents.open()
    return await read_node(documents, "")


async def _named_nodes(documents: _ZarrDocuments, names: Sequence[str]) -> list[StoreNode]:
    """The arrays of these names.

    Raises:
        GeometryError: One of them is no array; the text lists what there is.
    """
    root = await _root(documents)
    if root is not None and not root.is_group and root.fault is None:
        unknown = [name for name in names if name != ROOT_NAME]
        if unknown:
            raise GeometryError(
                f"no array {unknown[0]!r}: the store is one array, opened as {ROOT_NAME!r}"
            )
        return [await with_separator(documents, root)]
    nodes = await asyncio.gather(*(read_node(documents, name) for name in names))
    found = []
    for name, node in zip(names, nodes, strict=True):
        if node is None and root is not None and root.fault is not None:
            raise root.fault
        if node is None or node.is_group:
            await refuse(documents, root, name, is_group=node is not None)
        else:
            found.append(node)
    return await _with_separators(documents, found)


async def _all_nodes(documents: _ZarrDocuments) -> list[StoreNode]:
    root = await _root(documents)
    if root is None:
        raise ReadError(
            f"no Zarr metadata at the root of {documents.where}: looked for zarr.json, .zarray and "
            f".zgroup; check the path{await documents.why_empty()}"
        )
    if root.fault is not None:
        raise root.fault
    nodes = await walk(documents, root) if root.is_group else [root]
    return await _with_separators(documents, nodes)


async def _with_separators(
    documents: _ZarrDocuments, nodes: Sequence[StoreNode]
) -> list[StoreNode]:
    return list(await asyncio.gather(*(with_separator(documents, node) for node in nodes)))


def _coordinates(nodes: Sequence[StoreNode]) -> set[str]:
    """Paths of the arrays that only describe others."""
    named = named_by_attributes((node.path, node.is_group, node.attributes) for node in nodes)
    for node in nodes:
        if node.is_group or node.fault is not None:
            continue
        try:
            dimension_names = node.array().dimension_names
        except GeometryError:
            # The array is left out for its broken metadata, with that reason.
            continue
        if is_coordinate(node.path, dimension_names, node.attributes):
            named.add(node.path)
    return named


def _opens(node: StoreNode, label: str | None, option: ArrayOption) -> bool:
    try:
        read_geometry(node.array(), label, option)
    except InSituError:
        return False
    return True


def _report_left_out(arrays: Mapping[str, ArrayGeometry], left_out: Mapping[str, str]) -> None:
    for name, why in left_out.items():
        _logger.info("left out %r: %s", name, why)
    if not arrays:
        why_all = set(left_out.values())
        found = [f"{name!r} ({why})" for name, why in left_out.items()]
        what = listed(found, separator="; ") or "nothing, its groups show no arrays"
        hint = "; name a coordinate by its path to open it" if _COORDINATE in why_all else ""
        raise GeometryError(f"the store has no array to draw samples from; left out: {what}{hint}")
