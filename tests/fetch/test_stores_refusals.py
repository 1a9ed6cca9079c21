"""What cannot be opened or read says so soon: where, why, and what to do."""

import time
import zipfile
from datetime import timedelta

import pytest

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from torchdata_insitu.errors import ReadError
from torchdata_insitu.testing import FaultServer, make_store

S3 = {"region": "us-east-1", "access_key_id": "AKIAEXAMPLE", "secret_access_key": "example"}
XML = '<?xml version="1.0"?><Error><Code>{}</Code></Error>'


@pytest.fixture
def server():
    store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
    files = {f"bucket/a/{key}": buffer.to_bytes() for key, buffer in store._store_dict.items()}
    with FaultServer(files) as server:
        yield server


def s3(server, **options):
    return tdi.open_store("s3://bucket/a", endpoint=server.url, **{**S3, **options})


@pytest.mark.parametrize("url", ["ftp://h/a", "gopher://h", "simplecache::s3://b/a", "S4://b/a"])
def test_unknown_scheme(url):
    with refused(ReadError, url.partition("://")[0].lower(), "s3", "FsspecStore"):
        tdi.open_store(url)


@pytest.mark.parametrize("url", ["", "file://", "file://folder", "s3://", "http://", "az://c/a"])
def test_place_that_is_none(url):
    with refused(ReadError):
        tdi.open_store(url)


@pytest.mark.parametrize(
    "url, what",
    [
        ("s3://", "s3://bucket/path"),
        ("gs:///a", "gs://bucket/path"),
        ("az://", "az://container/path"),
        ("abfs://?a=b", "abfs://container/path"),
        ("https://", "https://host/path"),
    ],
)
def test_place_without_a_name_is_told_what_to_write(url, what):
    with refused(ReadError, url.partition("?")[0], f"write {what}"):
        tdi.open_store(url)


@pytest.mark.parametrize("dataset_id", [3, "", False, b"era5"])
def test_dataset_id_that_is_no_name(dataset_id):
    store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
    with refused(ReadError, f"dataset_id is {dataset_id!r}", type(dataset_id).__name__):
        tdi.open_store(store, dataset_id=dataset_id)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"no_such_option": 1}, "no_such_option"),
        ({"retry_config": 5}, "retry_config"),
        ({"client_options": {"timeout": "soon"}}, "soon"),
        ({"client_options": {"no_such": 1}}, "no_such"),
        ({"region": 5}, "region"),
        ({"skip_signature": "perhaps"}, "perhaps"),
    ],
)
def test_option_that_is_none(options, text):
    with refused(ReadError, "s3://bucket/a", text):
        tdi.open_store("s3://bucket/a", **options)


def test_file_of_credentials_that_is_missing(tmp_path):
    path = tmp_path / "account.json"
    with refused(ReadError, "gs://bucket/a", "service_account_path", path, "No such file"):
        tdi.open_store("gs://bucket/a", service_account_path=str(path))


@pytest.mark.parametrize(
    "status, code, advice",
    [
        (403, "InvalidAccessKeyId", "check credentials"),
        (403, "SignatureDoesNotMatch", "skip_signature=True"),
        (401, "Unauthorized", "check credentials"),
        (404, "NoSuchBucket", "no Zarr metadata"),
        (301, "redirect", "region"),
    ],
)
def test_bucket_that_refuses(server, status, code, advice):
    server.fail(lambda _: True, status=status, body=XML.format(code).encode())
    with refused(ReadError, "s3://bucket/a", code, advice):
        tdi.open_arrays(s3(server))
    assert max(server.requests.values()) == 1


def test_anonymous_reader_of_a_private_bucket(s3_server):
    s3_server.upload("closed", {"a/zarr.json": b"{}"})
    store = tdi.open_store("s3://closed/a", **s3_server.place, skip_signature=True)
    with refused(ReadError, "s3://closed/a", "403", "check credentials"):
        tdi.open_arrays(store)


def test_bucket_that_does_not_exist(s3_server):
    store = tdi.open_store("s3://nowhere/a", **s3_server.options)
    with refused(ReadError, "s3://nowhere/a", "NoSuchBucket"):
        tdi.open_arrays(store)
    with refused(ReadError, "s3://nowhere/a", "NoSuchBucket"):
        tdi.open_arrays(store, "t2m")


def test_path_in_a_bucket_where_nothing_is(s3_server):
    s3_server.upload("open", {"a/b.zarr/zarr.json": b"{}"})
    with refused(ReadError, "s3://open/c", "no keys at all"):
        tdi.open_arrays(tdi.open_store("s3://open/c", **s3_server.options))
    with refused(ReadError, "s3://open/a", "above or below"):
        tdi.open_arrays(tdi.open_store("s3://open/a", **s3_server.options))


def test_listing_that_is_refused(server):
    server.fail("bucket", status=403, body=XML.format("AccessDenied").encode())
    with refused(ReadError, "s3://bucket/a", "AccessDenied", "name the arrays"):
        tdi.open_arrays(s3(server))
    assert tdi.open_arrays(s3(server), "t2m")["t2m"].n_samples == 8


def test_plain_http_has_no_listing(server):
    with refused(ReadError, server.url, "name the arrays"):
        tdi.open_arrays(f"{server.url}/bucket/a")


def test_http_root_where_nothing_is(server):
    with refused(ReadError, f"{server.url}/nowhere", "no Zarr metadata", "check the path"):
        tdi.open_arrays(f"{server.url}/nowhere")
    with refused(ReadError, f"{server.url}/nowhere", "no Zarr metadata", "'t2m'"):
        tdi.open_arrays(f"{server.url}/nowhere", "t2m")


def test_server_that_refuses_connections_is_told_within_seconds(server):
    store = s3(server)
    server.down()
    host = server.url.removeprefix("http://")
    start = time.monotonic()
    with refused(ReadError, host, "Connection refused", "check the host"):
        tdi.open_arrays(store)
    assert time.monotonic() - start < 10


def test_server_that_fails_for_a_moment_is_asked_again(server):
    server.fail("bucket/a/t2m/zarr.json", status=503, times=2)
    assert tdi.open_arrays(s3(server), "t2m")["t2m"].n_samples == 8
    assert server.requests["bucket/a/t2m/zarr.json"] == 3


def test_retries_and_timeouts_are_ours_unless_given():
    plain = tdi.open_store("s3://bucket/a").store
    assert plain.retry_config["max_retries"] == 5
    assert plain.retry_config["retry_timeout"] == timedelta(seconds=15)
    assert set(plain.client_options) == {"connect_timeout", "read_timeout", "timeout"}
    given = {
        "retry_config": {"max_retries": 1},
        "client_options": {"timeout": "3 s", "user_agent": "me"},
    }
    own = tdi.open_store("s3://bucket/a", **given).store
    assert own.retry_config["max_retries"] == 1
    assert own.retry_config["retry_timeout"] == timedelta(seconds=15)
    assert own.client_options["user_agent"] == "me"
    assert own.client_options["timeout"] != plain.client_options["timeout"]
    assert own.client_options["connect_timeout"] == plain.client_options["connect_timeout"]


def test_plain_http_is_allowed_where_it_was_named():
    def allowed(url, **options):
        return tdi.open_store(url, **options).store.client_options.get("allow_http") == "true"

    assert allowed("http://h/a")
    assert allowed("s3://b/a", endpoint="http://h")
    assert allowed("s3://b/a", aws_endpoint_url="http://h")
    assert not allowed("https://h/a")
    assert not allowed("s3://b/a", endpoint="https://h")
    assert not allowed("http://h/a", client_options={"allow_http": False})


def test_archive_that_is_damaged(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(b"PK\x05\x06" + b"\xff" * 18)
    with refused(ReadError, path):
        tdi.open_arrays(path)


def test_archive_that_is_gone_when_it_is_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("zarr.json", "{}")
    store = tdi.open_store(path)
    path.unlink()
    with refused(ReadError, path, "cannot be opened"):
        tdi.open_arrays(store)
