import pytest

import torchdata_insitu as tdi
from tests.small_loaders import make_loader, small_store, views_of
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
        f"budget 1 kB; floor 192 B (t2m 2 x 96 B); a batch is {n_bytes} B, outside the budget"
    )
    assert line(make_loader(store, budget_bytes="auto"), "memory").startswith("budget as needed;")
