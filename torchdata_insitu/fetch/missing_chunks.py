"""Whether missing chunks mean sparse data or a wrong path."""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

from zarr.abc.store import Store

from torchdata_insitu.errors import GeometryError, ReadError
from torchdata_insitu.fetch.chunk_load import Cancelled
from torchdata_insitu.fetch.stores import store_text
from torchdata_insitu.fetch.zarr_loop import zarr_loop
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.redaction import reason, shown

_CHUNK_KEY = re.compile(r"(c[./])?\d+([./]\d+)*")
_METADATA = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
_MOST_KEYS = 1000
_TIMEOUT_S = 60.0


class MissingChunkCheck:
    """Lists keys of a store until the first chunk key below an array.

    Zarr fills what is missing and says nothing, so that a store whose chunks lie elsewhere, or
    under keys with another separator, reads as an epoch of fill values.
    """

    def __init__(self, store: Store, root: str | None) -> None:
        self._store = store
        self._root = root
        self._listing: Future[str | None] | None = None
        # Held while a listing is started, so that whoever sees it run can interrupt it.
        self._starting = threading.Lock()

    def check(self, array: ArrayGeometry, first_key: str, *, other_hit: str | None) -> None:
        """Return where chunks of the array exist under keys of the shape that was asked for.

        Args:
            array: The array of which every chunk asked for was missing.
            first_key: The key of one of its chunks.
            other_hit: Another array of the store of which a chunk was found.

        Raises:
            ReadError: No chunk is stored, or none can be listed and `other_hit` is None.
            GeometryError: The chunks have keys of another shape.
            Cancelled: `interrupt` was called.
        """
        prefix = f"{array.path}/" if array.path else ""
        where = f"below {prefix!r} in {store_text(self._store)}"
        try:
            found = self._first_chunk_key(prefix)
        except CancelledError as cause:
            raise Cancelled(f"the listing of keys {where} was cancelled") from cause
        except Exception as cause:  # noqa: BLE001
            if other_hit is not None:
                return
            msg = (
                f"every chunk of array {array.name!r} that was asked for is missing, the first "
                f"under the key {first_key!r}, and keys {where} cannot be listed "
                f"({reason(cause)}): check the path of the store, or give on_missing='fill' where "
                "absent chunks stand for the fill value"
            )
            raise ReadError(msg) from shown(cause)
        if found is None:
            msg = (
                f"array {array.name!r} has metadata but no chunk {where}: the first key asked for "
                f"was {first_key!r}; check the path of the store, and that its chunks were copied, "
                "or give on_missing='fill' where all of them stand for the fill value"
            )
            raise ReadError(msg)
        asked = first_key.removeprefix(prefix)
        if _shape(found) != _shape(asked):
            msg = (
                f"the chunks of array {array.name!r} are stored under keys such as {found!r}, but "
                f"its metadata says {asked!r} ({where}): correct dimension_separator or "
                "chunk_key_encoding in the metadata"
            )
            raise GeometryError(msg)

    def interrupt(self) -> None:
        """Cancel a listing that is under way."""
        with self._starting:
            if self._listing is not None:
                self._listing.cancel()

    def _first_chunk_key(self, prefix: str) -> str | None:
        if self._root is not None:
            return next(filter(_CHUNK_KEY.fullmatch, _files(f"{self._root}/{prefix}")), None)
        if not self._store.supports_listing:
            msg = f"{type(self._store).__name__} does not support listing"
            raise NotImplementedError(msg)
        loop = zarr_loop()
        listing: Future[str | None] | None = None
        try:
            with self._starting:
                listing = asyncio.run_coroutine_threadsafe(self._list(prefix), loop)
                self._listing = listing
            return listing.result(_TIMEOUT_S)
        except TimeoutError as cause:
            raise TimeoutError(f"no answer for {_TIMEOUT_S:.0f} s") from cause
        finally:
            self._listing = None
            if listing is not None:
                # Also after an interrupt of the wait for it.
                listing.cancel()

    async def _list(self, prefix: str) -> str | None:
        keys = self._store.list_prefix(prefix)
        n_keys = 0
        try:
            async for key in keys:
                name = key.removeprefix(prefix)
                if _CHUNK_KEY.fullmatch(name):
                    return name
                n_keys += name not in _METADATA
                if n_keys > _MOST_KEYS:
                    break
        finally:
            close = getattr(keys, "aclose", None)
            if close is not None:
                await close()
        return None


def _files(folder: str, below: str = "") -> Iterator[str]:
    """Paths of files below a folder, in no order, folder by folder as they are asked for."""
    folders = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.name)
                else:
                    yield below + entry.name
    except FileNotFoundError:
        return
    for name in folders:
        yield from _files(f"{folder}{name}/", f"{below}{name}/")


def _shape(key: str) -> str:
    return re.sub(r"\d+", "0", key)
