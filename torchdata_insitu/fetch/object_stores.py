"""Object stores and plain HTTP: how they are opened, and what they are called."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import obstore.store
from zarr.storage import ObjectStore

from torchdata_insitu.errors import ReadError
from torchdata_insitu.redaction import reason, without_secrets

REMOTE = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")
# What the part of a URL behind the scheme names, where that is no bucket.
_HOLDERS = {"az": "container", "abfs": "container", "abfss": "container"}
_HOLDERS |= {"http": "host", "https": "host"}

# obstore's own ten retries within three minutes would let a wrong host look like one that hangs.
# Whole reads of chunks are tried again on top of these.
_RETRY_CONFIG = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
# obstore's 30 s for a whole request are too few for a large chunk on a slow line, and too many to
# notice a line that is dead.
_CLIENT_OPTIONS = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=30),
    "timeout": timedelta(minutes=10),
}
_ENDPOINT = re.compile(r"endpoint(_url)?$", re.IGNORECASE)
_SECRET = re.compile(r"key|secret|token|passw|header|proxy|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 4


def open_object_store(url: str, options: Mapping[str, Any]) -> ObjectStore[Any]:
    """A read-only Zarr store for a URL of one of the schemes in `REMOTE`; nothing is read.

    Args:
        url: The URL.
        options: Of `obstore.store.from_url`, laid over the defaults of `retry_config` and
            `client_options`, item by item.

    Raises:
        ReadError: The URL or an option is none; the text has no value of an option that may be a
            secret.
    """
    scheme, _, rest = url.partition("://")
    if not re.split(r"[/?#]", rest, maxsplit=1)[0]:
        what = _HOLDERS.get(scheme.lower(), "bucket")
        raise ReadError(f"{without_secrets(url)} names no {what}: write {scheme}://{what}/path")
    try:
        return ObjectStore(
            obstore.store.from_url(_ended(url), **_with_defaults(url, options)), read_only=True
        )
    except Exception as cause:  # noqa: BLE001
        why = reason(cause)
    # Behind the handler, so that the error has no context: what obstore raised may show options.
    for secret in _secrets(options):
        why = why.replace(secret, "***")
    given = f" with the options {sorted(options)}" if options else ""
    raise ReadError(f"cannot open {without_secrets(url)}{given}: {why}")


def object_store_text(store: Any) -> str:
    """What an obstore store is, for messages: nothing of its options but where it is."""
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
    return type(store).__name__


def _ended(url: str) -> str:
    """A URL without a slash at the end of its path, where obstore would put a second one."""
    path, *query = re.split(r"(?=[?#])", url, maxsplit=1)
    return "".join([path.rstrip("/"), *query])


def _with_defaults(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    client = {**_CLIENT_OPTIONS, **(options.get("client_options") or {})}
    asked = [url, *(value for name, value in options.items() if _ENDPOINT.search(name))]
    if any(str(place).lower().startswith("http://") for place in asked):
        # The user named it; obstore refuses plain HTTP otherwise.
        client.setdefault("allow_http", True)
    retry = {**_RETRY_CONFIG, **(options.get("retry_config") or {})}
    return {**options, "client_options": client, "retry_config": retry}


def _secrets(options: Any, *, is_secret: bool = False) -> Iterator[str]:
    """Values, at any depth, of options that are called like a secret."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, is_secret=is_secret or bool(_SECRET.search(str(name))))
    elif is_secret and len(text := str(options)) >= _SHORTEST_SECRET:
        yield text
