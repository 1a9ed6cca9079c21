"""Bad input is refused: the right class, the name, both values, and nothing half-done."""

import numpy as np
import pytest

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.refusals import refused
from torchdata_insitu.errors import BudgetError, ClosedError, GeometryError, PlanError
from torchdata_insitu.testing import CountingStore, make_store


@pytest.fixture(scope="module")
def store():
    shapes = {"t2m": (20, 3), "u10": (20, 3), "daily": (21, 3)}
    return make_store({name: counted(shape) for name, shape in shapes.items()}, chunks=(4, 3))


@pytest.fixture(scope="module")
def arrays(store):
    return tdi.open_arrays(store)


def load(store, views, **options):
    return tdi.build_loader(store, views, **{"batch_size": 4, "budget_bytes": PLENTY, **options})


def test_no_such_array(store):
    with refused(GeometryError, "'t2n'", "'t2m'", "'u10'"):
        tdi.open_arrays(store, ["u10", "t2n"])


def test_no_such_sample_axis(store):
    with refused(GeometryError, "'t2m'", "2", "(20, 3)"):
        tdi.open_arrays(store, "t2m", sample_axis=2)
    with refused(GeometryError, "'t2m'", "'time'"):
        tdi.open_arrays(store, "t2m", sample_axis="time")


def test_unequal_lengths(store, arrays):
    with refused(GeometryError, "'t2m'", "20", "'daily'", "21"):
        load(store, {"x": arrays["t2m"], "y": arrays["daily"]})
    with refused(GeometryError, "'t2m'", "20", "'daily'", "21"):
        tdi.stack(arrays["t2m"], arrays["daily"])


def test_zero_samples():
    store = make_store({"t2m": np.empty((0, 3), "f4")}, chunks=(4, 3))
    with refused(GeometryError, "'t2m'", "0 samples", "(0, 3)"):
        load(store, tdi.open_arrays(store))


TEXT = np.array(["a", "bb"] * 5)
REFUSED_TYPES = {
    "fixed text": TEXT,
    "bytes": TEXT.astype("S2"),
    "text": TEXT.astype(np.dtypes.StringDType()),
    "structured": np.zeros(10, [("a", "<f4"), ("b", "<i4")]),
}


@pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", REFUSED_TYPES)
def test_types_no_tensor_holds(kind, zarr_format):
    values = REFUSED_TYPES[kind]
    store = make_store(
        {"names": values, "t2m": counted((10, 2))},
        chunks={"names": (4,), "t2m": (4, 2)},
        zarr_format=zarr_format,
    )
    with refused(GeometryError, "'names'") as caught:
        tdi.open_arrays(store, ["t2m", "names"])
    assert len(str(caught.value)) > 60, "no advice"
    assert list(tdi.open_arrays(store)) == ["t2m"]


def test_window_longer_than_the_array(store, arrays):
    with refused(GeometryError, "'t2m'", "-10", "+10", "21 samples", "20"):
        load(store, {"x": arrays["t2m"].window(-10, 10)})
    with refused(GeometryError, "'t2m'", "20"):
        load(store, {"x": arrays["t2m"].shift(20)})


def test_window_longer_than_the_split(store, arrays):
    split = tdi.Split("val", ((0, 3),), 20)
    with refused(PlanError, "'val'", "-5"):
        load(store, {"x": arrays["t2m"].shift(-5)}, split=split)


def test_zero_batches(store, arrays):
    with refused(PlanError, "20 draws", "batches of 21", "1 ranks", "'drop'"):
        load(store, {"x": arrays["t2m"]}, batch_size=21, tail="drop")
    with refused(PlanError, "20 draws", "batches of 6", "4 ranks", "'drop'"):
        load(store, {"x": arrays["t2m"]}, batch_size=6, tail="drop", rank=0, world_size=4)


def test_split_of_another_length(store, arrays):
    split = tdi.Split("train", ((0, 21),), 21)
    with refused(PlanError, "'train'", "21", "'t2m'", "20"):
        load(store, {"x": arrays["t2m"]}, split=split)


def test_budget_below_the_floor_can_be_raised(store, arrays):
    counting = CountingStore(store)
    views = {"x": arrays["t2m"], "y": arrays["u10"]}
    pool = tdi.ChunkPool(383)
    floor = 4 * 2 * 48
    loader = load(counting, views, pool=pool, block_chunks=4, budget_bytes="auto")
    with refused(BudgetError, "384 B", "383 B", "t2m 4 x 48 B", "u10 4 x 48 B", "block_chunks"):
        next(iter(loader))
    assert (pool.n_passes, pool.charged_bytes, counting.gets) == (0, 0, {})
    assert loader.position == 0
    loader.close()
    assert not counting.gets
    with load(counting, views, block_chunks=4, budget_bytes=floor) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 20


BAD_OPTIONS = {
    "batch_size 0": ({"batch_size": 0}, PlanError, "batch_size"),
    "batch_size negative": ({"batch_size": -3}, PlanError, "-3"),
    "batch_size fraction": ({"batch_size": 2.5}, PlanError, "2.5"),
    "batch_size bool": ({"batch_size": True}, PlanError, "True"),
    "block_chunks 0": ({"block_chunks": 0}, PlanError, "block_chunks"),
    "run_chunks 0": ({"run_chunks": 0}, PlanError, "run_chunks"),
    "batch_size none": ({"batch_size": None}, PlanError, "batch_size is a whole number, not None"),
    "rank bool": ({"rank": True, "world_size": 2}, PlanError, "True of type bool"),
    "rank text": ({"rank": "0", "world_size": 2}, PlanError, "rank is a whole number, not '0'"),
    "rank fraction": ({"rank": 0.0, "world_size": 2}, PlanError, "0.0 of type float"),
    "rank negative": ({"rank": -1, "world_size": 2}, PlanError, "-1"),
    "world_size bool": ({"rank": 0, "world_size": True}, PlanError, "world_size"),
    "world_size 0": ({"rank": 0, "world_size": 0}, PlanError, "world_size 0"),
    "pool text": ({"pool": "50%"}, PlanError, "pool is '50%' of type str"),
    "pool bytes": ({"pool": 10**6, "budget_bytes": "auto"}, PlanError, "of type int"),
    "split pair": ({"split": (0, 5)}, PlanError, "split is (0, 5) of type tuple"),
    "split name": ({"split": "train"}, PlanError, "split is 'train' of type str"),
    "seed text": ({"seed": "7"}, PlanError, "'7'"),
    "tail": ({"tail": "keep"}, PlanError, "'keep'"),
    "rank alone": ({"rank": 1}, PlanError, "world_size"),
    "rank too large": ({"rank": 2, "world_size": 2}, PlanError, "2"),
    "budget 0": ({"budget_bytes": 0}, BudgetError, "0"),
    "budget text": ({"budget_bytes": "much"}, BudgetError, "'much'"),
    "budget and pool": ({"pool": tdi.ChunkPool("1%")}, PlanError, "pool"),
    "prefetch none": ({"prefetch_factor": None}, PlanError, "prefetch_factor"),
    "prefetch bool": ({"prefetch_factor": True}, PlanError, "True of type bool"),
    "pin_memory number": ({"pin_memory": 1}, PlanError, "pin_memory is 1"),
    "sample_index number": ({"sample_index": 5}, PlanError, "5 of type int"),
    "sample_index empty": ({"sample_index": ""}, PlanError, "sample_index is ''"),
    "strict text": ({"strict": "x"}, PlanError, "strict is 'x' of type str"),
    "retry number": ({"retry": 3}, PlanError, "retry is 3 of type int: give a RetryPolicy"),
    "one transform": ({"batch_transforms": dict}, PlanError, "batch_transforms"),
    "prefetch negative": ({"prefetch_factor": -1}, PlanError, "-1"),
    "taken name": ({"sample_index": "x"}, PlanError, "'x'"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_that_make_no_sense(store, arrays, case):
    options, kind, fact = BAD_OPTIONS[case]
    with refused(kind, fact):
        load(store, {"x": arrays["t2m"]}, **options)


def test_stores_and_pools_of_the_wrong_kind(store, arrays):
    planner = tdi.ChunkPlanner({"x": arrays["t2m"]}, batch_size=4)
    pool = tdi.ChunkPool("1%")
    url = "https://me:hush@example.org/a?sig=hush"
    with refused(PlanError, "open_store('https://example.org/a')", "of type str") as caught:
        tdi.AsyncChunkFetcher(planner, url, pool)
    assert "hush" not in str(caught.value)
    with refused(PlanError, "store 'era5' is 'path' of type str", "open_store('path')"):
        tdi.AsyncChunkFetcher(planner, {"era5": "path"}, pool)
    with refused(PlanError, "store is None of type NoneType", "open_store"):
        tdi.AsyncChunkFetcher(planner, None, pool)
    with refused(PlanError, "pool is '50%' of type str", "ChunkPool"):
        tdi.AsyncChunkFetcher(planner, store, "50%")


@pytest.mark.parametrize("lanes", [0, -1, 2.5, "2"])
def test_lanes_that_are_no_count(store, arrays, lanes):
    with refused(PlanError, "lanes", lanes):
        load(store, {"x": arrays["t2m"]}, lanes=lanes)


def test_all_splits_instead_of_one(store, arrays):
    views = {"x": arrays["t2m"]}
    splits = tdi.split_by_range(views, {"train": (0, 12), "val": (12, 20)})
    with refused(PlanError, "split", "'train'"):
        load(store, views, split=splits)


@pytest.mark.parametrize("views", [{}, {"": None}, {"x": "t2m"}, "t2m", {1: None}])
def test_views_that_are_none(store, views):
    with refused(GeometryError):
        load(store, views)


def test_stores_by_label_that_do_not_match(store):
    rain = tdi.open_arrays(store, "t2m", store="rain")
    with refused(PlanError, "'t2m'", "'rain'", "['era5']"):
        load({"era5": store}, rain)


def test_iterator_that_a_newer_one_replaced(store, arrays):
    with load(store, {"x": arrays["t2m"]}) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with refused(ClosedError, "iter()"):
            next(old)
        assert len(list(new)) == 5
