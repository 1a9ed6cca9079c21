"""A state is made every few steps: it costs next to nothing, whatever the plan and its past."""

import json
import statistics
import time

import pytest
import zarr

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY, make_loader
from torchdata_insitu.testing import CountingStore

N = 10_000_000
N_CHUNKS = 250_000
# (world size, batch size) that follow each other in one epoch.
HOPS = [(1, 32), (8, 100), (3, 7), (64, 16), (6, 1), (512, 4)]


@pytest.fixture(scope="module")
def store():
    """Metadata alone: nothing is ever read."""
    store = CountingStore(zarr.storage.MemoryStore())
    zarr.create_array(store, name="x", shape=(N, 2), chunks=(N // N_CHUNKS, 2), dtype="f4")
    return store


def load(store, **options):
    return make_loader(store, {"x": tdi.open_arrays(store)["x"]}, **options)


def median_ms(function, n=101):
    times = []
    for _ in range(n):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


def test_state_dict_speed(store):
    """Of ten million samples, fresh and after several changes of ranks and batch size."""
    with load(store, batch_size=32) as loader:
        assert loader.plan.space.n_units == N_CHUNKS
        state = loader.state_dict()
    store.reset()
    positions = [0]
    for world_size, batch_size in HOPS:
        with load(store, batch_size=batch_size, rank=0, world_size=world_size, lanes=8) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            loader.skip(1001)
            state = loader.state_dict()
            assert len(json.dumps(state)) < 600
            assert state["step"] == 1001 * len(positions)
            assert state["position"] == positions[-1] + 1001 * batch_size * world_size
            assert median_ms(loader.state_dict) < 1
        positions.append(state["position"])
    assert store.reads() == 0


def test_state_dict_speed_of_a_mix(store):
    sources = {
        name: load(store, batch_size=32, seed=seed, budget_bytes=PLENTY).node
        for seed, name in enumerate(("era5", "cmip", "goes", "merra"))
    }
    weights = dict(zip(sources, (0.4, 0.3, 0.2, 0.1), strict=True))
    with tdi.InSituLoader(tdi.MixNode(sources, weights, seed=0, stop="first")) as loader:
        loader.skip(5000)
        assert len(json.dumps(loader.state_dict())) < 2000
        assert median_ms(loader.state_dict) < 1


def test_state_dict_speed_while_an_epoch_is_finished_that_began_before_the_data_grew(store):
    with load(store, split=tdi.Split("train", ((0, N // 2),), N)) as before:
        before.skip(1001)
        state = before.state_dict()
    with load(store, on_growth="finish_epoch") as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert median_ms(loader.state_dict) < 1
