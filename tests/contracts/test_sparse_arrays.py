"""Arrays of which chunks are missing: what is filled, counted, and refused."""

import itertools

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import counted
from tests.contracts.documents import PLENTY, files_of, read_all
from tests.contracts.places import PLACES, placed
from tests.contracts.refusals import refused
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import CountingStore, FaultServer, make_store

SHAPE, CHUNKS = (9, 4), (2, 2)
PLACES_OF_CHUNKS = list(itertools.product(range(5), range(2)))
# Numbers of stored chunks that are missing, of ten.
GAPS = {
    "the first": [0],
    "the last": [9],
    "the first run": [0, 1],
    "all but the first": range(1, 10),
    "all but the last": range(9),
    "every other": range(0, 10, 2),
    "one half of every field": range(1, 10, 2),
    "none": [],
}


def sparse(missing, zarr_format=3, **options):
    store = make_store(
        {"t": counted(SHAPE), "well": counted(SHAPE)},
        chunks=CHUNKS,
        zarr_format=zarr_format,
        **{"fill_value": -9, **options},
    )
    for number in missing:
        i, j = PLACES_OF_CHUNKS[number]
        sync(store.delete(f"t/c/{i}/{j}" if zarr_format == 3 else f"t/{i}.{j}"))
    return store


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("gaps", GAPS)
def test_gaps_are_filled_as_by_zarr_and_counted_one_by_one(place, gaps, tmp_path):
    store = sparse(GAPS[gaps])
    expected = zarr.open_array(store, path="t", mode="r")[...]
    with placed(place, files_of(store), tmp_path) as there:
        arrays = tdi.open_arrays(there, ["t", "well"])
        with tdi.build_loader(
            there, arrays, batch_size=4, block_chunks=1, shuffle=False, budget_bytes=PLENTY
        ) as loader:
            for _ in range(2):
                batches = list(loader)
                for name, wanted in (("t", expected), ("well", counted(SHAPE))):
                    values = np.concatenate([batch[name].numpy() for batch in batches])
                    np.testing.assert_array_equal(values, wanted)
            stats = loader.stats()
    # The second epoch finds the filled chunks in the pool.
    assert stats.missing.get("t", 0) == len(GAPS[gaps])
    assert stats.missing.get("well", 0) == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("in_place", [True, False], ids=["shards", "inner chunks"])
def test_gaps_of_a_sharded_array_are_filled_and_counted_by_stored_chunk(place, in_place, tmp_path):
    """Whole shards that are not there, and stored chunks that their shard has not."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(
        store, name="t", shape=(16, 4), chunks=(2, 2), shards=(8, 4), dtype="f4", fill_value=-9
    )
    values = counted((16, 4))
    if not in_place:
        values[2:4, :2] = values[12:16] = -9
    array[...] = values
    if in_place:
        sync(store.delete("t/c/0/0"))
        values[:8] = -9
    with placed(place, files_of(store), tmp_path) as there:
        # The whole first block is missing, and a web server does not tell what else there is.
        policy = "fill" if place == "http" else "auto"
        array = tdi.open_arrays(there, "t")["t"]
        found, n_missing = read_all(there, array, on_missing=policy)
    np.testing.assert_array_equal(found, values)
    assert n_missing == (8 if in_place else 5)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("fill_value", [0, -9, np.nan])
def test_gaps_hold_the_fill_value_in_either_format(zarr_format, fill_value):
    store = sparse([0, 3], zarr_format, fill_value=fill_value)
    expected = zarr.open_array(store, path="t", mode="r")[...]
    values, n_missing = read_all(store, tdi.open_arrays(store, "t")["t"])
    np.testing.assert_array_equal(values, expected)
    assert n_missing == 2


@pytest.mark.parametrize("place", PLACES)
def test_an_array_without_any_chunk_is_an_error(place, tmp_path):
    with placed(place, files_of(sparse(range(10))), tmp_path) as there:
        array = tdi.open_arrays(there, "t")["t"]
        with pytest.raises(tdi.errors.ReadError, match=r"array 't'.*on_missing='fill'"):
            read_all(there, array)
        values, n_missing = read_all(there, array, on_missing="fill")
    assert (values == -9).all()
    assert n_missing == 10


@pytest.mark.parametrize("place", PLACES)
def test_a_gap_is_an_error_where_none_may_be(place, tmp_path):
    with placed(place, files_of(sparse([4])), tmp_path) as there:
        array = tdi.open_arrays(there, "t")["t"]
        with pytest.raises(tdi.errors.ReadError, match=r"'t/c/2/0'.*on_missing is 'raise'"):
            read_all(there, array, on_missing="raise")


def test_a_gap_over_http_is_asked_for_once_and_not_tried_again():
    with FaultServer(sparse([0, 4])) as server:
        there = tdi.open_store(server.url)
        _, n_missing = read_all(there, tdi.open_arrays(there, "t")["t"])
        assert n_missing == 2
        asked = {key: n for key, n in server.requests.items() if key.startswith("t/c/")}
    assert set(asked.values()) == {1}
    assert len(asked) == 10


def test_chunks_below_another_prefix_are_an_error():
    """As of a store that was copied with its chunks one folder too deep."""
    store = sparse([])
    for key in [key for key in store._store_dict if key.startswith("t/c/")]:
        store._store_dict[f"t/copy/{key.removeprefix('t/')}"] = store._store_dict.pop(key)
    with pytest.raises(
        tdi.errors.ReadError, match="array 't' has metadata but no chunk below 't/'"
    ):
        read_all(store, tdi.open_arrays(store, "t")["t"])


PLAIN = ShardingCodec(chunk_shape=(1, 4))
TURNED = TransposeCodec(order=(1, 0))
# Stored chunks that hold further ones, which Zarr decodes with them, and how many are missing.
CHUNKS_INSIDE = {
    "behind a codec": (
        1,
        {"filters": [TURNED], "serializer": ShardingCodec(chunk_shape=(4, 1))},
    ),
    "before a codec": (1, {"serializer": PLAIN, "compressors": [GzipCodec()]}),
    "in shards": (5, {"serializer": ShardingCodec(chunk_shape=(2, 4), codecs=[PLAIN])}),
    "two deep in shards": (
        2,
        {
            "serializer": ShardingCodec(
                chunk_shape=(4, 4), codecs=[ShardingCodec(chunk_shape=(2, 4), codecs=[PLAIN])]
            )
        },
    ),
    "behind a codec in shards": (
        5,
        {
            "serializer": ShardingCodec(
                chunk_shape=(2, 4), codecs=[TURNED, ShardingCodec(chunk_shape=(4, 1))]
            )
        },
    ),
    "with an index that only Zarr reads": (
        1,
        {
            "serializer": ShardingCodec(
                chunk_shape=(1, 4), index_codecs=[BytesCodec(), Crc32cCodec(), Crc32cCodec()]
            )
        },
    ),
}


def chunks_inside(options):
    """Three shards of 8 rows: one that lacks its last three, one that is not there, a whole one."""
    store = make_store({"well": counted((24, 4))}, chunks=(8, 4))
    options = {"compressors": None, "fill_value": -9, **options}
    array = zarr.create_array(store, name="t", shape=(24, 4), chunks=(8, 4), dtype="f4", **options)
    array[:5] = counted((5, 4))
    array[16:] = counted((8, 4))
    return store


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("_, options", CHUNKS_INSIDE.values(), ids=CHUNKS_INSIDE)
def test_gaps_that_only_zarr_sees_cannot_be_an_error(_, options):
    store = CountingStore(chunks_inside(options))
    arrays = tdi.open_arrays(store)
    store.reset()
    with refused(PlanError, "array 't'", "on_missing is 'raise'", "on_missing='auto'"):
        tdi.build_loader(store, arrays, batch_size=4, budget_bytes=PLENTY, on_missing="raise")
    assert not store.gets
    values, _ = read_all(store, arrays["well"], on_missing="raise")
    np.testing.assert_array_equal(values, counted((24, 4)))


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("policy", ["auto", "fill"])
@pytest.mark.parametrize("n_missing, options", CHUNKS_INSIDE.values(), ids=CHUNKS_INSIDE)
def test_gaps_that_only_zarr_sees_are_filled_and_the_others_counted(n_missing, options, policy):
    store = chunks_inside(options)
    values, n_counted = read_all(store, tdi.open_arrays(store, "t")["t"], on_missing=policy)
    np.testing.assert_array_equal(values, zarr.open_array(store, path="t", mode="r")[...])
    assert n_counted == n_missing
