import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY, N, all_ids, make_loader, small_store, values, views_of
from torchdata_insitu.errors import GeometryError, PlanError, ReadError
from torchdata_insitu.testing import CountingStore, make_store


def test_arrays_open_by_store_by_path_and_by_url(tmp_path):
    store = small_store(path=tmp_path / "a.zarr")
    expected = tdi.open_arrays(store)["t2m"]
    for given in (tmp_path / "a.zarr", str(tmp_path / "a.zarr"), f"file://{tmp_path}/a.zarr"):
        assert tdi.open_arrays(given) == {"t2m": expected}
    with pytest.raises(ReadError, match="no store at"):
        tdi.open_arrays(tmp_path / "b.zarr")


def test_open_arrays_hands_its_arguments_on():
    values_ = make_store({"t": (4, 6), "u": (4, 6)}, chunks=(2, 3), dims=("time", "x"))
    opened = tdi.open_arrays(values_, "t", sample_axis="x", store="here")
    assert list(opened) == ["t"]
    assert (opened["t"].n_samples, opened["t"].store) == (6, "here")
    opened = tdi.open_arrays(values_, sample_axis={"t": 1, "u": 0})
    assert [array.n_samples for array in opened.values()] == [6, 4]
    with pytest.raises(GeometryError, match="t2m"):
        tdi.open_arrays(values_, ["t2m"])


def test_packed_values_are_decoded_unless_that_is_turned_off():
    store = make_store(
        {"t": (4, 2)}, chunks=(2, 2), dtype="int16", attributes={"t": {"scale_factor": 0.5}}
    )
    for decode_cf, kind, scale in ((True, "f", 0.5), (False, "i", 1)):
        views = tdi.open_arrays(store, decode_cf=decode_cf)
        assert views["t"].dtype.kind == kind
        with make_loader(store, views, batch_size=4, shuffle=False) as loader:
            assert loader.peek()["t"][:, 0].tolist() == [scale * n for n in (0, 2, 4, 6)]


def test_a_loader_takes_a_path_as_well_as_a_store(tmp_path):
    store = small_store(path=tmp_path)
    with make_loader(small_store()) as other:
        expected = all_ids(other)
    for given in (store, tmp_path, str(tmp_path)):
        with make_loader(given, views_of(store)) as loader:
            assert all_ids(loader) == expected


def test_building_reads_nothing():
    store = CountingStore(small_store())
    views = views_of(store)
    store.reset()
    make_loader(store, views, split=tdi.split_by_range(views, {"all": (0, N)})["all"])
    assert not store.gets


def test_the_chain_is_the_one_by_hand():
    store = small_store()
    pool = tdi.ChunkPool(PLENTY)
    planner = tdi.ChunkPlanner(views_of(store), batch_size=4, tail="pad", seed=3, block_chunks=2)
    fetcher = tdi.AsyncChunkFetcher(planner, store, pool, max_inflight=4)
    gather = tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))
    with (
        tdi.InSituLoader(tdi.Prefetcher(gather, 2)) as ours,
        make_loader(store, tail="pad", seed=3, max_inflight=4) as built,
    ):
        assert all_ids(ours) == all_ids(built)
        assert ours.state_dict() == built.state_dict()
        assert ours.chain.graph == built.chain.graph


@pytest.mark.parametrize(
    "prefetch_factor, kind", [(0, tdi.GatherNode), (1, tdi.Prefetcher), (7, tdi.Prefetcher)]
)
def test_batches_are_made_ahead_as_far_as_asked(prefetch_factor, kind):
    loader = make_loader(prefetch_factor=prefetch_factor)
    assert type(loader.node) is kind
    assert getattr(loader.node, "prefetch_factor", 0) == prefetch_factor


def test_options_reach_the_nodes_they_are_for():
    loader = make_loader(
        shuffle=False, seed=5, run_chunks=2, tail="drop", lanes=3, decode_threads=1, batch_size=3
    )
    plan = loader.plan
    assert (plan.shuffle, plan.seed, plan.run_chunks, plan.tail) == (False, 5, 2, "drop")
    assert (plan.batch_size, plan.block_chunks) == (3, 2)
    assert loader.chain.planner.first_cursor().lanes == 3
    assert loader.chain.fetcher.decode_threads == 1


def test_a_split_is_all_that_is_drawn_from():
    store = small_store()
    splits = tdi.split_by_range(views_of(store), {"train": (0, 12), "val": (12, N)})
    with make_loader(store, split=splits["val"]) as loader:
        seen = [value for batch in loader for value in values(batch)]
    assert sorted(seen) == list(range(12, N))


def test_a_pool_and_a_budget_are_one_too_many():
    pool = tdi.ChunkPool(1000)
    with pytest.raises(PlanError, match=r"ChunkPool\(1000.*and budget_bytes \(500\).*choose one"):
        make_loader(pool=pool, budget_bytes=500)


@pytest.mark.parametrize("pin_memory", ["yes", None, "cuda"])
def test_an_unknown_wish_about_pinning_is_refused(pin_memory):
    with pytest.raises(PlanError, match=f"pin_memory is {pin_memory!r}: choose"):
        make_loader(pin_memory=pin_memory)


def test_a_prefetch_factor_below_zero_is_refused():
    with pytest.raises(PlanError, match="prefetch_factor is -1"):
        make_loader(prefetch_factor=-1)


def test_three_stores_whose_arrays_have_one_name_at_their_floor():
    stores = {label: root_array(step) for label, step in (("a", 2), ("b", 4), ("c", 8))}
    views = {label: tdi.open_arrays(store, store=label)["data"] for label, store in stores.items()}
    with tdi.build_loader(stores, views, batch_size=4, block_chunks=2) as loader:
        for batch in loader:
            expected = np.arange(48).reshape(24, 2)[batch["sample_index"].numpy()]
            for label in stores:
                np.testing.assert_array_equal(batch[label].numpy(), expected)
        assert (
            loader.stats().reads == loader.plan.reads() == {"a:data": 12, "b:data": 6, "c:data": 3}
        )


def root_array(step):
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, data=np.arange(48).reshape(24, 2), chunks=(step, 2))
    return store


def test_one_array_decoded_and_as_it_is_stored():
    store = make_store(
        {"t": np.array([[0], [-1], [2], [3]], "f4")},
        chunks=(2, 1),
        attributes={"t": {"_FillValue": -1.0}},
    )
    views = {
        "value": tdi.open_arrays(store)["t"],
        "stored": tdi.open_arrays(store, decode_cf=False)["t"],
    }
    with tdi.build_loader(store, views, batch_size=4, shuffle=False, budget_bytes=10**6) as loader:
        (batch,) = list(loader)
        assert loader.stats().reads == loader.plan.reads() == {"t#0": 2, "t#1": 2}
    assert batch["stored"].ravel().tolist() == [0, -1, 2, 3]
    assert batch["value"].isnan().ravel().tolist() == [False, True, False, False]


def test_the_first_batch_does_not_wait_for_the_plan_of_the_epoch():
    store = make_store({"t": (4000, 1)}, chunks=(1, 1))
    options = {"batch_size": 4, "block_chunks": 4, "prefetch_factor": 0, "max_inflight": 8}
    views = tdi.open_arrays(store)
    with tdi.build_loader(store, views, budget_bytes=10**6, **options) as loader:
        next(iter(loader))
        # A batch draws from three segments at most, and each is asked for with 16 chunks more.
        assert len(loader.chain.fetcher._ahead) <= 3 * 16
        assert loader.stats().reads["t"] <= 4 * 64
