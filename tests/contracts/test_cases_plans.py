"""Cases from the field about what is drawn: ranks, pairs of arrays, windows, plans of many chunks.

Failures that users of other loaders over chunked arrays reported, one test or more a case. The
numbers are those of the list of cases that the project keeps. What is expected is what was written,
or what xarray and zarr say.
"""

import json
import time
import tracemalloc

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.case_stores import check, drawn, loader_of, write
from tests.contracts.chains import counted
from tests.contracts.refusals import refused
from torchdata_insitu.errors import GeometryError, PlanError
from torchdata_insitu.testing import CountingStore


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


@pytest.mark.slow
@pytest.mark.usefixtures("traced_memory")
@pytest.mark.parametrize(
    "counts_reads, most_s, most_bytes", [(False, 10, 250e6), (True, 60, 600e6)]
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
