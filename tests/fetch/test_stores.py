"""Paths and URLs open the stores they name, and no text shows a secret."""

import shutil

import numpy as np
import obstore.store
import pytest
import zarr
from zarr.storage import (
    LocalStore,
    ManagedMemoryStore,
    MemoryStore,
    ObjectStore,
    ZipStore,
)

from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch.stores import open_store, store_id, store_text
from torchdata_insitu.testing import CountingStore, make_store


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "a folder.zarr"
    make_store({"t": (4, 2)}, chunks=(2, 2), path=path)
    return path


def assert_reads(store):
    np.testing.assert_array_equal(zarr.open_array(store, path="t", mode="r")[1], [2, 3])


def test_folders_open_by_path_text_and_file_url(folder):
    for url in (folder, str(folder), folder.as_uri()):
        store = open_store(url)
        assert type(store) is LocalStore
        assert store.read_only
        assert_reads(store)


def test_path_below_the_home_folder_opens(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert_reads(open_store(f"~/{folder.name}"))


def test_relative_path_stays_valid_in_another_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    store = open_store(folder.name)
    monkeypatch.chdir("/")
    assert_reads(store)


def test_zip_file_opens(folder, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", folder)
    store = open_store(archive)
    assert type(store) is ZipStore
    assert_reads(store)
    store.close()


def test_memory_url_opens_the_store_of_that_name():
    kept = ManagedMemoryStore("tests-open-store")
    zarr.create_array(kept, name="t", data=np.arange(8).reshape(4, 2), chunks=(2, 2))
    store = open_store("memory://tests-open-store")
    assert store.read_only
    assert_reads(store)


def test_store_is_returned_as_it_is():
    store = MemoryStore()
    assert open_store(store) is store


def test_obstore_store_is_wrapped(folder):
    store = open_store(obstore.store.LocalStore(folder))
    assert type(store) is ObjectStore
    assert store.read_only
    assert_reads(store)


@pytest.mark.parametrize(
    "url, kind",
    [
        ("s3://bucket/path", obstore.store.S3Store),
        ("gs://bucket/path", obstore.store.GCSStore),
        ("https://example.org/path", obstore.store.HTTPStore),
        ("http://example.org/path", obstore.store.HTTPStore),
    ],
)
def test_remote_urls_open_object_stores(url, kind):
    store = open_store(url)
    assert isinstance(store.store, kind)
    assert store.read_only
    assert store_text(store) == url


def test_options_reach_the_object_store():
    store = open_store("s3://bucket/a", region="eu-west-1", skip_signature=True)
    assert store.store.config["region"] == "eu-west-1"
    azure = open_store("az://container/a", account_name="account")
    assert store_text(azure) == "az://account/container/a"


def test_missing_path_is_a_read_error(tmp_path):
    with pytest.raises(ReadError, match=r"there is no store at .*nowhere"):
        open_store(tmp_path / "nowhere")


def test_file_that_is_no_archive_is_a_read_error(tmp_path):
    (tmp_path / "data.nc").write_bytes(b"CDF")
    with pytest.raises(ReadError, match="no zip file"):
        open_store(tmp_path / "data.nc")


def test_unknown_memory_store_is_a_read_error():
    with pytest.raises(ReadError, match="nobody"):
        open_store("memory://nobody")


def test_unknown_scheme_names_the_ones_that_work():
    with pytest.raises(ReadError, match=r"'ftp' is none of file, memory, s3, .*https") as caught:
        open_store("ftp://user:secret@example.org/a?token=secret")
    assert "secret" not in str(caught.value)


def test_options_without_an_object_store_are_refused(folder):
    for url in (folder, MemoryStore(), folder.as_uri()):
        with pytest.raises(ReadError, match="region"):
            open_store(url, region="eu-west-1")


def test_wrong_option_is_a_read_error_without_its_value():
    with pytest.raises(ReadError, match="no_such_option") as caught:
        open_store("s3://bucket/a", no_such_option="secret")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_neither_path_nor_store_is_a_read_error():
    with pytest.raises(ReadError, match="not a int"):
        open_store(5)


def test_every_store_object_has_an_identity_of_its_own():
    first, second = MemoryStore(), MemoryStore()
    assert first == second
    assert store_id(first) == store_id(first)
    assert store_id(first) != store_id(second)


def test_stores_of_one_place_that_are_open_at_once_are_one(folder):
    stores = [open_store(folder), open_store(f"file://{folder}"), open_store(str(folder))]
    assert len({store_id(store) for store in stores}) == 1
    s3 = [open_store("s3://era5/zarr", region="eu-west-1", skip_signature=True) for _ in range(2)]
    assert store_id(s3[0]) == store_id(s3[1])


def test_stores_of_another_place_or_other_options_are_not_one(folder):
    options = {"skip_signature": True, "region": "eu-west-1"}
    stores = [
        open_store(folder),
        open_store(folder.parent),
        open_store("s3://era5/zarr", **options),
        open_store("s3://era5/other", **options),
        open_store("s3://era5/zarr", access_key_id="k", secret_access_key="s", region="eu-west-1"),
        CountingStore(open_store(folder)),
        CountingStore(open_store(folder)),
    ]
    assert len({store_id(store) for store in stores}) == len(stores)


def test_a_place_that_was_closed_and_opened_again_is_another(folder):
    first = open_store(folder)
    before = store_id(first)
    del first
    assert store_id(open_store(folder)) != before


def test_identity_is_not_inherited_by_a_later_store():
    seen = set()
    for _ in range(20):
        store = MemoryStore()
        seen.add(store_id(store))
        del store
    assert len(seen) == 20


def test_dataset_id_is_the_identity(folder):
    first = open_store(folder, dataset_id="era5-2020")
    second = open_store(str(folder), dataset_id="era5-2020")
    assert store_id(first) == store_id(second) == "era5-2020"
    given_store = MemoryStore()
    assert open_store(given_store, dataset_id="mine") is given_store
    assert store_id(given_store) == "mine"


def test_texts_show_where_but_no_secret(folder):
    secret = "c2VjcmV0"
    for store, text in [
        (open_store(folder), f"file://{folder}"),
        (
            open_store("s3://bucket/a", access_key_id=secret, secret_access_key=secret),
            "s3://bucket/a",
        ),
        (
            open_store("az://container/a", account_name="account", account_key=secret),
            "az://account/container/a",
        ),
        (open_store(f"https://user:{secret}@example.org/a?sig={secret}"), "https://example.org/a"),
        (open_store(obstore.store.LocalStore(folder)), f"file://{folder}"),
        (open_store(obstore.store.MemoryStore()), "MemoryStore"),
        (CountingStore(LocalStore(folder)), f"CountingStore(file://{folder})"),
    ]:
        assert store_text(store) == text
