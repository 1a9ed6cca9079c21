"""Failures that users of other loaders over chunked arrays reported, one test or more a case.

The numbers are those of the list of cases that the project keeps: T01 to T28 are about the arrays
themselves. What is expected is what was written, or what xarray and zarr say.
"""

import itertools
import json
import time
import tracemalloc
import warnings

import numcodecs
import numpy as np
import pytest
import xarray
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.refusals import refused
from tests.contracts.watchdog import promptly
from torchdata_insitu.errors import DecodeError, GeometryError, PlanError, ReadError
from torchdata_insitu.testing import CountingStore, make_store

BOTH_FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


def write(values, chunks, *, name="t", store=None, zarr_format=3, **options):
    """An array as zarr writes it; a new store in memory unless one is given."""
    store = zarr.storage.MemoryStore() if store is None else store
    with warnings.catch_warnings():
        # Some dtypes and codecs of format 3 have no specification that zarr takes for stable.
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            store,
            name=name,
            shape=values.shape,
            chunks=chunks,
            dtype=values.dtype,
            zarr_format=zarr_format,
            **options,
        )
        array[...] = values
    return store


def loader_of(store, views=None, **options):
    views = tdi.open_arrays(store) if views is None else views
    return tdi.build_loader(
        store, views, **{"batch_size": 4, "block_chunks": 2, "budget_bytes": PLENTY, **options}
    )


def drawn(loader):
    """Everything an epoch hands out, in the order of the samples, as NumPy arrays."""
    batches = list(loader)
    for batch in batches:
        for tensor in batch.values():
            assert tensor.is_contiguous()
            assert tensor.numpy().dtype.isnative
    joined = {
        name: np.concatenate([batch[name].numpy() for batch in batches]) for name in batches[0]
    }
    order = np.argsort(joined["sample_index"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def check(store, expected, **options):
    """One epoch holds each sample once, with the bits expected by name."""
    with loader_of(store, **options) as loader:
        found = drawn(loader)
        n_reads = loader.expected_reads
        stats = loader.stats()
    for name, values in expected.items():
        assert found["sample_index"].tolist() == list(range(len(values)))
        native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))
        assert found[name].dtype == native.dtype
        assert found[name].shape == native.shape
        assert found[name].tobytes() == native.tobytes()
    assert sum(stats.reads.values()) == n_reads
    return stats


def read(store, key):
    return sync(store.get(key, default_buffer_prototype())).to_bytes()


def put(store, key, payload):
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(payload)))


def keys_of(store, prefix="t/"):
    async def keys():
        return [key async for key in store.list_prefix(prefix)]

    documents = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
    return sorted(key for key in sync(keys()) if not key.endswith(documents))


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


@pytest.mark.parametrize("tail", ["exact", "pad"])
def test_t04_fewer_samples_than_ranks_are_made_up(tail):
    store = write(counted((3, 2)), (2, 2))
    found, lengths = [], set()
    for rank in range(4):
        with loader_of(store, rank=rank, world_size=4, tail=tail, batch_size=1) as loader:
            lengths.add(len(loader))
            for batch in loader:
                valid = batch["valid"].numpy()
                found += batch["sample_index"].numpy()[valid].tolist()
    assert lengths == {1}
    assert sorted(found) == [0, 1, 2]


@pytest.mark.parametrize("tail", ["drop", "short"])
def test_t04_fewer_samples_than_ranks_are_refused(tail):
    store = write(counted((3, 2)), (2, 2))
    with refused(PlanError, "3 draws", "4 ranks", f"{tail!r}"):
        loader_of(store, rank=0, world_size=4, tail=tail, batch_size=1)


@pytest.mark.parametrize(
    "n_samples, tail, n_steps, left_out",
    [
        (15, "drop", 3, 3),
        (15, "short", 4, 0),
        (13, "short", 3, 1),
        (13, "exact", 4, 0),
        (13, "pad", 4, 0),
    ],
)
def test_t04_a_number_of_samples_that_the_ranks_do_not_divide(n_samples, tail, n_steps, left_out):
    store = write(counted((n_samples, 2)), (4, 2))
    found = []
    for rank in range(2):
        with loader_of(store, rank=rank, world_size=2, tail=tail, batch_size=2) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == n_steps
        for batch in batches:
            samples = batch["sample_index"].numpy()
            found += samples[batch["valid"].numpy() if "valid" in batch else ...].tolist()
    assert len(set(found)) == len(found) == n_samples - left_out


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


@BOTH_FORMATS
@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8", ">f8", ">u4"])
def test_t10_big_endian_arrays_come_as_native_numbers(dtype, zarr_format):
    values = counted((17, 3)).astype(dtype)
    options = {}
    if zarr_format == 3:
        options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    store = write(values, (4, 2), zarr_format=zarr_format, **options)
    stored = json.loads(read(store, "t/.zarray" if zarr_format == 2 else "t/zarr.json"))
    assert '">' in json.dumps(stored) or '"big"' in json.dumps(stored)
    check(store, {"t": values})


RECORDS = [("a", ">f4"), ("b", ">i4")]


def records(n=13):
    values = np.zeros(n, dtype=RECORDS)
    values["a"], values["b"] = np.arange(n) / 4, -np.arange(n)
    return values


@pytest.mark.parametrize("field", ["a", "b"])
def test_t11_one_field_of_a_structured_array(field):
    values = records()
    store = write(values, (4,), zarr_format=2)
    arrays = tdi.open_arrays(store, field=field)
    check(store, {"t": values[field]}, views=arrays)


@pytest.mark.parametrize("field", ["a", "b"])
def test_t11_one_field_of_a_structured_array_of_format_3(field):
    values = records().astype([("a", "<f4"), ("b", "<i4")])
    store = write(values, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = tdi.open_arrays(store, field=field)
        check(store, {"t": values[field]}, views=arrays)


def test_t11_a_structured_array_without_a_field_is_refused_with_its_fields():
    store = write(records(), (4,), zarr_format=2)
    with refused(GeometryError, "'t'", "field=", "'a'", "'b'"):
        tdi.open_arrays(store, "t")
    with refused(GeometryError, "'t'", "'c'", "'a'", "'b'"):
        tdi.open_arrays(store, "t", field="c")


F_ORDERS = {
    "format 2, order F": {"zarr_format": 2, "order": "F"},
    "format 2, order F, filter": {
        "zarr_format": 2,
        "order": "F",
        "filters": [numcodecs.Delta("<i4", "<i4")],
    },
    "format 3, transpose": {
        "filters": [{"name": "transpose", "configuration": {"order": [2, 0, 1]}}]
    },
    "format 3, transpose, uncompressed": {
        "filters": [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}],
        "compressors": None,
    },
    "format 3, transpose, filter": {
        "filters": [
            {"name": "transpose", "configuration": {"order": [1, 2, 0]}},
            {"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i4"}},
        ]
    },
}


@pytest.mark.parametrize("order", F_ORDERS)
@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_t12_fortran_order_comes_as_contiguous_batches(order, axis):
    values = counted((9, 5, 11), "int32")
    store = write(values, (4, 2, 3), **F_ORDERS[order])
    arrays = tdi.open_arrays(store, sample_axis=axis)
    check(store, {"t": np.moveaxis(values, axis, 0)}, views=arrays)


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


TIMES = ["datetime64[ns]", "datetime64[s]", "timedelta64[ms]", "datetime64[D]"]


@pytest.mark.parametrize("dtype", TIMES)
@BOTH_FORMATS
def test_t16_times_come_as_int64_with_their_unit(zarr_format, dtype):
    numbers = np.arange(11) * 1000
    values = numbers.astype(dtype)
    values[3] = "NaT"
    store = write(values, (4,), zarr_format=zarr_format)
    expected = numbers.astype("int64")
    expected[3] = np.iinfo("int64").min
    t = tdi.open_arrays(store, "t")["t"]
    with loader_of(store, {"when": t.window(0, 1)}) as loader:
        assert loader.units == {"when": np.datetime_data(values.dtype)[0]}
        found = drawn(loader)
    assert found["when"].dtype == np.dtype("int64")
    assert found["when"].tolist() == list(map(list, itertools.pairwise(expected.tolist())))


KEPT = ["bool", "u1", "u2", "u4", "u8", "i1", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", KEPT)
@BOTH_FORMATS
def test_t17_dtypes_that_torch_holds_are_kept(zarr_format, dtype):
    rng = np.random.Generator(np.random.PCG64(7))
    values = rng.integers(0, 2 if dtype == "bool" else 120, (13, 3)).astype(dtype)
    if dtype == "u8":
        values[0, 0] = np.iinfo("u8").max
    check(write(values, (4, 2), zarr_format=zarr_format), {"t": values})


@pytest.mark.parametrize("stored, wanted", [("f8", "f4"), ("u1", "f4"), ("i8", "i4"), ("f4", "f8")])
def test_t17_arrays_are_cast_on_request(stored, wanted):
    values = counted((13, 3), stored)
    store = write(values, (4, 2))
    arrays = tdi.open_arrays(store, dtype=wanted)
    check(store, {"t": values.astype(wanted)}, views=arrays)


def test_t17_a_cast_to_another_kind_is_refused():
    store = write(counted((13, 3), "f4"), (4, 2))
    with refused(GeometryError, "'t'", "float32", "int32"):
        tdi.open_arrays(store, "t", dtype="int32")


# By name: dtype of the array, filters, compressor. What comes back may differ from what went in.
V2_CHAINS = {
    "delta of another type": ("<i4", [numcodecs.Delta("<i4", "<i2")], None),
    "fixed scale and offset": ("<f8", [numcodecs.FixedScaleOffset(10, 8, "<f8", "<i2")], None),
    "quantize": ("<f4", [numcodecs.Quantize(1, "<f4")], numcodecs.Zstd()),
    "packed bits": ("bool", [numcodecs.PackBits()], None),
    "shuffle": ("<f4", [numcodecs.Shuffle(4)], numcodecs.Zlib()),
    "blosc, bits shuffled": (
        "<f4",
        None,
        numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.BITSHUFFLE),
    ),
    "zlib": ("<i2", None, numcodecs.Zlib()),
    "lzma": ("<i2", None, numcodecs.LZMA()),
    "nothing": ("<i2", None, None),
}


@pytest.mark.parametrize("chain", V2_CHAINS)
def test_t19_filters_and_compressors_of_format_2(chain):
    dtype, filters, compressor = V2_CHAINS[chain]
    values = (counted((21, 5)) % 97).astype(dtype)
    store = write(
        values, (4, 3), zarr_format=2, filters=filters, compressors=compressor, fill_value=0
    )
    as_read = zarr.open_array(store, path="t", mode="r")[...]
    np.testing.assert_allclose(as_read.astype("f8"), values.astype("f8"), atol=0.1)
    check(store, {"t": as_read})


PACKINGS = {
    "scale": ("i2", {"scale_factor": 0.01}),
    "offset": ("i2", {"add_offset": 273.15}),
    "scale and offset": ("i2", {"scale_factor": 0.01, "add_offset": 273.15}),
    "fill value": ("i2", {"_FillValue": 5}),
    "missing value": ("i2", {"missing_value": 7, "scale_factor": 0.5}),
    "float with a finite fill value": ("f4", {"_FillValue": 5.0}),
}


@pytest.mark.filterwarnings("ignore:.*multiple fill values")
@pytest.mark.parametrize("packing", PACKINGS)
@BOTH_FORMATS
def test_t21_packed_numbers_are_those_of_xarray(zarr_format, packing):
    dtype, attributes = PACKINGS[packing]
    attributes = dict(attributes)
    options = {}
    if zarr_format == 2 and "_FillValue" in attributes:
        # xarray takes the fill value of the array for the attribute, and writes it there.
        options["fill_value"] = attributes.pop("_FillValue")
    elif dtype == "f4":
        attributes["_FillValue"] = xarray.backends.zarr.FillValueCoder.encode(5.0, np.dtype("f4"))
    store = make_store(
        {"t": (11, 4)},
        dtype=dtype,
        chunks=(3, 3),
        dims=("time", "x"),
        zarr_format=zarr_format,
        attributes={"t": attributes},
        **options,
    )
    with xarray.open_zarr(
        store, consolidated=False, zarr_format=zarr_format, chunks=None
    ) as opened:
        expected = opened["t"].to_numpy()
    # The fill value 0 of format 2 masks too, in an array with dimensions.
    is_masked = bool({"_FillValue", "missing_value"} & set(PACKINGS[packing][1]))
    assert np.isnan(expected).any() == (is_masked or zarr_format == 2)
    check(store, {"t": expected})


def test_t21_unsigned_numbers_are_refused_with_the_way_out():
    """Attributes that are not supported are an error: never are raw numbers taken for others."""
    store = make_store(
        {"t": (11, 4)}, dtype="i1", dims=("time", "x"), attributes={"t": {"_Unsigned": "true"}}
    )
    with refused(GeometryError, "'t'", "_Unsigned", "decode_cf=False"):
        tdi.open_arrays(store, "t")
    raw = tdi.open_arrays(store, "t", decode_cf=False)
    check(store, {"t": zarr.open_array(store, path="t")[...]}, views=raw)


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


def test_t25_arrays_of_other_chunks_and_dtypes_are_paired():
    hourly, monthly = counted((90, 2)), counted((90, 3), "int16", first=500)
    store = CountingStore(write(monthly, (30, 3), name="monthly", store=write(hourly, (1, 2))))
    assert check(store, {"t": hourly, "monthly": monthly}).reads == {"t": 90, "monthly": 3}
    assert (store.reads("t/"), store.reads("monthly/")) == (90, 3)


def test_t25_floats_of_two_widths_in_one_loader():
    single, double = counted((21, 2), "f4"), counted((21, 2), "f8", first=500)
    store = write(double, (7, 2), name="u", store=write(single, (4, 2)))
    check(store, {"t": single, "u": double})
    arrays = tdi.open_arrays(store)
    with refused(GeometryError, "'t'", "'u'", "float32", "float64"):
        tdi.stack(*arrays.values())


def test_t25_arrays_of_unequal_length_are_refused_with_both():
    store = write(counted((20, 2)), (7, 2), name="u", store=write(counted((21, 2)), (4, 2)))
    with refused(GeometryError, "'t'", "'u'", "21", "20"):
        loader_of(store)


def test_t26_only_anchors_that_have_all_of_their_samples_are_drawn():
    """A list of dates that are missing is to come; until then a gap is left out by ranges."""
    values = counted((400, 2))
    store = write(values, (24, 2))
    t = tdi.open_arrays(store)["t"]
    views = {
        "history": t.window(-1, 0),
        "rollout": t.window(1, 2, 3, 4),
        "leads": t.window(24, 240),
    }
    with_gap = tdi.split_by_range(views, {"train": [(0, 100), (110, 300)]}, gap=0)["train"]
    for split, ranges in ((None, [(0, 400)]), (with_gap, with_gap.ranges)):
        inside = [anchor for pair in ranges for anchor in range(*pair)]
        anchors = [a for a in inside if a - 1 >= 0 and a + 240 < 400]
        with loader_of(store, views, split=split, batch_size=16) as loader:
            n_dropped = len(inside) - len(anchors)
            assert loader.chain.planner.space.n_dropped_edges == n_dropped
            assert f"{n_dropped} anchors dropped" in tdi.describe(loader)
            found = drawn(loader)
        assert found["sample_index"].tolist() == anchors
        at = np.array(anchors)[:, None]
        for name, offsets in (
            ("history", [-1, 0]),
            ("rollout", [1, 2, 3, 4]),
            ("leads", [24, 240]),
        ):
            assert found[name].tobytes() == values[at + offsets].tobytes()


def test_t26_a_split_without_any_valid_anchor_is_refused():
    store = write(counted((400, 2)), (24, 2))
    t = tdi.open_arrays(store)["t"]
    split = tdi.split_by_range({"x": t}, {"late": (380, 400)})["late"]
    with refused(PlanError, "'late'", "no valid anchor", "+24"):
        loader_of(store, {"x": t.shift(24)}, split=split)


def test_t26_dates_are_refused_where_samples_are_asked_for():
    t = tdi.open_arrays(write(counted((40, 2)), (4, 2)))["t"]
    with refused(PlanError, "'2020-01-01'", "in samples"):
        tdi.split_by_range({"x": t}, {"train": ("2020-01-01", "2021-01-01")})


def test_t27_windows_that_overlap_read_each_stored_chunk_of_a_tiled_field_once():
    """Patches are a draw space of their own that is to come; a draw has the whole field here."""
    values = counted((12, 9, 10))
    store = CountingStore(write(values, (2, 4, 3)))
    t = tdi.open_arrays(store)["t"]
    store.reset()
    with loader_of(store, {"x": t.window(0, 1, 2), "y": t}, batch_size=5) as loader:
        found = drawn(loader)
    at = np.arange(10)[:, None]
    assert found["x"].tobytes() == values[at + np.arange(3)].tobytes()
    chunk_gets = {key: n for key, n in store.gets.items() if "/c/" in key}
    assert len(chunk_gets) == 6 * 3 * 4
    assert set(chunk_gets.values()) == {1}


def test_t27_a_window_as_long_as_the_array_has_one_anchor_and_a_longer_one_none():
    values = counted((12, 2))
    store = write(values, (5, 2))
    t = tdi.open_arrays(store)["t"]
    with loader_of(store, {"x": t.window(*range(12))}) as loader:
        (batch,) = loader
    assert batch["x"].numpy().tobytes() == values.tobytes()
    with refused(GeometryError, "'t'", "13 samples", "has 12"):
        loader_of(store, {"x": t.window(*range(13))})


def metadata_of(n_chunks):
    """An array of one sample a chunk, of which no chunk is stored."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="t", shape=(n_chunks, 4), chunks=(1, 4), dtype="f4")
    return CountingStore(store)


@pytest.fixture
def traced_memory():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def planned(n_chunks, *, counts_reads):
    """Plan over so many chunks; the seconds of work and the most bytes that took."""
    store = metadata_of(n_chunks)
    began_s = time.process_time()
    t = tdi.open_arrays(store)["t"]
    views = {"x": t.window(-1, 0), "y": t.shift(6)}
    split = tdi.split_by_chunk(views, {"train": 0.8, "val": 0.2})["train"]
    with loader_of(store, views, split=split, batch_size=64, block_chunks=16) as loader:
        assert len(loader) == -(-(n_chunks * 8 // 10 - 1) // 64)
        state = loader.state_dict()
        loader.skip(len(loader) // 2)
        segment = next(loader.plan.segments(loader.cursor))
        assert len(segment.draws)
        if counts_reads:
            assert loader.expected_reads > n_chunks * 8 // 10
            tdi.describe(loader)
    took_s = time.process_time() - began_s
    peak = tracemalloc.get_traced_memory()[1]
    assert len(json.dumps(state)) < 600
    assert store.gets
    assert store.reads() == 0
    return took_s, peak


@pytest.mark.usefixtures("traced_memory")
def test_t28_a_hundred_thousand_chunks_of_one_sample_are_planned():
    took_s, peak = planned(100_000, counts_reads=True)
    assert took_s < 5
    assert peak < 30e6


@pytest.mark.usefixtures("traced_memory")
@pytest.mark.parametrize(
    "counts_reads, most_s, most_bytes",
    [(False, 10, 250e6), pytest.param(True, 60, 600e6, marks=pytest.mark.slow)],
)
def test_t28_two_million_chunks_are_planned_from_metadata_alone(counts_reads, most_s, most_bytes):
    took_s, peak = planned(2_000_000, counts_reads=counts_reads)
    assert took_s < most_s
    assert peak < most_bytes


def test_t28_many_chunks_of_one_sample_are_read_right():
    values = counted((1000, 2), "int32")
    store = write(values, (1, 2), compressors=None)
    stats = check(store, {"t": values}, batch_size=64, block_chunks=16)
    assert stats.reads == {"t": 1000}
