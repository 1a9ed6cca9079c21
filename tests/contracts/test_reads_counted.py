"""Reads are planned, and the store is asked exactly as often as planned."""

import itertools
import math
from collections import Counter

import pytest
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from torchdata_insitu.testing import CountingStore, make_store


def counting(arrays, chunks, **options):
    values = {name: counted(shape) for name, shape in arrays.items()}
    store = CountingStore(make_store(values, chunks=chunks, **options))
    opened = tdi.open_arrays(store)
    store.reset()
    return store, opened


def chunk_gets(store):
    return {key: n for key, n in store.gets.items() if not key.endswith("zarr.json")}


def reads_of(store, names):
    return {name: store.reads(f"{name}/") for name in names}


def run_of(key):
    """Number of the chunk on the sample axis of a stored chunk's key, axis 0 of `name/c/...`."""
    return int(key.split("/")[2])


@pytest.mark.parametrize("batch_size", [1, 7, 32, 100])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_stored_chunk_once_whatever_batches_and_views(batch_size, shuffle):
    shapes = {"t": (45, 5, 4), "u": (45, 5, 4)}
    store, arrays = counting(shapes, {"t": (4, 2, 3), "u": (8, 5, 4)})
    t, u = arrays["t"], arrays["u"]
    views = {"x": tdi.stack(t, u), "y": t, "z": tdi.stack(u, u)}
    options = {"batch_size": batch_size, "shuffle": shuffle, "block_chunks": 2}
    with tdi.build_loader(store, views, budget_bytes=PLENTY, **options) as loader:
        planned = loader.plan.reads()
        expected = loader.expected_reads
        for _ in loader:
            pass
        stats = loader.stats()
    assert planned == {"t": 12 * 3 * 2, "u": 6}
    assert set(chunk_gets(store).values()) == {1}
    assert reads_of(store, shapes) == planned == stats.reads
    assert expected == sum(planned.values())
    assert stats.bytes_read > 0


def test_metadata_is_not_read_again():
    store, arrays = counting({"t": (20, 2)}, (3, 2))
    with tdi.build_loader(store, arrays, batch_size=4, budget_bytes=PLENTY) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        loader.load_state_dict(loader.state_dict())
        tdi.describe(loader)
    assert set(store.gets) == set(chunk_gets(store))


def test_nothing_is_read_before_the_first_batch():
    store, arrays = counting({"t": (20, 2)}, (3, 2))
    with tdi.build_loader(store, arrays, batch_size=4, budget_bytes=PLENTY) as loader:
        iter(loader)
        iter(loader)
        loader.load_state_dict(loader.state_dict())
        loader.skip(2)
        len(loader)
        tdi.describe(loader)
    assert not store.gets


def test_chunks_of_1_and_of_30_samples_are_read_once():
    store, arrays = counting(
        {"fine": (300, 2), "coarse": (300, 2)}, {"fine": (1, 2), "coarse": (30, 2)}
    )
    with tdi.build_loader(store, arrays, batch_size=16, budget_bytes=PLENTY) as loader:
        for _ in loader:
            pass
        assert loader.expected_reads == 310
    assert reads_of(store, arrays) == {"fine": 300, "coarse": 10}
    assert set(chunk_gets(store).values()) == {1}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_resume_reads_no_finished_chunk(shuffle, lanes, share):
    store, arrays = counting({"t": (200, 2)}, (4, 2))
    options = {"batch_size": 5, "shuffle": shuffle, "lanes": lanes, "block_chunks": 4}
    options["budget_bytes"] = PLENTY
    with tdi.build_loader(store, arrays, **options) as loader:
        for _ in itertools.islice(loader, int(share * len(loader))):
            pass
        state = loader.state_dict()
    store.reset()
    with tdi.build_loader(store, arrays, **options) as loader:
        loader.load_state_dict(state)
        left = loader.plan.draws(0, state["position"], lanes=lanes)[:, 0]
        planned = loader.plan.reads(lanes=lanes, position=state["position"])
        expected = loader.expected_reads
        for _ in loader:
            pass
        assert loader.stats().reads == planned
    assert {run_of(key) for key in chunk_gets(store)} == set((left // 4).tolist())
    assert set(chunk_gets(store).values()) == {1}
    assert store.reads() == expected == planned["t"]


@pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")
@pytest.mark.parametrize(
    "world_size, lanes", [(2, 2), (2, 4), (3, 6), (4, 4), (3, 2), (2, 3), (4, 6), (6, 4)]
)
def test_rank_reads_only_its_lanes(world_size, lanes):
    n_chunks = 40
    store, arrays = counting({"t": (n_chunks * 3, 2)}, (3, 2))
    # Ranks that are alike modulo this meet the same lanes, and all of them read these.
    common = math.gcd(world_size, lanes)
    n_reads = 0
    for rank in range(world_size):
        store.reset()
        with tdi.build_loader(
            store,
            arrays,
            batch_size=4,
            block_chunks=3,
            lanes=lanes,
            rank=rank,
            world_size=world_size,
            budget_bytes=PLENTY,
        ) as loader:
            for _ in loader:
                pass
            order = loader.plan.draws(0, lanes=lanes)[:, 0]
            planned = loader.plan.reads(rank, world_size=world_size, lanes=lanes)
        mine = {
            int(sample) // 3
            for lane in range(rank % common, lanes, common)
            for sample in order[lane::lanes]
        }
        found = {run_of(key) for key in chunk_gets(store)}
        # A rank that takes only some draws of a lane may have none in a block at its border.
        assert found == mine or (found < mine and world_size > common)
        assert store.reads() == loader.stats().reads["t"]
        # Of two lanes at one border, a rank that meets both may find the chunk in its pool.
        n_borders = lanes - 1 if lanes % world_size else 0
        assert planned["t"] - n_borders <= store.reads() <= planned["t"]
        n_reads += store.reads()
    # Lanes are cut between two draws, so that each border is a chunk read on both sides.
    assert n_chunks <= n_reads <= (n_chunks + lanes - 1) * world_size // common


def reads_by_epoch(store, views, n_epochs=2, **options):
    """Reads of each epoch, as planned and as the store counted them."""
    planned, found = [], []
    before = Counter()
    with tdi.build_loader(store, views, **options) as loader:
        for epoch in range(n_epochs):
            planned.append(loader.plan.reads(epoch=epoch, lanes=options["lanes"]))
            for _ in loader:
                pass
            stats = Counter(loader.stats().reads)
            assert stats == Counter(reads_of(store, planned[0]))
            found.append({name: stats[name] - before[name] for name in planned[0]})
            before = stats
    return planned, found


def windows_over(chunks):
    store, arrays = counting({"t": (120, 2), "u": (120, 2)}, chunks)
    t, u = arrays["t"], arrays["u"]
    return store, {"x": t.window(-5, -1, 0), "y": u.shift(9)}


@pytest.mark.parametrize("chunks", [{"t": (4, 2), "u": (6, 1)}, {"t": (7, 2), "u": (10, 2)}])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("budget", ["floor", "plenty"])
def test_windows_are_never_read_more_often_than_planned(chunks, shuffle, lanes, budget):
    store, views = windows_over(chunks)
    options = {"batch_size": 8, "block_chunks": 4, "lanes": lanes, "shuffle": shuffle}
    with tdi.build_loader(store, views, **options) as loader:
        options["budget_bytes"] = loader.floor_bytes if budget == "floor" else PLENTY
    planned, found = reads_by_epoch(store, views, **options)
    for reads, at_most in zip(found, planned, strict=True):
        assert all(reads[name] <= at_most[name] for name in at_most)
    # What is read depends on what fits, and not on what comes first.
    store.reset()
    assert reads_by_epoch(store, views, **options)[1] == found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [1, 3])
def test_with_room_for_the_split_a_second_epoch_reads_nothing(shuffle, lanes):
    store, views = windows_over({"t": (4, 2), "u": (6, 1)})
    arrays = {view.arrays[0] for view in views.values()}
    options = {"batch_size": 8, "block_chunks": 4, "lanes": lanes, "shuffle": shuffle}
    options["budget_bytes"] = sum(array.chunk_bytes * array.n_chunks for array in arrays)
    _, found = reads_by_epoch(store, views, n_epochs=3, **options)
    assert set(chunk_gets(store).values()) == {1}
    assert found[1] == found[2] == {"t": 0, "u": 0}


def test_a_second_loader_on_the_pool_reads_nothing_that_the_first_read():
    store, arrays = counting({"t": (40, 2)}, (4, 2))
    pool = tdi.ChunkPool(PLENTY)
    options = {"batch_size": 8, "pool": pool, "block_chunks": 2}
    split = tdi.split_by_range(arrays, {"half": (0, 20)})["half"]
    with tdi.build_loader(store, arrays, split=split, **options) as first:
        for _ in first:
            pass
    with tdi.build_loader(store, arrays, seed=7, **options) as second:
        for _ in second:
            pass
    assert set(chunk_gets(store).values()) == {1}
    assert (first.stats().reads["t"], second.stats().reads["t"]) == (5, 5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_without_room_to_read_ahead_windows_are_read_as_planned(shuffle):
    store, views = windows_over({"t": (4, 2), "u": (6, 1)})
    options = {"batch_size": 8, "block_chunks": 1, "lanes": 1, "shuffle": shuffle}
    with tdi.build_loader(store, views, **options) as loader:
        options["budget_bytes"] = loader.floor_bytes
    planned, found = reads_by_epoch(store, views, **options)
    assert found == planned


def test_a_missing_chunk_is_a_read():
    store, arrays = counting({"t": (20, 2)}, (2, 2))
    sync(store.delete("t/c/3/0"))
    with tdi.build_loader(store, arrays, batch_size=4, budget_bytes=PLENTY) as loader:
        for _ in loader:
            pass
        assert loader.stats().reads == {"t": 10}
        assert loader.stats().missing == {"t": 1}
    assert store.reads() == 10


def test_reads_of_arrays_of_one_name_in_two_stores():
    stores = {
        label: CountingStore(make_store({"t": counted((20, 3))}, chunks=(step, 3)))
        for label, step in (("era5", 2), ("rain", 4))
    }
    views = {label: tdi.open_arrays(store, store=label)["t"] for label, store in stores.items()}
    with tdi.build_loader(stores, views, batch_size=4, budget_bytes=PLENTY) as loader:
        for _ in loader:
            pass
        assert [store.reads("t/") for store in stores.values()] == [10, 5]
        assert loader.plan.reads() == loader.stats().reads
