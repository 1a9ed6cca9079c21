import pytest

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.small_loaders import PLENTY, make_loader, small_store, views_of
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import CountingStore, make_store


def lines(loader, heading):
    found = [line.split(None, 1) for line in tdi.describe(loader).splitlines()]
    return [text for name, text in found if name == heading]


def line(loader, heading):
    (text,) = lines(loader, heading)
    return text


@pytest.fixture
def store():
    return CountingStore(small_store())


def test_nothing_is_read(store):
    loader = make_loader(store)
    store.reset()
    tdi.describe(loader)
    assert not store.gets


def test_batches_are_those_of_this_rank_from_where_it_stands(store):
    loader = make_loader(store, rank=1, world_size=2)
    assert line(loader, "batches") == (
        "3 of 4 draws on each of 2 ranks (this is rank 1); epoch 0, from position 0"
    )
    loader.skip(2)
    assert line(loader, "batches").startswith("3 of 4")
    assert line(loader, "batches").endswith("epoch 0, from position 16")


def test_draws_that_are_not_delivered_are_told(store):
    views = {"x": views_of(store)["x"].window(-1, 0)}
    text = line(make_loader(store, views, tail="drop"), "draws")
    assert "21 in 6 units; 1 left out by tail 'drop'" in text
    assert "1 anchors dropped at edges that windows reach over" in text
    assert "none left out by tail 'exact'" in line(make_loader(store, tail="exact"), "draws")


def test_order(store):
    assert line(make_loader(store, seed=4), "order") == (
        "shuffled with seed 4: blocks of 2 units, runs of 1, 1 lanes"
    )
    assert line(make_loader(store, shuffle=False), "order").startswith("store order, unshuffled")


def test_views_and_arrays():
    store = make_store({"t": (8, 3), "u": (8, 3)}, chunks=(4, 2), dims=("time", "x"), codec="none")
    arrays = tdi.open_arrays(store)
    views = {"x": tdi.stack(arrays["t"], arrays["u"]).window(-1, 0), "y": arrays["t"].shift(1)}
    loader = make_loader(store, views)
    assert lines(loader, "views") == [
        "x: float32 (4, 2, 2, 3) from a stack of t, u at -1, +0",
        "y: float32 (4, 3) from t at +1",
    ]
    first, _ = lines(loader, "arrays")
    assert first.startswith(
        "t: float32 (8, 3), sample axis 0 'time': 2 chunks of 4 samples (48 B) in 2 stored; Zarr's"
    )


def test_reads_are_those_of_the_pass(store):
    loader = make_loader(store)
    loader = make_loader(store, budget_bytes=loader.floor_bytes)
    assert line(loader, "reads") == (
        "6 stored chunks this pass (t2m 6), 1.00 x the chunks it draws from"
    )
    windows = {"x": views_of(store)["x"].window(-9, 0)}
    loader = make_loader(store, windows, block_chunks=1)
    factor = loader.expected_reads / 6
    assert factor > 1
    assert f"{loader.expected_reads} stored chunks" in line(loader, "reads")
    assert f"{factor:.2f} x the chunks" in line(loader, "reads")


def test_memory_is_the_budget_the_floor_and_a_batch(store):
    loader = make_loader(store, budget_bytes=1000, tail="pad")
    batch = loader.peek()
    n_bytes = sum(tensor.nbytes for tensor in batch.values())
    loader.close()
    assert line(loader, "memory") == (
        f"budget 1 kB; floor 192 B (t2m 2 x 96 B); beside it up to 4 x 16 batches of {n_bytes} B"
    )
    text = line(make_loader(store, budget_bytes="auto"), "memory")
    assert text.startswith("budget 384 B ('auto': two blocks of each pass); floor 192 B")


@pytest.mark.parametrize("prefetch_factor,n_batches", [(0, 2), (1, 3), (5, 7)])
def test_batches_outside_the_budget(store, prefetch_factor, n_batches):
    loader = make_loader(store, prefetch_factor=prefetch_factor)
    assert f"beside it up to {n_batches} x 16 batches of" in line(loader, "memory")


@pytest.mark.parametrize("side,n_batches", [(100, "4 x 16"), (360, "4 x 4"), (800, "4")])
def test_small_batches_share_memory_and_large_ones_do_not(side, n_batches):
    large = make_store({"t2m": (4, side, side)}, chunks=(1, side, side))
    loader = make_loader(large, batch_size=2)
    assert f"beside it up to {n_batches} batches of" in line(loader, "memory")


def test_reads_are_at_most_so_many_where_chunks_can_be_in_memory(store):
    pool = tdi.ChunkPool(2 * 96)
    loader = make_loader(store, pool=pool)
    assert line(loader, "reads").startswith("6 stored chunks")
    with loader:
        list(loader)
    assert pool.n_resident > 0
    assert line(loader, "reads").startswith("at most ")
    assert line(make_loader(store, budget_bytes=3 * 96), "reads").startswith("at most 6 stored")


def test_a_budget_that_holds_everything_leaves_later_epochs_nothing_to_read(store):
    with make_loader(store, budget_bytes=6 * 96) as loader:
        assert line(loader, "later") == (
            "the budget holds all 6 chunks (576 B): later epochs read nothing"
        )
        for _ in range(3):
            assert len(list(loader)) == 6
        assert loader.stats().reads == {"t2m": 6}
        assert line(loader, "reads").startswith("at most 6 stored")


def test_a_budget_that_does_not_says_what_would(store):
    with make_loader(store, budget_bytes=6 * 96 - 1) as loader:
        assert line(loader, "later") == (
            "every epoch reads: 576 B would hold all chunks drawn from"
        )
        for _ in range(2):
            list(loader)
        assert loader.stats().reads["t2m"] > 6


def test_later_epochs_of_a_pass_that_leaves_chunks_out_read_the_rest(store):
    loader = make_loader(store, rank=0, world_size=2)
    assert line(loader, "later").endswith(": later epochs read only what was not read before")
    shared = make_loader(store, pool=tdi.ChunkPool(PLENTY))
    assert line(shared, "later").endswith("read nothing, if no other loader needs the room")


def test_the_store_is_named_without_secrets():
    arrays = tdi.open_arrays(small_store())
    url = "s3://bucket/a"
    secret = {"region": "eu-west-1", "access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush"}
    loader = make_loader(tdi.open_store(url, **secret), arrays, max_inflight=7, on_missing="raise")
    assert line(loader, "store") == f"{url}; at most 7 requests at once; on_missing 'raise'"
    assert "hush" not in tdi.describe(loader)
    assert "AKIAEXAMPLE" not in tdi.describe(loader)


def labelled():
    """Two stores with an array of one name, and views over both."""
    stores = {label: make_store({"t": (8, 3)}, chunks=(4, 3)) for label in "ab"}
    arrays = {label: tdi.open_arrays(store, store=label)["t"] for label, store in stores.items()}
    return stores, {"x": tdi.stack(*arrays.values())}


def test_arrays_of_one_name_are_told_apart_everywhere():
    loader = make_loader(*labelled())
    first, second = lines(loader, "arrays")
    assert (first[:4], second[:4]) == ("a:t:", "b:t:")
    assert line(loader, "views").endswith("from a stack of a:t, b:t")
    assert "(a:t 2, b:t 2)" in line(loader, "reads")
    assert "(a:t 2 x 48 B + b:t 2 x 48 B)" in line(loader, "memory")
    assert [text[:2] for text in lines(loader, "store")] == ["a:", "b:"]


def test_a_mix_tells_the_floor_of_all_its_sources():
    stores, views = labelled()
    pool = tdi.ChunkPool(PLENTY)
    sources = {}
    for name in ("one", "two"):
        planner = tdi.ChunkPlanner(views, batch_size=4, block_chunks=2)
        fetcher = tdi.AsyncChunkFetcher(planner, stores, pool)
        sources[name] = tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))
    loader = tdi.InSituLoader(tdi.Prefetcher(tdi.MixNode(sources, {"one": 1, "two": 1}), 3))
    assert loader.floor_bytes == 2 * 192
    whole, *each = lines(loader, "memory")
    assert whole == "floors of all sources 384 B: what one pool needs"
    assert len(each) == 2
    assert all("floor 192 B (a:t 2" in text and "up to 5 x 16 batches" in text for text in each)
    assert sum(loader.chain.mix_order.reads_from(loader.cursor).values()) == loader.expected_reads


@pytest.mark.parametrize("given", [3, None, "s3://b/a"])
def test_what_is_no_loader_is_refused(given):
    with refused(PlanError, repr(given), type(given).__name__, "InSituLoader"):
        tdi.describe(given)
