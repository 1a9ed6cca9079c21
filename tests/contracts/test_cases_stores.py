"""Cases from the field about what is stored: grids, keys, shards, what is missing or damaged.

Failures that users of other loaders over chunked arrays reported, one test or more a case. The
numbers are those of the list of cases that the project keeps. What is expected is what was written,
or what xarray and zarr say.
"""

import json
import warnings

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.case_stores import BOTH_FORMATS, check, keys_of, loader_of, read, write
from tests.contracts.chains import counted
from tests.contracts.documents import put
from tests.contracts.refusals import refused
from tests.contracts.watchdog import promptly
from torchdata_insitu.errors import DecodeError, GeometryError, PlanError, ReadError
from torchdata_insitu.testing import CountingStore, make_store


def move_chunks(store, changed):
    """Store each chunk below `t/` under another key."""
    for key in keys_of(store):
        payload = read(store, key)
        sync(store.delete(key))
        put(store, f"t/{changed(key.removeprefix('t/'))}", payload)


@BOTH_FORMATS
def test_t01_odd_grid_with_an_uneven_last_chunk_on_every_axis(zarr_format):
    values = counted((37, 5, 7))
    stats = check(write(values, (5, 2, 3), zarr_format=zarr_format), {"t": values})
    assert stats.reads == {"t": 8 * 3 * 3}


@BOTH_FORMATS
def test_t02_chunk_larger_than_the_array(zarr_format):
    values = counted((1, 3))
    store = write(values, (8, 8), zarr_format=zarr_format)
    with loader_of(store) as loader:
        (batch,) = loader
    assert batch["t"].tolist() == values.tolist()
    with promptly(), refused(PlanError, "0 batches", "1 draws", "batches of 2", "'drop'"):
        loader_of(store, batch_size=2, tail="drop")


FILLS = {
    "zero": (3, 0, 0.0),
    "minus nine": (3, -9, -9.0),
    "NaN": (3, np.nan, np.nan),
    "v2 minus nine": (2, -9, -9.0),
    "v2 NaN": (2, np.nan, np.nan),
    # Format 2 allows null, for "undefined"; zarr reads zeros there.
    "v2 null": (2, None, 0.0),
}


@pytest.mark.parametrize("fill", FILLS)
def test_t06_missing_chunks_hold_the_fill_value_and_are_counted(fill):
    zarr_format, fill_value, expected = FILLS[fill]
    values = counted((20, 3))
    store = write(values, (4, 3), zarr_format=zarr_format, fill_value=fill_value)
    for key in keys_of(store)[1:3]:
        sync(store.delete(key))
    values[4:12] = expected
    assert check(store, {"t": values}).missing == {"t": 2}


@BOTH_FORMATS
def test_t06_a_missing_chunk_is_an_error_on_request(zarr_format):
    store = write(counted((20, 3)), (4, 3), zarr_format=zarr_format)
    key = keys_of(store)[2]
    sync(store.delete(key))
    with loader_of(store, on_missing="raise") as loader, refused(ReadError, "'t'", key):
        list(loader)


@BOTH_FORMATS
def test_t07_all_chunks_missing_is_an_error(zarr_format):
    store = write(counted((20, 3)), (4, 3), zarr_format=zarr_format)
    for key in keys_of(store):
        sync(store.delete(key))
    with loader_of(store) as loader, refused(ReadError, "'t'", "path"):
        next(iter(loader))


def test_t07_chunks_below_another_prefix_are_an_error():
    store = write(counted((20, 3)), (4, 3))
    move_chunks(store, lambda name: f"old/{name}")
    with loader_of(store, tdi.open_arrays(store, "t")) as loader, refused(ReadError, "'t'"):
        next(iter(loader))


def nested_without_separator(values, chunks):
    """Chunks stored as `0/1` under metadata of format 2 that do not say so."""
    store = write(values, chunks, zarr_format=2)
    document = json.loads(read(store, "t/.zarray"))
    del document["dimension_separator"]
    put(store, "t/.zarray", json.dumps(document).encode())
    move_chunks(store, lambda name: name.replace(".", "/"))
    assert (zarr.open_array(store, path="t", mode="r")[...] == 0).all()
    return store


def test_t08_nested_chunks_under_metadata_without_a_separator_are_read():
    values = counted((20, 4))
    check(nested_without_separator(values, (4, 2)), {"t": values})


def test_t08_nested_chunks_that_cannot_be_told_are_an_error():
    """The first chunk, which shows the separator, is missing."""
    store = nested_without_separator(counted((20, 4)), (4, 2))
    sync(store.delete("t/0/0"))
    with loader_of(store) as loader, refused(GeometryError, "'t'", "dimension_separator"):
        next(iter(loader))


ENCODINGS = {
    "format 2, dots": (2, {"name": "v2", "separator": "."}, "t/4.1"),
    "format 2, nested": (2, {"name": "v2", "separator": "/"}, "t/4/1"),
    "format 3, nested": (3, {"name": "default", "separator": "/"}, "t/c/4/1"),
    "format 3, dots": (3, {"name": "default", "separator": "."}, "t/c.4.1"),
    "format 3, as format 2": (3, {"name": "v2", "separator": "."}, "t/4.1"),
    "format 3, as nested format 2": (3, {"name": "v2", "separator": "/"}, "t/4/1"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_t09_both_separators_in_both_formats(encoding):
    zarr_format, chunk_key_encoding, last = ENCODINGS[encoding]
    values = counted((20, 4))
    store = write(values, (4, 2), zarr_format=zarr_format, chunk_key_encoding=chunk_key_encoding)
    assert last in keys_of(store)
    check(store, {"t": values})


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_t13_one_sample_of_a_shard_reads_the_index_and_the_inner_chunk_it_needs(place, tmp_path):
    values = counted((1440, 8, 8))
    inner = zarr.storage.MemoryStore() if place == "memory" else zarr.storage.LocalStore(tmp_path)
    write(values, (10, 8, 8), store=inner, shards=(480, 8, 8), compressors=None, fill_value=0)
    store = CountingStore(inner) if place == "memory" else inner
    t = tdi.open_arrays(store)["t"]
    assert (t.n_chunks, t.rows_per_chunk) == (144, 10)
    split = tdi.split_by_range({"x": t}, {"one": (725, 726)})["one"]
    with loader_of(store, {"x": t}, split=split) as loader:
        (batch,) = loader
        stats = loader.stats()
    assert batch["sample_index"].tolist() == [725]
    assert batch["x"].numpy().tobytes() == values[725:726].tobytes()
    # Offset and length of 48 inner chunks and a checksum, and one inner chunk of 10 samples.
    index_bytes, inner_bytes = 48 * 16 + 4, 10 * 8 * 8 * 4
    assert inner_bytes <= stats.bytes_read <= index_bytes + inner_bytes
    assert stats.reads == {"t": 1}
    if place == "memory":
        assert {key for key in store.gets if "/c/" in key} == {"t/c/1/0/0"}


def test_t13_a_whole_epoch_over_shards():
    values = counted((1440, 8, 8))
    store = write(values, (10, 8, 8), shards=(480, 8, 8))
    assert check(store, {"t": values}, batch_size=32).reads == {"t": 144}


DAMAGES = {
    "zero bytes": ("zstd", lambda _: b""),
    "half a zstd chunk": ("zstd", lambda payload: payload[: len(payload) // 2]),
    "uncompressed and short": ("none", lambda payload: payload[:-4]),
    "uncompressed and long": ("none", lambda payload: payload + b"\0\0\0\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@BOTH_FORMATS
def test_t15_a_damaged_chunk_is_fetched_once_more_and_named(zarr_format, damage):
    """What to do with bad chunks is no option yet: `on_bad_chunk` is to skip or fill them."""
    codec, change = DAMAGES[damage]
    inner = make_store({"t": counted((20, 3))}, chunks=(4, 3), codec=codec, zarr_format=zarr_format)
    key = keys_of(inner)[2]
    put(inner, key, change(read(inner, key)))
    store = CountingStore(inner)
    with loader_of(store) as loader, refused(DecodeError, "'t'", key, "(2, 0)", "48"):
        list(loader)
    assert store.gets[key] == 2


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.98])
def test_t15_a_truncated_shard_is_named(kept, index_location):
    sharding = zarr.codecs.ShardingCodec(
        chunk_shape=(2, 3),
        codecs=[zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec()],
        index_location=index_location,
    )
    values = counted((24, 3))
    store = write(values, (8, 3), serializer=sharding, compressors=None, filters=None)
    key = "t/c/1/0"
    payload = read(store, key)
    put(store, key, payload[: int(kept * len(payload))])
    with loader_of(store, shuffle=False, block_chunks=1, prefetch_factor=0) as loader:
        found = []
        with refused(DecodeError, "'t'", key):
            for batch in loader:
                found += batch["sample_index"].tolist()
                expected = values[batch["sample_index"].numpy()]
                assert batch["t"].numpy().tobytes() == expected.tobytes()
    # Shards before it are whole; a start of the index may leave some of its chunks whole too.
    assert found[:8] == list(range(8))


def consolidated(zarr_format, **arrays):
    """A store with consolidated metadata of all it holds by then."""
    store = make_store(
        arrays,
        chunks=(2, 3),
        zarr_format=zarr_format,
        attributes={name: {"scale_factor": 2.0} for name in arrays},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store, zarr_format=zarr_format)
    return store


@BOTH_FORMATS
def test_t23_an_array_that_was_appended_to_has_its_true_length(zarr_format):
    store = consolidated(zarr_format, t=counted((6, 3)))
    zarr.open_array(store, path="t").append(counted((4, 3), first=50))
    stale = zarr.open_consolidated(store, zarr_format=zarr_format)["t"].shape
    assert stale == (6, 3)
    values = np.concatenate([counted((6, 3)), counted((4, 3), first=50)])
    check(store, {"t": 2.0 * values.astype("f8")})


@BOTH_FORMATS
def test_t23_an_array_that_was_deleted_is_not_found(zarr_format):
    store = consolidated(zarr_format, t=counted((6, 3)), u=counted((6, 3)))
    sync(store.delete_dir("t"))
    assert list(tdi.open_arrays(store)) == ["u"]
    with refused(GeometryError, "'t'", "'u'"):
        tdi.open_arrays(store, ["t"])


@BOTH_FORMATS
def test_t23_an_attribute_that_was_changed_counts(zarr_format):
    store = consolidated(zarr_format, t=counted((6, 3)))
    zarr.open_array(store, path="t").attrs["scale_factor"] = 4.0
    check(store, {"t": 4.0 * counted((6, 3), "f8")})


@BOTH_FORMATS
def test_t23_siblings_whose_names_differ_by_case_are_two(zarr_format):
    small, large = counted((6, 3)), counted((6, 3), first=100)
    store = consolidated(zarr_format, t=small, T=large)
    check(store, {"t": 2.0 * small.astype("f8"), "T": 2.0 * large.astype("f8")})
