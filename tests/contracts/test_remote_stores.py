"""Whole epochs from every kind of store: plain Zarr's values, and exactly the planned reads."""

import contextlib
import gc
import json
import pathlib
import shutil

import numpy as np
import pytest
import s3fs
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.zarr_oracle import ZarrOracle, check_batches
from tests.small_loaders import eventually
from torchdata_insitu.testing import FaultServer, is_chunk, make_store

NAMES = {"t2m": 0, "u10": 0}
CHUNKS = {"t2m": (2, 2, 5), "u10": (4, 4, 5)}
N_READS = {"t2m": 11 * 2, "u10": 6}


def make(path=None):
    values = {name: counted((22, 4, 5)) for name in NAMES}
    return make_store(values, chunks=CHUNKS, path=path)


@pytest.fixture(scope="module")
def plain():
    return make()


@pytest.fixture(scope="module")
def files(plain):
    return {key: buffer.to_bytes() for key, buffer in plain._store_dict.items()}


@pytest.fixture(scope="module")
def buckets(s3_server, files):
    below = {f"era5/2020.zarr/{key}": content for key, content in files.items()}
    s3_server.upload("private", below)
    s3_server.upload("public", below, is_public=True)
    return s3_server


def epochs(store, plain, n_epochs=1, names=None, **options):
    """Read epochs and compare them; the reads by array."""
    arrays = tdi.open_arrays(store, names)
    assert sorted(arrays) == sorted(NAMES)
    views = {"x": tdi.stack(arrays["t2m"], arrays["u10"]), "y": arrays["t2m"]}
    options = {"batch_size": 4, "block_chunks": 2, "budget_bytes": PLENTY, **options}
    with tdi.build_loader(store, views, **options) as loader:
        planned = loader.plan.reads()
        check_batches(loader, ZarrOracle(plain, NAMES), n_epochs)
        stats = loader.stats()
    assert stats.reads == planned == N_READS
    assert not any(stats.missing.values())
    return stats


@pytest.fixture
def requested(buckets):
    """Chunks that the S3 service was asked for, by key below the store."""
    buckets.gets.clear()

    def chunks():
        names = {path.partition("2020.zarr/")[2]: n for path, n in buckets.gets.items()}
        return {key: n for key, n in names.items() if key and is_chunk(key)}

    return chunks


def assert_each_once(requested):
    assert set(requested.values()) == {1}
    assert len(requested) == sum(N_READS.values())


def test_s3_with_credentials(buckets, plain, requested):
    epochs(tdi.open_store("s3://private/era5/2020.zarr", **buckets.options), plain)
    assert_each_once(requested())


def test_s3_without_credentials(buckets, plain, requested):
    url = "s3://public/era5/2020.zarr"
    epochs(tdi.open_store(url, **buckets.place, skip_signature=True), plain)
    assert_each_once(requested())


def test_second_epoch_out_of_a_pool_reads_nothing(buckets, plain, requested):
    store = tdi.open_store("s3://private/era5/2020.zarr", **buckets.options)
    epochs(store, plain, n_epochs=2)
    assert_each_once(requested())


def test_s3_through_fsspec(buckets, plain, requested):
    place = {"endpoint_url": buckets.url, "region_name": "us-east-1"}
    options = {"key": "AKIAEXAMPLE0KEY0ID00", "secret": "example"}
    system = s3fs.S3FileSystem(
        **options, client_kwargs=place, asynchronous=True, skip_instance_cache=True
    )
    store = zarr.storage.FsspecStore(system, path="private/era5/2020.zarr", read_only=True)
    try:
        epochs(store, plain)
    finally:
        sync(system._s3.close())
    assert_each_once(requested())


@contextlib.contextmanager
def served(files, prefix):
    with FaultServer({f"{prefix}{key}": content for key, content in files.items()}) as server:
        yield server
    chunks = {key: n for key, n in server.requests.items() if is_chunk(key)}
    assert_each_once(chunks)


@pytest.mark.parametrize("path", ["", "/era5/2020.zarr", "/era5/2020.zarr/"])
def test_plain_http(files, plain, path):
    prefix = f"{path.strip('/')}/".lstrip("/")
    with served(files, prefix) as server:
        epochs(tdi.open_store(server.url + path), plain, names=list(NAMES))


def test_http_by_url_alone(files, plain):
    with served(files, "2020.zarr/") as server:
        epochs(f"{server.url}/2020.zarr", plain, names=list(NAMES))


@pytest.mark.parametrize(
    "options", [{"skip_signature": True}, {"sas_token": "sv=1&sig=c2ln"}, {"account_key": "a2V5"}]
)
def test_azure(files, plain, options):
    with served(files, "era5/2020.zarr/") as server:
        place = {"account_name": "weather", "endpoint": server.url}
        epochs(tdi.open_store("az://era5/2020.zarr", **place, **options), plain, names=list(NAMES))


def test_google(files, plain):
    with served(files, "era5/2020.zarr/") as server:
        names = ("client_email", "private_key", "private_key_id")
        account = {"gcs_base_url": server.url, "disable_oauth": True, **dict.fromkeys(names, "")}
        store = tdi.open_store(
            "gs://era5/2020.zarr",
            service_account_key=json.dumps(account),
            client_options={"allow_http": True},
        )
        epochs(store, plain, names=list(NAMES))


def test_folder_and_file_url(tmp_path, plain):
    make(tmp_path / "a.zarr")
    epochs(tmp_path / "a.zarr", plain)
    epochs((tmp_path / "a.zarr").as_uri(), plain)


def test_memory_url(files, plain):
    kept = zarr.storage.ManagedMemoryStore("whole-epochs")
    for key, content in files.items():
        buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(content)
        sync(kept.set(key, buffer))
    epochs("memory://whole-epochs", plain)


@pytest.fixture
def archive(tmp_path, plain):
    make(tmp_path / "a.zarr")
    return shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "a.zarr")


def is_open(path):
    return any(
        link.exists() and str(link.readlink()) == str(path)
        for link in pathlib.Path("/proc/self/fd").iterdir()
    )


def test_zip_file(archive, plain):
    epochs(archive, plain)
    eventually(lambda: not is_open(archive))


def test_zip_file_that_the_loader_opened_is_closed_with_it_and_opens_again(archive):
    arrays = tdi.open_arrays(archive)
    eventually(lambda: not is_open(archive))
    # A budget of less than the epoch, so that every pass reads.
    options = {"batch_size": 4, "block_chunks": 1, "budget_bytes": 1500}
    loader = tdi.build_loader(archive, arrays, **options)
    for _ in range(2):
        next(iter(loader))
        assert is_open(archive)
        loader.close()
        eventually(lambda: not is_open(archive))
    n_batches = sum(1 for _ in loader)
    assert n_batches == len(loader)
    loader.close()


def test_zip_file_that_was_given_stays_open(archive, plain):
    store = tdi.open_store(archive)
    epochs(store, plain)
    assert is_open(archive)
    values = zarr.open_array(store, path="u10", mode="r")[...]
    np.testing.assert_array_equal(values, counted((22, 4, 5)))
    store.close()


def test_dropped_loader_closes_its_zip_file(archive):
    loader = tdi.build_loader(archive, tdi.open_arrays(archive), batch_size=4, budget_bytes=PLENTY)
    next(iter(loader))
    del loader
    gc.collect()
    eventually(lambda: not is_open(archive))
