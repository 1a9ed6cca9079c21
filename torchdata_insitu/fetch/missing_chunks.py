"""Whether missing chunks mean sparse data or a wrong path."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError

from zarr.abc.store import Store

from torchdata_insitu.errors import GeometryError, ReadError
from torchdata_insitu.fetch.chunk_load import Cancelled
from torchdata_insitu.fetch.stores import store_text
from torchdata_insitu.fetch.zarr_loop import call_on_zarr_loop, zarr_loop
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.store_nodes import METADATA_KEYS
from torchdata_insitu.redaction import reason, shown

_CHUNK_KEY = re.compile(r"(c[./])?\d+([./]\d+)*")
# What keys begin with, and the separator, in every encoding of chunk keys.
_ENCODINGS = (("", "."), ("", "/"), ("c/", "/"), ("c.", "."))
_MOST_KEYS = 1000
_TIMEOUT_S = 60.0


class MissingChunkCheck:
    """Lists keys of a store until the first chunk key below an array.

    Zarr fills what is missing and says nothing, so that a store whose chunks lie elsewhere, or
    under keys with another separator, reads as an epoch of fill values. Where keys cannot be
    listed, some are asked for as the other encodings spell them.
    """

    def __init__(self, store: Store, root: str | None) -> None:
        self._store = store
        self._root = root
        self._awaited: Future[str | None] | None = None

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
        asked = first_key.removeprefix(prefix)
        refusal: Exception | None = None
        try:
            try:
                found = self._listed_key(prefix, asked)
            except CancelledError:
                raise
            except Exception as cause:  # noqa: BLE001
                refusal = cause
                others = [prefix + key for key in _keys_elsewhere(array, asked)]
                found = self._run(lambda: self._first_of(others))
                found = None if found is None else found.removeprefix(prefix)
        except CancelledError as cause:
            raise Cancelled(f"the search for keys {where} was cancelled") from cause
        if found is not None and _shape(found) != _shape(asked):
            msg = (
                f"the chunks of array {array.name!r} are stored under keys such as {found!r}, but "
                f"its metadata says {asked!r} ({where}): correct dimension_separator or "
                "chunk_key_encoding in the metadata"
            )
            raise GeometryError(msg)
        if found is not None or (refusal is not None and other_hit is not None):
            return
        if refusal is not None:
            msg = (
                f"every chunk of array {array.name!r} that was asked for is missing, the first "
                f"under the key {first_key!r}, and keys {where} cannot be listed "
                f"({reason(refusal)}): check the path of the store, or give on_missing='fill' "
                "where absent chunks stand for the fill value"
            )
            raise ReadError(msg) from shown(refusal)
        msg = (
            f"array {array.name!r} has metadata but no chunk {where}: the first key asked for "
            f"was {first_key!r}; check the path of the store, and that its chunks were copied, "
            "or give on_missing='fill' where all of them stand for the fill value"
        )
        raise ReadError(msg)

    def interrupt(self) -> None:
        """Cancel a search for keys that is under way."""
        awaited = self._awaited
        if awaited is not None:
            awaited.cancel()

    def _listed_key(self, prefix: str, asked: str) -> str | None:
        """A key of the asked shape below a prefix, else any chunk key, else None."""
        if self._root is not None:
            return _TellingKey(asked).of(_files(f"{self._root}/{prefix}"))
        if not self._store.supports_listing:
            msg = f"{type(self._store).__name__} does not support listing"
            raise NotImplementedError(msg)
        return self._run(lambda: self._list(prefix, asked))

    def _run(self, search: "_Search") -> str | None:
        # Here before it is begun, so that whoever sees the search run can end it, and so that an
        # interrupt at any point leaves none behind.
        answer: Future[str | None] = Future()
        self._awaited = answer
        try:
            zarr_loop().call_soon_threadsafe(_begin, search, answer)
            return answer.result(_TIMEOUT_S)
        except TimeoutError as cause:
            raise TimeoutError(f"no answer for {_TIMEOUT_S:.0f} s") from cause
        finally:
            self._awaited = None
            answer.cancel()

    async def _list(self, prefix: str, asked: str) -> str | None:
        keys = self._store.list_prefix(prefix)
        telling = _TellingKey(asked)
        try:
            async for key in keys:
                if telling.is_enough(key.removeprefix(prefix)):
                    break
        finally:
            close = getattr(keys, "aclose", None)
            if close is not None:
                await close()
        return telling.found

    async def _first_of(self, keys: Iterable[str]) -> str | None:
        """The first of some keys that exists; one without an answer counts as none."""
        keys = list(keys)
        found = await asyncio.gather(*map(self._store.exists, keys), return_exceptions=True)
        return next(
            (key for key, is_there in zip(keys, found, strict=True) if is_there is True), None
        )


type _Search = Callable[[], Coroutine[None, None, str | None]]


def _begin(search: _Search, answer: "Future[str | None]") -> None:
    """Start a search on the running loop; it ends when its answer is cancelled."""
    if answer.cancelled():
        return
    task = asyncio.get_running_loop().create_task(search())

    def end(task: "asyncio.Task[str | None]") -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            error = None if task.cancelled() else task.exception()
            if task.cancelled():
                answer.cancel()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

    def cancel() -> None:
        task.cancel()

    task.add_done_callback(end)
    answer.add_done_callback(lambda _: call_on_zarr_loop(cancel))


class _TellingKey:
    """Of names below an array, the one that tells how its chunks are stored."""

    def __init__(self, asked: str) -> None:
        self.found: str | None = None
        self._shape = _shape(asked)
        self._n_names = 0

    def is_enough(self, name: str) -> bool:
        """Look at a name, and say whether no further one is needed."""
        self._n_names += name not in METADATA_KEYS
        if _CHUNK_KEY.fullmatch(name):
            if _shape(name) == self._shape:
                self.found = name
                return True
            # What another encoding has left behind does no harm beside keys of the right one.
            self.found = self.found or name
        return self._n_names > _MOST_KEYS

    def of(self, names: Iterable[str]) -> str | None:
        """Look at names until it is clear, and return the one that tells."""
        any(map(self.is_enough, names))
        return self.found


def _keys_elsewhere(array: ArrayGeometry, asked: str) -> list[str]:
    """How other encodings spell the keys of the first chunk, the last and one between them."""
    counts = (array.grid if array.shards is None else array.shards.grid).shape
    places = [[0] * len(counts), [n // 2 for n in counts], [max(0, n - 1) for n in counts]]
    keys = [
        start + separator.join(map(str, place))
        for place in places
        for start, separator in _ENCODINGS
    ]
    return list(dict.fromkeys(key for key in keys if _shape(key) != _shape(asked)))


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
