"""Sharded arrays through the public interface: values, reads, requests, damage."""

import numpy as np
import obstore
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.refusals import refused
from tests.contracts.zarr_oracle import ZarrOracle, check_batches
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.testing import CountingStore, FaultServer, check_resume

NONE, ZSTD = None, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
INDEX_BYTES = 16


def write(store, shape, inner, shards, *, values=None, compressor=ZSTD, fill_value=0, **options):
    """A sharded array at the root of a store."""
    options = {"dtype": "f4", "name": "t", **options}
    serializer = options.pop("serializer", {"name": "bytes", "configuration": {"endian": "little"}})
    array = zarr.create_array(
        store,
        shape=shape,
        chunks=inner,
        shards=shards,
        compressors=[compressor] if compressor else None,
        serializer=serializer,
        fill_value=fill_value,
        **options,
    )
    values = counted(shape, options["dtype"], first=1) if values is None else values
    array[...] = values
    return store


def write_with(store, codec, shape, shards, *, values=None, dtype="f4", grid=None):
    """An array with a `sharding_indexed` codec that `create_array` does not make."""
    group = zarr.create_group(store)
    del group
    array = zarr.create_array(
        store,
        name="t",
        shape=shape,
        chunks=shards,
        dtype=dtype,
        serializer=codec,
        compressors=None,
        fill_value=0,
    )
    array[...] = counted(shape, dtype, first=1) if values is None else values
    return store


def check(store, where=None, *, axis=0, n_epochs=1, offsets=(0,), **options):
    """Every batch is as Zarr reads it, and what is read is what was planned; the stats."""
    t = tdi.open_arrays(store, sample_axis=axis)["t"]
    options = {"batch_size": 4, "block_chunks": 4, "budget_bytes": PLENTY, **options}
    with tdi.build_loader(
        store if where is None else where, {"x": t.window(*offsets)}, **options
    ) as loader:
        planned = loader.expected_reads
        check_batches(loader, ZarrOracle(store, {"t": axis}), n_epochs)
        stats = loader.stats()
    if offsets == (0,):
        assert stats.reads["t"] == planned * n_epochs
    else:
        assert stats.reads["t"] <= planned * n_epochs
    return stats


@pytest.fixture(params=["memory", "folder", "counted", "obstore", "http"])
def place(request, tmp_path):
    """A store to write to, and a function from it to what is read."""
    if request.param == "memory":
        store = zarr.storage.MemoryStore()
        yield store, store
        return
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    if request.param == "folder":
        yield store, str(tmp_path / "store.zarr")
    elif request.param == "counted":
        yield store, CountingStore(store)
    elif request.param == "obstore":
        memory = obstore.store.MemoryStore()
        yield zarr.storage.ObjectStore(memory), zarr.storage.ObjectStore(memory)
    else:
        (tmp_path / "store.zarr").mkdir()
        with FaultServer(tmp_path / "store.zarr") as server:
            yield store, tdi.open_store(server.url)


@pytest.mark.parametrize("compressor", [NONE, ZSTD])
@pytest.mark.parametrize(
    "shape, inner, shards, axis",
    [
        ((37, 5, 7), (5, 2, 3), (10, 4, 9), 0),
        ((37, 5, 7), (5, 2, 3), (40, 6, 9), 1),
        ((5, 37, 4), (1, 4, 4), (2, 8, 4), 1),
        ((7, 3), (8, 8), (16, 16), 0),
        ((1, 3), (8, 8), (8, 8), 0),
        ((41,), (3,), (12,), 0),
        ((40, 4), (1, 4), (20, 4), 0),
    ],
)
def test_values_and_reads_in_every_store(place, shape, inner, shards, axis, compressor):  # noqa: PLR0917
    store, where = place
    write(store, shape, inner, shards, compressor=compressor)
    stats = check(store, where, axis=axis)
    assert stats.missing == {}


@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_and_several_epochs(place, shuffle):
    store, where = place
    write(store, (37, 5, 7), (5, 2, 3), (10, 4, 9))
    check(store, where, offsets=(-2, 0, 7), n_epochs=2, shuffle=shuffle)


def test_a_shard_that_is_wanted_is_one_request():
    store = zarr.storage.MemoryStore()
    write(store, (64, 8), (2, 8), (16, 8))
    where = CountingStore(store)
    stats = check(store, where, shuffle=False, block_chunks=8)
    assert stats.reads == {"t": 32}
    # The first chunk is not kept waiting for what is wanted after it: its shard takes three.
    assert stats.requests["t"] == where.reads("t/") <= 8
    assert sorted(where.gets[f"t/c/{shard}/0"] for shard in range(4))[:2] == [1, 1]
    stored = sum(len(content) for key, content in store._store_dict.items() if "/c/" in key)
    # The index of the first shard can be asked for once more before it has come.
    assert 0 <= stats.bytes_read - stored <= 8 * INDEX_BYTES + 4


def test_blocks_that_cut_shards_ask_for_stretches():
    store = zarr.storage.MemoryStore()
    write(store, (96, 8), (2, 8), (48, 8))
    where = CountingStore(store)
    stats = check(store, where, shuffle=False, block_chunks=5, budget_bytes="1%")
    assert stats.reads == {"t": 48}
    # An index, and a stretch for each block; the first ones grow.
    assert where.reads("t/") == stats.requests["t"] <= 24


def test_runs_are_equal_parts_of_a_shard():
    store = zarr.storage.MemoryStore()
    write(store, (96, 8), (2, 8), (24, 8))
    arrays = tdi.open_arrays(store)
    runs = {}
    for block_chunks in (4, 16, 64):
        planner = tdi.ChunkPlanner(arrays, batch_size=4, block_chunks=block_chunks)
        runs[block_chunks] = planner.plan.run_chunks
    assert runs == {4: 1, 16: 4, 64: 12}
    assert tdi.ChunkPlanner(arrays, batch_size=4, run_chunks=7).plan.run_chunks == 7


def test_one_sample_reads_its_stored_chunks_and_the_index(tmp_path):
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    write(store, (1440, 8, 8), (10, 8, 8), (480, 8, 8), compressor=NONE)
    views = tdi.open_arrays(store)
    split = tdi.split_by_range(views, {"one": (725, 726)})["one"]
    for where in (store, CountingStore(store)):
        with tdi.build_loader(where, views, split=split, batch_size=1) as loader:
            (batch,) = loader
            stats = loader.stats()
        assert np.array_equal(batch["t"][0].numpy(), counted((1440, 8, 8), "f4", first=1)[725])
        assert stats.reads == {"t": 1}
        assert stats.bytes_read == 48 * INDEX_BYTES + 4 + 10 * 8 * 8 * 4


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_every_kind_of_index(place, location, checksum, endian):
    store, where = place
    index_codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    if checksum:
        index_codecs.append({"name": "crc32c"})
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(2, 3),
        codecs=[{"name": "bytes", "configuration": {"endian": "big"}}, ZSTD],
        index_codecs=index_codecs,
        index_location=location,
    )
    write_with(store, codec, (29, 6), (8, 6))
    check(store, where)


@pytest.mark.parametrize(
    "inner",
    [
        [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}],
        [{"name": "bytes"}, {"name": "crc32c"}],
        [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}],
    ],
)
def test_codecs_of_the_inner_chunks(place, inner):
    store, where = place
    inner = [
        {"name": "bytes", "configuration": {"endian": "little"}} if c["name"] == "bytes" else c
        for c in inner
    ]
    write_with(store, zarr.codecs.ShardingCodec(chunk_shape=(2, 3), codecs=inner), (29, 6), (8, 6))
    check(store, where)


def test_shards_in_shards(place):
    store, where = place
    deepest = zarr.codecs.ShardingCodec(chunk_shape=(1, 3), codecs=[zarr.codecs.BytesCodec(), ZSTD])
    codec = zarr.codecs.ShardingCodec(chunk_shape=(2, 6), codecs=[deepest])
    write_with(store, codec, (29, 6), (8, 6))
    stats = check(store, where)
    assert stats.reads == {"t": 15}


@pytest.mark.filterwarnings("error")
def test_codecs_around_shards_make_the_shard_the_stored_chunk():
    store = zarr.storage.MemoryStore()
    codec = zarr.codecs.ShardingCodec(chunk_shape=(2, 3), codecs=[zarr.codecs.BytesCodec()])
    with pytest.warns(UserWarning, match="partial"):
        array = zarr.create_array(
            store,
            name="t",
            shape=(29, 6),
            chunks=(8, 6),
            dtype="f4",
            serializer=codec,
            compressors=[zarr.codecs.GzipCodec()],
        )
    values = counted((29, 6), "f4", first=1)
    array[...] = values
    views = tdi.open_arrays(store)
    with tdi.build_loader(store, views, batch_size=4, budget_bytes=PLENTY) as loader:
        for batch in loader:
            assert np.array_equal(batch["t"].numpy(), values[batch["sample_index"].numpy()])
        assert loader.stats().reads == {"t": 4}


@pytest.mark.parametrize("fill_value", [0, -9, np.nan])
def test_missing_stored_chunks_and_missing_shards(place, fill_value):
    store, where = place
    values = counted((40, 6), "f4", first=1)
    # A whole shard, and one stored chunk of each of the others.
    values[8:16] = fill_value
    values[::8, :3] = fill_value
    values[1::8, :3] = fill_value
    write(store, (40, 6), (2, 3), (8, 6), values=values, fill_value=fill_value)
    stats = check(store, where)
    assert stats.reads == {"t": 40}
    assert stats.missing == {"t": 8 + 4}


def test_missing_stored_chunks_can_be_an_error(place):
    store, where = place
    values = counted((40, 6), "f4", first=1)
    values[24:26] = 0
    write(store, (40, 6), (2, 6), (8, 6), values=values)
    views = tdi.open_arrays(store)
    options = {"batch_size": 4, "budget_bytes": PLENTY, "on_missing": "raise"}
    with (
        tdi.build_loader(where, views, **options) as loader,
        refused(ReadError, "'t'", "t/c/3/0", "(12, 0)", "on_missing"),
    ):
        list(loader)


def test_arrays_of_other_shards_and_without_shards():
    store = zarr.storage.MemoryStore()
    write(store, (36, 4), (2, 4), (12, 4))
    write(store, (36, 4), (3, 2), (9, 4), name="u")
    zarr.create_array(store, name="v", shape=(36,), chunks=(5,), dtype="i2")[...] = np.arange(36)
    t, u, v = tdi.open_arrays(store).values()
    views = {"x": tdi.stack(t, u).window(-1, 0), "y": v.shift(2)}
    with tdi.build_loader(store, views, batch_size=4, budget_bytes=PLENTY) as loader:
        check_batches(loader, ZarrOracle(store, {"t": 0, "u": 0, "v": 0}), 2)


def test_ranks_share_an_epoch():
    store = zarr.storage.MemoryStore()
    write(store, (64, 4), (2, 4), (8, 4))
    views = tdi.open_arrays(store)
    found, n_reads = [], 0
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "batch_size": 4, "budget_bytes": PLENTY}
        with tdi.build_loader(store, views, **options) as loader:
            for batch in loader:
                found += batch["sample_index"].tolist()
                assert (batch["t"][:, 0].numpy() == batch["sample_index"].numpy() * 4 + 1).all()
            n_reads += loader.stats().reads["t"]
    assert sorted(found) == list(range(64))
    assert n_reads == 32


def test_every_position_resumes():
    store = zarr.storage.MemoryStore()
    write(store, (33, 4), (2, 4), (8, 4))
    views = tdi.open_arrays(store)
    check_resume(lambda: tdi.build_loader(store, views, batch_size=4, budget_bytes=PLENTY))


def shard_file(path):
    return path / "store.zarr" / "t" / "c" / "1" / "0"


def spoil_end(content):
    return content[:-20] + bytes(20)


DAMAGES = {
    "empty": (lambda content: content[:0], "index"),
    "cut": (lambda content: content[:-30], "checksum"),
    "no index": (lambda content: content[:40], "index"),
    "spoilt index": (spoil_end, "checksum"),
    "spoilt chunk": (lambda content: bytes(60) + content[60:], "zstd"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["folder", "counted", "http"])
def test_damaged_shards_are_errors_that_say_which(tmp_path, kind, damage):
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    write(store, (40, 6), (2, 6), (8, 6))
    file = shard_file(tmp_path)
    spoil, what = DAMAGES[damage]
    file.write_bytes(spoil(file.read_bytes()))
    with FaultServer(tmp_path / "store.zarr") as server:
        where = {
            "folder": store,
            "counted": CountingStore(store),
            "http": tdi.open_store(server.url),
        }[kind]
        views = tdi.open_arrays(store)
        with (
            tdi.build_loader(where, views, batch_size=4, budget_bytes=PLENTY) as loader,
            refused(DecodeError, "'t'", "t/c/1/0", "2 attempts", what),
        ):
            list(loader)


def test_a_server_that_gives_no_parts_is_asked_for_whole_shards(tmp_path):
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    write(store, (96, 8), (1, 8), (48, 8))
    with FaultServer(tmp_path / "store.zarr", ranges=False) as server:
        check(store, tdi.open_store(server.url))


def test_a_shard_that_was_written_anew_is_read_with_its_new_index(tmp_path):
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    rng = np.random.default_rng(0)
    write(store, (32, 64), (1, 64), (16, 64), values=np.zeros((32, 64)) + 1)
    views = tdi.open_arrays(store)
    for where in (store, CountingStore(store)):
        pool = tdi.ChunkPool("1%")
        options = {"batch_size": 4, "block_chunks": 2, "pool": pool}
        with tdi.build_loader(where, views, **options) as loader:
            for _ in loader:
                pass
            # Random numbers do not compress: every stored chunk lies elsewhere.
            written = rng.random((32, 64)).astype("f4")
            zarr.open_array(store, path="t", mode="r+")[...] = written
            pool.clear()
            for batch in loader:
                assert np.array_equal(batch["t"].numpy(), written[batch["sample_index"].numpy()])
        zarr.open_array(store, path="t", mode="r+")[...] = 1


@pytest.mark.parametrize("kind", ["folder", "obstore"])
@pytest.mark.parametrize("compressor", [NONE, ZSTD])
def test_a_shard_that_is_written_while_it_is_read_shows_no_other_samples(
    tmp_path, kind, compressor
):
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    if kind == "obstore":
        store = zarr.storage.ObjectStore(obstore.store.MemoryStore())
    values = np.repeat(np.arange(1, 65, dtype="f4")[:, None], 4, 1)
    half = values * (np.arange(64) % 2)[:, None]
    write(store, (64, 4), (1, 4), (64, 4), values=half, compressor=compressor)
    options = {"shuffle": False, "block_chunks": 4, "budget_bytes": 8 * 16, "max_inflight": 1}
    n_filled = 0
    with tdi.build_loader(store, tdi.open_arrays(store), batch_size=4, **options) as loader:
        for number, batch in enumerate(loader):
            rows, samples = batch["t"][:, 0].numpy(), batch["sample_index"].numpy()
            assert ((rows == 0) | (rows == samples + 1)).all()
            n_filled += (rows == 0).sum()
            if number == 2:
                zarr.open_array(store, path="t", mode="r+")[...] = values
    assert n_filled < 32


@pytest.mark.parametrize("kind", ["folder", "counted"])
def test_no_read_is_lost_when_loops_break(tmp_path, kind):
    store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    write(store, (96, 8), (1, 8), (24, 8))
    where = store if kind == "folder" else CountingStore(store)
    views = tdi.open_arrays(store)
    with tdi.build_loader(where, views, batch_size=4, block_chunks=4) as loader:
        for n_batches in range(12):
            for number, batch in enumerate(loader):
                assert (batch["t"][:, 0].numpy() == batch["sample_index"].numpy() * 8 + 1).all()
                if number == n_batches:
                    break


def test_describe_says_that_there_are_shards():
    store = zarr.storage.MemoryStore()
    write(store, (96, 8), (1, 8), (24, 8))
    with tdi.build_loader(store, tdi.open_arrays(store), batch_size=4) as loader:
        assert "in shards of (24, 8)" in str(tdi.describe(loader))
