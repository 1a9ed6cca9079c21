"""Opening stores, and what they are called."""

import contextlib
import os
import re
import uuid
import weakref
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from zarr.abc.store import Store
from zarr.storage import (
    FsspecStore,
    LocalStore,
    ManagedMemoryStore,
    MemoryStore,
    ObjectStore,
    WrapperStore,
    ZipStore,
)

from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch.object_stores import REMOTE, object_store_text, open_object_store
from torchdata_insitu.fetch.zarr_loop import call_on_zarr_loop
from torchdata_insitu.redaction import reason, without_secrets

# Two letters at least: one is a drive. fsspec's chains of schemes are refused by name.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-:]+)://")
_PATH_OF_URL = re.compile(r"(\w{2,}):/+")
_SUPPORTED = ("file", "memory", *REMOTE)


def open_store(
    url: str | os.PathLike[str] | Store, *, dataset_id: str | None = None, **obstore_options: Any
) -> Store:
    """A Zarr store from a path or URL, read-only; nothing is read.

    Credentials come from the options (`credential_provider` for those that expire), else from the
    environment (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`,
    ...) and the machine's role. A store that everybody may read is opened with
    `skip_signature=True`, one that is not the provider's own (MinIO, Ceph) with
    `endpoint="https://..."`.

    A request that fails for the moment is tried again up to 5 times within 15 s; it fails when it
    is not connected within 10 s, when no byte comes for 30 s, or after 10 minutes. Items of
    `retry_config` and `client_options` override these one by one. Chunks are read again as a whole
    on top of that.

    No message of the library shows credentials, but what Python prints of an obstore store or a
    pickled one does.

    Args:
        url: A folder or a zip file; `file://`, `memory://` (a `zarr.storage.ManagedMemoryStore` of
            this process), `s3://`, `gs://`, `az://`, `http://`, `https://`; an obstore store; or a
            Zarr store, which is returned as it is.
        dataset_id: A name of the content, the same wherever it is opened. Loaders of one process
            share resident chunks of stores with equal names.
        obstore_options: Passed to `obstore.store.from_url`, such as `region`, `skip_signature`,
            `endpoint`, `retry_config` or `client_options`; for object stores and `http` only.

    Returns:
        The store. It is the caller's to close, which matters for a zip file; one that
        `build_loader` or `open_arrays` makes of a path is closed by the loader and by the call.

    Raises:
        ReadError: The path does not exist or is no store, the scheme is not supported, the options
            are not those of the store, or `dataset_id` is no name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = open_store(folder)
        ...     type(store).__name__, store.read_only
        ('LocalStore', True)
        >>> open_store("s3://era5/zarr", region="eu-west-1", skip_signature=True)
        ObjectStore(object_store://S3Store(bucket="era5", prefix="zarr"))
    """
    if dataset_id == "" or not isinstance(dataset_id, str | None):
        msg = (
            f"dataset_id is {dataset_id!r} of type {type(dataset_id).__name__}: give a name of the "
            "content that is not empty, or None"
        )
        raise ReadError(msg)
    store = _open(url, obstore_options)
    if dataset_id is not None:
        _entry(store).dataset_id = dataset_id
    return store


def open_own_store(given: str | os.PathLike[str] | Store) -> Store:
    """As `open_store`, for a caller that ends what was made here with `close_own_store`."""
    store = open_store(given)
    if store is not given:
        _entry(store).is_own = True
    return store


def close_own_store(store: Store) -> None:
    """Close a store that `open_own_store` made, and none that was given to it.

    It is closed on Zarr's loop, behind the cancellations of reads that are already on their way
    there: a read that began after the closing would open a zip file again. A later read does so
    too, so that a store which was closed can be used.
    """
    if _entry(store).is_own:
        call_on_zarr_loop(store.close)


def store_id(store: Store) -> str:
    """The `dataset_id` of a store, else a token that stores of other content do not have.

    Local, zip and object stores that are open at the same time have one token if they are equal:
    the same place, read with the same options. Any other store has its own.
    """
    entry = _entry(store)
    return entry.dataset_id if entry.dataset_id is not None else entry.token


def store_text(store: Store) -> str:
    """What a store is, for messages: never credentials, queries or anything else of its options."""
    if isinstance(store, WrapperStore):
        return f"{type(store).__name__}({store_text(store._store)})"  # noqa: SLF001
    if isinstance(store, LocalStore | MemoryStore | ZipStore):
        return str(store)
    if isinstance(store, FsspecStore):
        protocol = store.fs.protocol
        scheme = protocol if isinstance(protocol, str) else protocol[0]
        # An HTTP file system keeps the whole URL for its path.
        path = store.path if "://" in store.path else f"{scheme}://{store.path}"
        return without_secrets(path)
    if isinstance(store, ObjectStore):
        return object_store_text(store.store)
    return type(store).__name__


def _open(url: object, options: dict[str, Any]) -> Store:
    scheme = _SCHEME.match(url) if isinstance(url, str) else None
    if isinstance(url, str) and scheme and scheme[1].lower() in REMOTE:
        return open_object_store(url, options)
    if options:
        msg = (
            f"the options {sorted(options)} are for {', '.join(f'{s}://' for s in REMOTE)}: give "
            "none with a path or a store"
        )
        raise ReadError(msg)
    if isinstance(url, Store):
        return url
    if type(url).__module__.startswith("obstore"):
        return ObjectStore(url, read_only=True)  # type: ignore[type-var]
    if isinstance(url, str) and scheme:
        return _open_url(url, scheme[1].lower())
    if isinstance(url, str | os.PathLike):
        return _open_path(url)
    msg = f"a store is a path, a URL or a Zarr store, not a {type(url).__name__}"
    raise ReadError(msg)


def _open_url(url: str, scheme: str) -> Store:
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path:
            shown = without_secrets(url)
            raise ReadError(f"{shown} names no folder: write file:/// and the whole path")
        return _open_path(unquote(parts.path))
    if scheme == "memory":
        with contextlib.suppress(ValueError):
            return ManagedMemoryStore.from_url(url, read_only=True)
        raise ReadError(
            f"there is no store {without_secrets(url)} in this process: make a "
            "zarr.storage.ManagedMemoryStore of that name, and keep it"
        )
    msg = (
        f"cannot open {without_secrets(url)}: the scheme {scheme!r} is none of "
        f"{', '.join(_SUPPORTED)}; make a Zarr store of it (zarr.storage.FsspecStore.from_url "
        "reads many more) and give that"
    )
    raise ReadError(msg)


def _open_path(given: str | os.PathLike[str]) -> Store:
    text = os.fspath(given)
    if not text:
        raise ReadError("the path of the store is empty: give a folder, a zip file or a URL")
    try:
        # Absolute, so that a later change of the working directory changes nothing.
        path = Path(text).expanduser().absolute()
        if path.is_dir():
            return LocalStore(path, read_only=True)
        if path.exists() and zipfile.is_zipfile(path):
            return ZipStore(path, mode="r", read_only=True)
        with path.open("rb"):
            pass
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError) as cause:
        raise ReadError(f"cannot open {text}: {reason(cause)}") from cause
    else:
        raise ReadError(f"{path} is a file but no zip file: give the folder of the Zarr store")
    if _PATH_OF_URL.match(text):
        url = without_secrets(_PATH_OF_URL.sub(r"\1://", text))
        raise ReadError(f"there is no store at the path {url}: give a URL as text, not as a path")
    raise ReadError(f"there is no store at {path}: no such file or folder")


@dataclass
class _Entry:
    """What is remembered of a store object."""

    store: weakref.ref[Store]
    token: str
    dataset_id: str | None = None
    is_own: bool = False


# Stores cannot be hashed, so that they are told apart by identity; an entry goes with its store,
# before the number can be given to another object.
_ENTRIES: dict[int, _Entry] = {}
# Stores that are equal when place and options are. Others compare what is stored, or not at all.
_COMPARED_BY_PLACE = (LocalStore, ZipStore, ObjectStore)


def _entry(store: Store) -> _Entry:
    number = id(store)
    entry = _ENTRIES.get(number)
    if entry is None:
        entry = _ENTRIES.setdefault(number, _Entry(weakref.ref(store), _token_of(store)))
        weakref.finalize(store, _ENTRIES.pop, number, None).atexit = False
    return entry


def _token_of(store: Store) -> str:
    # Only of stores that are open: one that was closed may have been written anew since.
    if type(store) in _COMPARED_BY_PLACE:
        for entry in list(_ENTRIES.values()):
            other = entry.store()
            if type(other) is type(store) and other == store:
                return entry.token
    return f"store-{uuid.uuid4().hex}"
