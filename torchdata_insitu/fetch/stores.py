"""Opening stores, and what they are called."""

import os
import re
import uuid
import weakref
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore.store
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
from torchdata_insitu.fetch.redaction import reason, without_secrets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_REMOTE = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")
_SUPPORTED = ("file", "memory", *_REMOTE)


def open_store(
    url: str | os.PathLike[str] | Store, *, dataset_id: str | None = None, **obstore_options: Any
) -> Store:
    """A Zarr store from a path or URL, read-only; nothing is read.

    Args:
        url: A folder or a zip file; `file://`, `memory://` (a `zarr.storage.ManagedMemoryStore` of
            this process), `s3://`, `gs://`, `az://`, `http://`, `https://`; an obstore store; or a
            Zarr store, which is returned as it is.
        dataset_id: A name of the content, the same wherever it is opened. Loaders of one process
            share resident chunks of stores with equal names.
        obstore_options: Passed to `obstore.store.from_url`, such as `region`, `skip_signature` or
            `client_options`; for object stores and `http` only.

    Raises:
        ReadError: The path does not exist, the scheme is not supported, or the options are not
            those of the store.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = open_store(folder)
        ...     type(store).__name__, store.read_only
        ('LocalStore', True)
        >>> open_store("s3://era5/zarr", region="eu-west-1", skip_signature=True)
        ObjectStore(object_store://S3Store(bucket="era5", prefix="zarr"))
    """
    store = _open(url, obstore_options)
    if dataset_id is not None:
        _entry(store).dataset_id = dataset_id
    return store


def store_id(store: Store) -> str:
    """The `dataset_id` of a store, else a token that no other store object has."""
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
        return _object_store_text(store.store)
    return type(store).__name__


def _open(url: object, options: dict[str, Any]) -> Store:
    scheme = _SCHEME.match(url) if isinstance(url, str) else None
    if isinstance(url, str) and scheme and scheme[1].lower() in _REMOTE:
        return _open_remote(url, scheme[1].lower(), options)
    if options:
        msg = (
            f"the options {sorted(options)} are for {', '.join(f'{s}://' for s in _REMOTE)}: give "
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
        return _open_path(Path(url).expanduser())
    msg = f"a store is a path, a URL or a Zarr store, not a {type(url).__name__}"
    raise ReadError(msg)


def _open_url(url: str, scheme: str) -> Store:
    if scheme == "file":
        return _open_path(Path(unquote(urlsplit(url).path)))
    if scheme == "memory":
        try:
            return ManagedMemoryStore.from_url(url, read_only=True)
        except ValueError as cause:
            raise ReadError(f"there is no store {url!r} in this process: {cause}") from cause
    msg = (
        f"cannot open {without_secrets(url)}: the scheme {scheme!r} is none of "
        f"{', '.join(_SUPPORTED)}; make a Zarr store of it (zarr.storage.FsspecStore.from_url "
        "reads many more) and give that"
    )
    raise ReadError(msg)


def _open_path(path: Path) -> Store:
    # Absolute, so that a later change of the working directory changes nothing.
    path = path.absolute()
    if path.is_dir():
        return LocalStore(path, read_only=True)
    if not path.exists():
        raise ReadError(f"there is no store at {path}: no such file or folder")
    if zipfile.is_zipfile(path):
        return ZipStore(path, mode="r", read_only=True)
    raise ReadError(f"{path} is a file but no zip file: give the folder of the Zarr store")


def _open_remote(url: str, scheme: str, options: dict[str, Any]) -> Store:
    if scheme == "http":
        # The user asked for it by name; obstore refuses plain http otherwise.
        client = {"allow_http": True, **(options.get("client_options") or {})}
        options = {**options, "client_options": client}
    try:
        return ObjectStore(obstore.store.from_url(url, **options), read_only=True)
    except Exception as cause:  # noqa: BLE001
        # Without the cause, which may show the options.
        where = f"{without_secrets(url)} with options {sorted(options)}"
        raise ReadError(f"cannot open {where}: {reason(cause)}") from None


def _object_store_text(store: Any) -> str:
    kind = type(store).__name__
    prefix = getattr(store, "prefix", None)
    tail = f"/{prefix}" if prefix else ""
    if isinstance(store, obstore.store.HTTPStore):
        return without_secrets(store.url)
    if isinstance(store, obstore.store.LocalStore):
        return f"file://{prefix or '/'}"
    config = getattr(store, "config", {})
    if isinstance(store, obstore.store.S3Store):
        return f"s3://{config.get('bucket')}{tail}"
    if isinstance(store, obstore.store.GCSStore):
        return f"gs://{config.get('bucket')}{tail}"
    if isinstance(store, obstore.store.AzureStore):
        return f"az://{config.get('account_name')}/{config.get('container_name')}{tail}"
    return kind


@dataclass
class _Entry:
    """What is remembered of a store object."""

    token: str
    dataset_id: str | None = None


# Stores cannot be hashed and compare by content, so that they are told apart by identity; an entry
# goes with its store, before the number can be given to another object.
_ENTRIES: dict[int, _Entry] = {}


def _entry(store: Store) -> _Entry:
    number = id(store)
    entry = _ENTRIES.get(number)
    if entry is None:
        entry = _ENTRIES.setdefault(number, _Entry(token=f"store-{uuid.uuid4().hex}"))
        weakref.finalize(store, _ENTRIES.pop, number, None).atexit = False
    return entry
