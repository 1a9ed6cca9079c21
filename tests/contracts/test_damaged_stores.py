"""Wrong paths and damaged chunks end in an error, never in an epoch of zeros or of old rows."""

import gzip
import re

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.refusals import refused
from tests.contracts.zarr_oracle import ZarrOracle, check_batches, check_tensor
from tests.fake_stores import Raises, RefusesListing
from torchdata_insitu.errors import DecodeError, GeometryError, ReadError
from torchdata_insitu.testing import make_store

CHUNK_BYTES = 4 * 3 * 4


def test_path_that_does_not_exist(tmp_path):
    path = tmp_path / "nowhere.zarr"
    with refused(ReadError, path):
        tdi.open_arrays(path)
    with refused(ReadError, path):
        tdi.build_loader(path, {}, batch_size=1)


def test_path_that_is_no_store(tmp_path):
    with refused(ReadError, "zarr.json", ".zarray", "path"):
        tdi.open_arrays(tmp_path)
    file = tmp_path / "t2m.nc"
    file.write_bytes(b"CDF")
    with refused(ReadError, file):
        tdi.open_arrays(file)


def test_group_without_arrays():
    store = zarr.storage.MemoryStore()
    zarr.create_group(store)
    with refused(GeometryError, "no array"):
        tdi.open_arrays(store)


@pytest.fixture(params=["memory", "folder"])
def place(request, tmp_path):
    """Where `make_store` shall put a store."""
    return {"path": None if request.param == "memory" else tmp_path / "store.zarr"}


def load(store, views, **options):
    return tdi.build_loader(store, views, **{"batch_size": 4, "budget_bytes": PLENTY, **options})


def keys_below(store, prefix):
    async def keys():
        return [key async for key in store.list_prefix(prefix)]

    found = sync(keys())
    return sorted(key for key in found if not key.endswith(("zarr.json", ".zarray", ".zattrs")))


def read(store, key):
    return sync(store.get(key, default_buffer_prototype())).to_bytes()


def write(store, key, payload):
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(payload)))


def move(store, old, new):
    for key in keys_below(store, old):
        write(store, new + key.removeprefix(old), read(store, key))
        sync(store.delete(key))


def test_chunks_that_were_not_copied(place):
    store = make_store({"t2m": counted((20, 3))}, chunks=(4, 3), **place)
    loader = load(store, tdi.open_arrays(store))
    for key in keys_below(store, "t2m/"):
        sync(store.delete(key))
    with loader, refused(ReadError, "'t2m'", "t2m/c/", "path"):
        next(iter(loader))
    assert loader.chain.pool_node.pool.n_passes == 0


def test_chunks_below_another_prefix(place):
    store = make_store({"t2m": counted((20, 3))}, chunks=(4, 3), **place)
    move(store, "t2m/c/", "old/c/")
    with load(store, tdi.open_arrays(store, "t2m")) as loader, refused(ReadError, "'t2m'"):
        next(iter(loader))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunk_keys_of_another_separator(place, zarr_format):
    options = {"chunks": (4, 2), "zarr_format": zarr_format, **place}
    store = make_store({"t2m": counted((20, 3))}, **options)
    asked, found = ("'0.0'", r"'\d/0'") if zarr_format == 2 else ("'c/0/0'", r"'c\.\d\.0'")
    for key in keys_below(store, "t2m/"):
        name = key.removeprefix("t2m/")
        other = name.replace(".", "/") if zarr_format == 2 else name.replace("/", ".")
        write(store, f"t2m/{other}", read(store, key))
        sync(store.delete(key))
    loader = load(store, tdi.open_arrays(store))
    with loader, refused(GeometryError, "'t2m'", asked) as caught:
        next(iter(loader))
    assert re.search(found, str(caught.value))


def test_one_array_of_two_without_chunks(place):
    store = make_store({"t2m": counted((20, 3)), "u10": counted((20, 3))}, chunks=(4, 3), **place)
    t2m, u10 = tdi.open_arrays(store).values()
    for key in keys_below(store, "u10/"):
        sync(store.delete(key))
    with load(store, {"x": tdi.stack(t2m, u10)}) as loader, refused(ReadError, "'u10'"):
        next(iter(loader))


def test_sparse_data_goes_on(place):
    """All chunks of the first blocks are missing, and there are others."""
    store = make_store({"t2m": counted((20, 3))}, chunks=(4, 3), **place)
    for key in keys_below(store, "t2m/")[:4]:
        sync(store.delete(key))
    oracle = ZarrOracle(store, {"t2m": 0})
    options = {"shuffle": False, "block_chunks": 1}
    with load(store, tdi.open_arrays(store), **options) as loader:
        check_batches(loader, oracle)
        assert loader.stats().missing == {"t2m": 4}


def test_sparse_data_in_a_store_that_cannot_be_listed():
    """As over http: what was found says that the path is right."""
    store = make_store({"t2m": counted((40, 3))}, chunks=(4, 3))
    sync(store.delete("t2m/c/5/0"))
    oracle = ZarrOracle(store, {"t2m": 0})
    arrays = tdi.open_arrays(store)
    with load(RefusesListing(store), arrays, block_chunks=2) as loader:
        check_batches(loader, oracle, n_epochs=2)


def test_all_chunks_missing_in_a_store_that_cannot_be_listed():
    store = make_store({"t2m": counted((20, 3))}, chunks=(4, 3))
    arrays = tdi.open_arrays(store)
    for key in keys_below(store, "t2m/"):
        sync(store.delete(key))
    loader = load(RefusesListing(store), arrays)
    with loader, refused(ReadError, "'t2m'", "forbidden", "path"):
        next(iter(loader))


ENCODE = {
    "none": bytes,
    "zstd": lambda data: bytes(numcodecs.Zstd(level=1).encode(data)),
    "blosc": lambda data: bytes(numcodecs.Blosc(cname="lz4", clevel=3).encode(data)),
    "gzip": lambda data: gzip.compress(data, 1),
}
ROWS = np.full(100, 7777, "<f4").tobytes()
# By name: what is stored in place of a chunk, made from its payload and the codec.
DAMAGES = {
    "cut": lambda payload, _: payload[: len(payload) // 2],
    "cut by a byte": lambda payload, _: payload[:-1],
    "empty": lambda *_: b"",
    "one byte": lambda *_: b"\x28",
    "garbage": lambda *_: np.random.Generator(np.random.PCG64(3)).bytes(61),
    "web page": lambda *_: b"<!DOCTYPE html><html><body>Please sign in</body></html>",
    "half as long": lambda _, encode: encode(ROWS[: CHUNK_BYTES // 2]),
    "a row short": lambda _, encode: encode(ROWS[: CHUNK_BYTES - 12]),
    "a value short": lambda _, encode: encode(ROWS[: CHUNK_BYTES - 4]),
    "a value long": lambda _, encode: encode(ROWS[: CHUNK_BYTES + 4]),
    "twice as long": lambda _, encode: encode(ROWS[: CHUNK_BYTES * 2]),
    "nothing in it": lambda _, encode: encode(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("codec", ENCODE)
@pytest.mark.parametrize("place", ["memory", "folder"])
def test_damaged_chunk_is_named_and_repaired(place, codec, damage, tmp_path):
    """The slots were used before, so that old rows are there to be shown."""
    # A way to read and a format each: what they decide has nothing to do with each other.
    path, zarr_format = (None, 2) if place == "memory" else (tmp_path / "store.zarr", 3)
    store = make_store(
        {"t2m": counted((28, 3))}, chunks=(4, 3), codec=codec, zarr_format=zarr_format, path=path
    )
    key = "t2m/c/3/0" if zarr_format == 3 else "t2m/3.0"
    payload = read(store, key)
    damaged = DAMAGES[damage](payload, ENCODE[codec])
    oracle = ZarrOracle(store, {"t2m": 0})
    arrays = tdi.open_arrays(store)
    budget = 3 * CHUNK_BYTES
    with load(store, arrays, block_chunks=2, budget_bytes=budget, batch_size=5) as loader:
        check_batches(loader, oracle)
        write(store, key, damaged)
        batches, seen = iter(loader), []
        facts = ["'t2m'", key, "(3, 0)", f"{len(damaged)} bytes", f"{CHUNK_BYTES} decoded bytes"]
        with refused(DecodeError, *facts) as caught:
            for batch in batches:
                check(batch, oracle, seen)
        with pytest.raises(DecodeError) as again:
            next(batches)
        assert again.value is caught.value
        n_seen = len(seen)
        with refused(DecodeError, *facts):
            check(next(iter(loader)), oracle, seen)
        assert loader.state_dict()["position"] == n_seen == len(seen)
        write(store, key, payload)
        for batch in loader:
            check(batch, oracle, seen)
        assert sorted(seen) == list(range(28))
        assert loader.epoch == 2
        check_batches(loader, oracle)
    pool = loader.chain.pool_node.pool
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


def check(batch, oracle, seen):
    anchors = batch["sample_index"].tolist()
    check_tensor(batch["t2m"], oracle.arrays["t2m"][anchors])
    seen += anchors


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_error_of_a_store_is_the_cause_and_passes(prefetch_factor):
    original = ConnectionResetError("the other side hung up")
    is_down = True
    inner = make_store({"t2m": counted((28, 3))}, chunks=(4, 3))
    store = Raises(inner, lambda: original, lambda key: is_down and key == "t2m/c/3/0")
    oracle = ZarrOracle(inner, {"t2m": 0})
    views = tdi.open_arrays(store)
    with load(store, views, block_chunks=1, prefetch_factor=prefetch_factor) as loader:
        seen = []
        facts = ["'t2m'", "t2m/c/3/0", "the other side hung up"]
        with refused(ReadError, *facts) as caught:
            for batch in loader:
                check(batch, oracle, seen)
        assert caught.value.__cause__ is original
        is_down = False
        for batch in loader:
            check(batch, oracle, seen)
        assert sorted(seen) == list(range(28))


def test_error_names_the_samples_of_the_chunk():
    store = make_store({"t2m": counted((28, 3))}, chunks=(4, 3))
    write(store, "t2m/c/3/0", b"")
    loader = load(store, tdi.open_arrays(store))
    with loader, pytest.raises(DecodeError) as caught:
        list(loader)
    text = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert re.search(r"sample.*\b1[2-6]\b", text)
