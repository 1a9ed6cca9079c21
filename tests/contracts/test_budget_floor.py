"""The floor is enough: with not a byte more every pass runs to its end, and with one less none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_insitu as tdi
from tests.contracts.chains import counted, floor_of
from tests.contracts.refusals import refused
from tests.contracts.watchdog import promptly
from tests.contracts.zarr_oracle import ZarrOracle, check_batches
from torchdata_insitu.errors import BudgetError
from torchdata_insitu.testing import CountingStore, make_store


def run_at_the_floor(store, views, axes, **options):
    """Two epochs with the smallest budget there can be; every value is compared."""
    floor, _ = floor_of(store, views, **options)
    oracle = ZarrOracle(store, axes)
    with tdi.build_loader(store, views, budget_bytes=floor, **options) as loader:
        pool = loader.chain.pool_node.pool

        def check_charge():
            assert pool.charged_bytes <= floor

        with promptly(30):
            check_batches(loader, oracle, 2, check_charge)
    assert pool.budget_bytes == floor
    assert pool.charged_bytes <= floor
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


@pytest.fixture(scope="module")
def store():
    arrays = {"t": counted((48, 3)), "u": counted((48, 2), "int16")}
    return make_store(arrays, chunks={"t": (4, 2), "u": (6, 2)})


@pytest.fixture(scope="module")
def arrays(store):
    return tdi.open_arrays(store)


AXES = {"t": 0, "u": 0}


@pytest.mark.parametrize("batch_size", [1, 3, 4, 5, 32, 40])
@pytest.mark.parametrize("block_chunks", [1, 2, 3, 4])
def test_one_array(store, arrays, block_chunks, batch_size):
    """With one slot a batch of 32 goes through eight chunks, one after the other."""
    options = {"block_chunks": block_chunks, "batch_size": batch_size}
    run_at_the_floor(store, {"x": arrays["t"]}, AXES, **options)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("block_chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_over_two_arrays(store, arrays, shuffle, block_chunks, batch_size):
    views = {"x": arrays["t"].window(-5, 0, 1), "y": arrays["u"].shift(3)}
    options = {"block_chunks": block_chunks, "batch_size": batch_size, "shuffle": shuffle}
    run_at_the_floor(store, views, AXES, **options)


@pytest.mark.parametrize("lanes", [2, 3, 5])
@pytest.mark.parametrize("block_chunks", [1, 3])
@pytest.mark.parametrize("prefetch_factor", [0, 3])
def test_lanes(store, arrays, prefetch_factor, block_chunks, lanes):
    views = {"x": arrays["t"].window(0, 2), "y": arrays["u"]}
    options = {"block_chunks": block_chunks, "lanes": lanes, "prefetch_factor": prefetch_factor}
    run_at_the_floor(store, views, AXES, batch_size=5, **options)


@pytest.mark.parametrize("lanes", [1, 3])
def test_one_byte_less_is_refused_with_every_term(store, arrays, lanes):
    counting = CountingStore(store)
    views = {"x": arrays["t"].window(-5, 0), "y": arrays["u"]}
    options = {"block_chunks": 2, "lanes": lanes, "batch_size": 4}
    floor, terms = floor_of(counting, views, **options)
    with tdi.build_loader(counting, views, budget_bytes=floor - 1, **options) as loader:
        facts = [f"raise budget_bytes to {floor}", "block_chunks", *terms]
        with refused(BudgetError, *facts):
            next(iter(loader))
        pool = loader.chain.pool_node.pool
        assert (pool.n_passes, pool.charged_bytes) == (0, 0)
    assert not counting.gets


@st.composite
def tight_passes(draw):
    n_samples = draw(st.integers(1, 60))
    values = {"t": counted((n_samples, 2)), "u": counted((n_samples,))}
    chunks = {"t": (draw(st.integers(1, 9)), 1), "u": (draw(st.integers(1, 9)),)}
    store = make_store(values, chunks=chunks)
    reach = min(n_samples - 1, 12)
    offset = st.integers(-(reach // 2), reach - reach // 2)
    t, u = tdi.open_arrays(store).values()
    views = {"x": t.window(*draw(st.lists(offset, min_size=1, max_size=3)))}
    if draw(st.booleans()):
        views["y"] = u.shift(draw(offset))
    options = {
        "block_chunks": draw(st.integers(1, 6)),
        "run_chunks": draw(st.one_of(st.none(), st.integers(1, 4))),
        "batch_size": draw(st.integers(1, 40)),
        "lanes": draw(st.integers(1, 6)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
        "prefetch_factor": draw(st.integers(0, 2)),
    }
    return store, views, options


@settings(max_examples=40)
@given(tight_passes())
def test_any_pass_runs_at_its_floor(case):
    store, views, options = case
    run_at_the_floor(store, views, AXES, **options)
