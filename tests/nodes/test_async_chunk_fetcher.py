import gc

import pytest

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY, N, eventually, flat, shut_down, small_store, views_of
from torchdata_insitu.errors import BudgetError, ClosedError, PlanError
from torchdata_insitu.testing import CountingStore, make_store

N_CHUNKS = 6
CHUNK_BYTES = 4 * 6 * 4


def make_fetcher(store, views=None, *, budget_bytes=PLENTY, stores=None, **plan):
    plan = {"batch_size": 4, "block_chunks": 1, "shuffle": False, **plan}
    planner = tdi.ChunkPlanner(views or views_of(store), **plan)
    return tdi.AsyncChunkFetcher(planner, stores or store, tdi.ChunkPool(budget_bytes))


def landed(item):
    item.admission.wait()
    return item


def finished(item):
    """The item, read, and given back as the gather does."""
    landed(item)
    item.pool_pass.release(
        key._replace(source=item.sources[key.source]) for key in item.segment.release
    )
    return item


def test_each_chunk_is_read_once_an_epoch():
    store = CountingStore(small_store())
    with shut_down(make_fetcher(store)) as node:
        for epoch in range(1, 3):
            for item in node:
                finished(item)
            assert store.reads() == node.n_reads["t2m"] == epoch * N_CHUNKS
            node.pool.clear()
            node.reset(None)


def test_chunks_that_are_still_resident_are_not_read_again():
    store = CountingStore(small_store())
    with shut_down(make_fetcher(store)) as node:
        for _ in range(2):
            for item in node:
                finished(item)
            node.reset(None)
    assert store.reads() == node.n_reads["t2m"] == N_CHUNKS


def test_a_consumer_that_stops_stops_the_reading():
    store = CountingStore(small_store(n=400))
    with shut_down(make_fetcher(store, budget_bytes=5 * CHUNK_BYTES)) as node:
        items = [landed(next(node)) for _ in range(2)]
        assert items[0].pool_pass.has_queue
        assert items[0].pool_pass.held_bytes == 5 * CHUNK_BYTES
    assert 2 <= store.reads() <= 5


def test_with_room_for_one_block_the_reading_still_goes_on():
    with shut_down(make_fetcher(small_store(), budget_bytes=CHUNK_BYTES)) as node:
        draws = [finished(item).segment.draws[:, 0].tolist() for item in node]
    assert flat(draws) == list(range(N))


def test_items_know_the_last_of_them():
    with shut_down(make_fetcher(small_store(), budget_bytes=2 * CHUNK_BYTES)) as node:
        assert [finished(item).is_last for item in node] == [False] * 5 + [True]


def test_the_budget_is_checked_before_anything_is_read():
    store = CountingStore(small_store())
    with shut_down(make_fetcher(store, budget_bytes=CHUNK_BYTES - 1)) as node:
        state = node.state_dict()
        store.reset()
        for _ in range(2):
            with pytest.raises(BudgetError, match=r"'loader' 96 B \(t2m 1 x 96 B\)"):
                next(node)
        assert node.state_dict() == state
        assert store.reads() == 0


@pytest.mark.parametrize("end", ["shutdown", "reset", "del"])
def test_leases_and_floor_end_with_the_pass(end):
    node = make_fetcher(small_store())
    pool = node.pool
    item = landed(next(node))
    assert pool.n_passes == 1
    if end == "shutdown":
        node.shutdown()
    elif end == "reset":
        node.reset(None)
    else:
        del node, item
        gc.collect()
    assert pool.n_passes == 0
    # A slot is free when its last writer has left it.
    eventually(lambda: pool.n_in_use == 0)
    if end != "del":
        assert item.pool_pass.closed
        node.shutdown()


def test_arrays_are_read_from_the_store_of_their_label():
    first = make_store({"t": (6, 2)}, chunks=(2, 2))
    second = make_store({"t": (6, 3)}, chunks=(3, 3), dtype="int16")
    stores = {"era5": CountingStore(first), "rain": CountingStore(second)}
    views = {
        name: tdi.open_arrays(store, store=name)["t"]
        for name, store in (("era5", first), ("rain", second))
    }
    with shut_down(make_fetcher(None, views, stores=stores)) as node:
        for item in node:
            finished(item)
        assert {name: store.reads() for name, store in stores.items()} == {"era5": 3, "rain": 2}
        assert node.n_reads == {"era5:t": 3, "rain:t": 2}
        assert node.bytes_read > 0


def test_a_label_without_a_store_is_refused():
    store = small_store()
    views = {"x": tdi.open_arrays(store, store="rain")["t2m"]}
    with pytest.raises(PlanError, match=r"'t2m' is of store 'rain', .* are \['era5'\]"):
        make_fetcher(None, views, stores={"era5": store})
    with pytest.raises(PlanError, match="'t2m' is of store None"):
        make_fetcher(None, views_of(store), stores={"era5": store})


def test_one_store_for_arrays_of_two_is_refused():
    first, second = small_store(), small_store()
    views = {
        "x": tdi.open_arrays(first)["t2m"],
        "y": tdi.open_arrays(second, store="rain")["t2m"],
    }
    with pytest.raises(PlanError, match=r"2 stores, \['None', 'rain'\], but one"):
        make_fetcher(first, views)


def test_it_says_how_an_array_is_read():
    node = make_fetcher(small_store(codec="zstd"))
    assert node.describe(node.planner.arrays[0]).startswith("Zarr's event loop; zstd")


def test_a_pass_that_starts_while_the_node_is_shut_down_does_not_stay():
    with shut_down(make_fetcher(small_store())) as node:
        open_pass = node.pool.open_pass

        def shut_down_before(*args, **options):
            # Another thread is quicker.
            node.shutdown()
            return open_pass(*args, **options)

        node.pool.open_pass = shut_down_before
        for _ in range(2):
            with pytest.raises(ClosedError, match="shut down"):
                next(node)
        assert (node.pool.n_passes, node.pool.n_in_use) == (0, 0)
