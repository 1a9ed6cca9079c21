"""No text that the library makes shows a credential, whatever the store and whatever fails."""

import base64
import contextlib
import json
import logging
import pathlib
import traceback
import warnings

import fsspec
import obstore
import pytest
import s3fs
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY
from torchdata_insitu.errors import InSituError, ReadError
from torchdata_insitu.fetch.stores import store_text
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.testing import FaultServer, is_chunk, make_store

# Of letters and digits, so that it is the same in a header, a URL and a document.
SECRET = "c3VwZXJzZWNyZXQ5"
ONCE = tdi.RetryPolicy(attempts=1)
NO_RETRY = {"max_retries": 0}
S3 = {"region": "us-east-1", "access_key_id": "AKIAEXAMPLE", "secret_access_key": "example"}
AZURE = {"account_name": "weather"}
# Services name the key, and what was signed with it, in the body of a refusal.
BODY = (
    f'<?xml version="1.0"?><Error><Code>AccessDenied</Code><AWSAccessKeyId>{SECRET}'
    f"</AWSAccessKeyId><StringToSign>AWS4 {SECRET} x</StringToSign>"
    f"<SignatureProvided>{SECRET}</SignatureProvided></Error>"
).encode()


def s3(**options):
    return lambda url: tdi.open_store(
        "s3://bucket/a", retry_config=NO_RETRY, **{"endpoint": url, **S3, **options}
    )


def azure(**options):
    return lambda url: tdi.open_store(
        "az://bucket/a", endpoint=url, retry_config=NO_RETRY, **AZURE, **options
    )


def google(url):
    names = ("client_email", "private_key", "private_key_id")
    account = {"gcs_base_url": url, "disable_oauth": True, **dict.fromkeys(names, SECRET)}
    return tdi.open_store(
        "gs://bucket/a",
        service_account_key=json.dumps(account),
        client_options={"allow_http": True},
        retry_config=NO_RETRY,
    )


def http(query="", user="", **client):
    def open_(url):
        place = url.replace("://", f"://{user}") + f"/bucket/a{query}"
        return tdi.open_store(place, client_options=client, retry_config=NO_RETRY)

    return open_


def fsspec_s3(url):
    config = {"retries": {"total_max_attempts": 1}}
    place = {"endpoint_url": url, "region_name": "us-east-1"}
    system = s3fs.S3FileSystem(
        key=SECRET,
        secret=SECRET,
        token=SECRET,
        client_kwargs=place,
        config_kwargs=config,
        asynchronous=True,
        skip_instance_cache=True,
    )
    system.retries = 1
    return zarr.storage.FsspecStore(system, path="bucket/a", read_only=True)


def fsspec_http(url):
    system = fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True)
    place = url.replace("://", f"://me:{SECRET}@")
    return zarr.storage.FsspecStore(system, path=f"{place}/bucket/a", read_only=True)


PLACES = {
    "s3 key id": s3(access_key_id=SECRET),
    "s3 secret key": s3(secret_access_key=SECRET),
    "s3 session token": s3(session_token=SECRET),
    "s3 header": s3(client_options={"default_headers": {"Authorization": f"Basic {SECRET}"}}),
    "s3 endpoint": lambda url: s3(endpoint=url.replace("://", f"://me:{SECRET}@"))(url),
    "azure account key": azure(account_key=base64.b64encode(SECRET.encode()).decode()),
    "azure sas token": azure(sas_token=f"sv=2026&sig={SECRET}"),
    "google key": google,
    "http password": http(user=f"me:{SECRET}@"),
    "http user": http(user=f"{SECRET}@"),
    "http query": http(query=f"?sig={SECRET}"),
    "http header": http(default_headers={"Authorization": f"Bearer {SECRET}"}),
    "fsspec s3": fsspec_s3,
    "fsspec http": fsspec_http,
}
FAULTS = {
    "refused": {"status": 403, "body": BODY},
    "broken": {"status": 500, "body": BODY},
    "missing": {"status": 404, "body": BODY},
    "reset": {"reset": True},
    "cut": {"cut_after": 3},
    "login page": {"status": 200, "body": b"<html>log in</html>"},
}


@pytest.fixture(scope="module")
def files():
    store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
    return {f"bucket/a/{key}": buffer.to_bytes() for key, buffer in store._store_dict.items()}


@pytest.fixture(params=PLACES)
def place(request, files, caplog):
    """A server, and a store on it that was opened with a secret."""
    caplog.set_level(logging.DEBUG, logger="torchdata_insitu")
    with FaultServer(files) as server:
        store = PLACES[request.param](server.url)
        try:
            yield server, store
        finally:
            if isinstance(store, zarr.storage.FsspecStore):
                sync(end_session(store.fs))


async def end_session(system):
    for session in (getattr(system, "_s3", None), getattr(system, "_session", None)):
        if session is not None:
            await session.close()


def texts_of(error):
    """What a traceback shows, and what a look at the chain of errors finds."""
    yield "".join(traceback.format_exception(error))
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def show_nothing(texts):
    for text in texts:
        # The code of this test is shown by a traceback, and has only the name of the secret.
        assert SECRET not in text, text
        assert base64.b64encode(SECRET.encode()).decode() not in text, text


def texts_of_loader(loader):
    yield from (repr(loader), str(loader), tdi.describe(loader), json.dumps(loader.state_dict()))
    yield from (repr(node) for node in walk(loader.node))
    yield from (repr(loader.chain.pool_node.pool), repr(loader.plan), repr(loader.stats()))
    yield from (repr(array) for array in loader.chain.planner.arrays)


def load(store, arrays):
    return tdi.build_loader(
        store, arrays, batch_size=4, budget_bytes=PLENTY, retry=ONCE, prefetch_factor=1
    )


def test_loader_that_works_shows_no_secret(place, caplog):
    _, store = place
    with warnings.catch_warnings(record=True) as caught, load_all(store) as loader:
        texts = [store_text(store), *texts_of_loader(loader)]
    show_nothing([*texts, caplog.text, *(str(warning.message) for warning in caught)])


@contextlib.contextmanager
def load_all(store):
    with load(store, tdi.open_arrays(store, "t2m")) as loader:
        assert sum(len(batch["t2m"]) for batch in loader) == 8
        yield loader


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_metadata_shows_no_secret(place, fault, caplog):
    server, store = place
    server.fail(lambda _: True, **FAULTS[fault])
    with pytest.raises(InSituError) as caught:
        tdi.open_arrays(store)
    show_nothing([*texts_of(caught.value), caplog.text])
    with pytest.raises(InSituError) as caught:
        tdi.open_arrays(store, "t2m")
    show_nothing([*texts_of(caught.value), caplog.text])


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_chunks_show_no_secret(place, fault, caplog):
    server, store = place
    arrays = tdi.open_arrays(store, "t2m")
    server.fail(is_chunk, **FAULTS[fault])
    with load(store, arrays) as loader:
        with pytest.raises(InSituError) as caught:
            list(loader)
        texts = list(texts_of_loader(loader))
    show_nothing([*texts, *texts_of(caught.value), caplog.text])


def test_server_that_is_gone_shows_no_secret(place, caplog):
    server, store = place
    arrays = tdi.open_arrays(store, "t2m")
    server.down()
    with pytest.raises(ReadError) as caught:
        tdi.open_arrays(store, "t2m")
    show_nothing([*texts_of(caught.value), caplog.text])
    with load(store, arrays) as loader:
        with pytest.raises(ReadError) as caught:
            list(loader)
        texts = list(texts_of_loader(loader))
    show_nothing([*texts, *texts_of(caught.value), caplog.text])


WRONG_CALLS = {
    "unknown option": ("s3://bucket/a", {"no_such_option": SECRET}),
    "unknown option with a key": ("s3://bucket/a", {"session_token": SECRET, "no_such": 1}),
    "option of another type": ("s3://bucket/a", {"access_key_id": [SECRET]}),
    "key that is none": ("az://bucket/a", {"account_name": "a", "account_key": f"!{SECRET}"}),
    "document that is none": ("gs://bucket/a", {"service_account_key": f'{{"key": {SECRET}'}),
    "header that is none": (
        "https://example.org/a",
        {"client_options": {"default_headers": {"Authorization": f"Bearer\n{SECRET}"}}},
    ),
    "proxy that is none": (
        "https://example.org/a",
        {"client_options": {"proxy_url": f"http://me:{SECRET}@[::"}},
    ),
    "unknown scheme": (f"ftp://me:{SECRET}@example.org/a?token={SECRET}", {}),
    "unknown chain of schemes": (f"simplecache::s3://me:{SECRET}@bucket/a?sig={SECRET}", {}),
    "password with a slash": (f"https://me:pass/{SECRET}@exa mple.org/a", {}),
    "password with a question mark": (f"https://me:pass?{SECRET}@exa mple.org/a", {}),
    "host that is none": (f"https://me:{SECRET}@exa mple.org/a?sig={SECRET}", {}),
    "no host": (f"https://?sig={SECRET}", {}),
    "URL as a path": (pathlib.Path(f"s3://me:{SECRET}@bucket/a"), {}),
    "host of a file": (f"file://me:{SECRET}@h/a", {}),
    "memory": (f"memory://me:{SECRET}@h", {}),
    "option for a path": ("/tmp", {"secret_access_key": SECRET}),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_call_that_is_wrong_shows_no_secret(case, caplog):
    url, options = WRONG_CALLS[case]
    with pytest.raises(ReadError) as caught:
        tdi.open_store(url, **options)
    assert caught.value.__context__ is None
    show_nothing([*texts_of(caught.value), caplog.text])
    for name in options:
        assert name in str(caught.value)


def test_obstore_store_that_was_given_shows_no_secret(files):
    with FaultServer(files) as server:
        client = {"allow_http": True}
        place = {"endpoint": server.url, "client_options": client, "retry_config": NO_RETRY}
        given = obstore.store.S3Store(
            "bucket", prefix="a", **{**S3, **place, "secret_access_key": SECRET}
        )
        store = tdi.open_store(given)
        server.fail(lambda _: True, status=403, body=BODY)
        with pytest.raises(ReadError, match="s3://bucket/a") as caught:
            tdi.open_arrays(store)
        show_nothing([store_text(store), *texts_of(caught.value)])
