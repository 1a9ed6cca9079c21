"""Several ranks: together exactly the epoch, each as many batches, one state for all."""

import math
import pickle
import time
import warnings

import pytest
from torch.distributed.device_mesh import init_device_mesh

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.fake_groups import process_group
from tests.small_loaders import N, all_ids, ids, make_gather, make_loader, small_store
from torchdata_insitu.errors import BudgetError, PlanError
from torchdata_insitu.testing import CountingStore

each_world = pytest.mark.parametrize("world_size", [1, 2, 3, 4])
# An epoch that is resumed on other ranks keeps its lanes; what that costs is told.
may_share_lanes = pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")


def ranks_of(world_size, **options):
    return [make_loader(rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def steps_of(loaders, n=None):
    """Step by step, what each rank gets, samples that are no copies."""
    steps = []
    items = [iter(loader) for loader in loaders]
    while n is None or len(steps) < n:
        batches = [next(item, None) for item in items]
        if None in batches:
            assert batches == [None] * len(batches)
            break
        steps.append([true_ids(batch) for batch in batches])
    return steps


def true_ids(batch):
    found = ids(batch)
    return (
        [n for n, v in zip(found, batch["valid"].tolist(), strict=True) if v]
        if "valid" in (batch)
        else found
    )


def flat(steps):
    return [sample for step in steps for rank in step for sample in rank]


@pytest.mark.parametrize("tail", ["short", "drop", "pad", "exact"])
@each_world
def test_ranks_share_the_epoch_and_have_equal_lengths_and_states(world_size, tail):
    loaders = ranks_of(world_size, batch_size=3, tail=tail)
    for _ in range(2):
        assert len({len(loader) for loader in loaders}) == 1
        items = [iter(loader) for loader in loaders]
        seen = []
        for _ in range(len(loaders[0])):
            for item in items:
                seen += true_ids(next(item))
            states = [loader.state_dict() for loader in loaders]
            assert all(state == states[0] for state in states)
        for item in items:
            assert next(item, None) is None
        left_out = loaders[0].plan.left_out(0, world_size)
        assert len(seen) == len(set(seen)) == N - left_out
        assert left_out == 0 or tail in {"short", "drop"}
    for loader in loaders:
        loader.close()


@each_world
def test_state_identical_on_all_ranks_and_any_rank_restores_any(world_size):
    loaders = ranks_of(world_size, batch_size=2, tail="exact")
    first = steps_of(loaders, 2)
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    rest = ranks_of(world_size, batch_size=2, tail="exact")
    for rank, loader in enumerate(rest):
        loader.load_state_dict(states[(rank + 1) % world_size])
    assert sorted(flat(first) + flat(steps_of(rest))) == list(range(N))
    for loader in loaders + rest:
        loader.close()


@may_share_lanes
@pytest.mark.parametrize("after", [1, 2, 3, 4])
@each_world
def test_another_number_of_ranks_goes_on_and_the_next_epoch_is_full(world_size, after):
    loaders = ranks_of(world_size, batch_size=2, tail="exact")
    first = steps_of(loaders, 2)
    state = loaders[-1].state_dict()
    others = ranks_of(after, batch_size=3, tail="exact")
    for loader in others:
        loader.load_state_dict(state)
    assert len({len(loader) for loader in others}) == 1
    assert sorted(flat(first) + flat(steps_of(others))) == list(range(N))
    assert sorted(flat(steps_of(others))) == list(range(N))
    for loader in loaders + others:
        loader.close()


def test_the_same_global_batch_size_gives_the_same_global_batches():
    expected = None
    for world_size in (1, 2, 4):
        loaders = ranks_of(world_size, batch_size=8 // world_size, lanes=4, tail="exact")
        steps = [sorted(sample for rank in step for sample in rank) for step in steps_of(loaders)]
        assert expected is None or steps == expected
        expected = steps
        for loader in loaders:
            loader.close()


def test_ranks_of_the_environment_are_those_given(monkeypatch):
    for rank in range(2):
        with make_loader(rank=rank, world_size=2) as told:
            expected = all_ids(told)
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with make_loader() as loader:
            assert all_ids(loader) == expected


def test_ranks_are_looked_up_when_they_are_first_needed(monkeypatch):
    """A process group is often made after the loader."""
    with make_loader(rank=1, world_size=2) as told:
        list(told)
        state = told.state_dict()
        expected = all_ids(told)
    with make_loader() as loader, make_loader() as resumed, make_loader() as moved:
        resumed.load_state_dict(state)
        moved.set_epoch(1)
        for each in (loader, resumed, moved):
            iter(each)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        list(loader)
        assert all_ids(loader) == all_ids(resumed) == all_ids(moved) == expected


def test_a_loader_that_was_asked_before_the_group_was_made_is_sharded_by_it():
    with make_loader(rank=1, world_size=2) as told:
        expected, state = all_ids(told), told.state_dict()
    with make_loader() as loader, make_loader() as resumed:
        assert len(loader) == 6
        assert (loader.epoch, loader.position, loader.state_dict()["epoch"]) == (0, 0, 0)
        assert "1 ranks" in tdi.describe(loader)
        iter(loader)
        resumed.load_state_dict(state)
        with process_group(1, 2):
            with pytest.warns(UserWarning, match="it was 6, and on 2 ranks it is 3"):
                assert len(loader) == 3
            assert all_ids(loader) == expected
            assert "2 ranks (this is rank 1)" in tdi.describe(loader)
            assert [len(batch) for batch in all_ids(resumed)] == [4, 4, 3]


def test_a_loader_that_handed_out_alone_refuses_a_group_that_appears():
    with make_loader() as loader:
        state = loader.state_dict()
        items = iter(loader)
        next(items)
        facts = ("as rank 0 of 1", "of epoch 0", "rank 1 of 2 (torch.distributed)", "new loader")
        with process_group(1, 2):
            for use in (
                lambda: len(loader),
                loader.state_dict,
                lambda: next(items),
                lambda: next(items),
                lambda: next(iter(loader)),
            ):
                with refused(PlanError, *facts):
                    use()
            with make_loader() as new:
                new.load_state_dict({**state, "lanes": 2})
                assert len(all_ids(new)) == 3


def test_a_batch_that_was_looked_at_is_handed_out_by_the_chain():
    with make_loader() as loader:
        loader.peek()
        with process_group(0, 2), refused(PlanError, "as rank 0 of 1", "rank 0 of 2"):
            list(loader)


def test_a_loader_can_be_saved_and_closed_after_the_end_of_the_group():
    with make_loader() as loader:
        with process_group(1, 2):
            next(iter(loader))
            state = loader.state_dict()
        assert loader.state_dict() == state
        assert len(loader) == 3
        assert pickle.loads(pickle.dumps(loader)).position == state["position"] == 8


def test_sources_of_a_mix_are_sharded_by_a_group_that_is_made_later():
    def mixed(**ranks):
        sources = {name: make_gather(seed=seed, **ranks) for seed, name in enumerate("ab")}
        return tdi.InSituLoader(tdi.MixNode(sources, {"a": 1, "b": 1}, stop="all"))

    with mixed(rank=1, world_size=2) as told:
        expected = all_ids(told)
    with mixed() as loader, mixed() as alone:
        state = loader.state_dict()
        assert state["step"] == 0
        items = iter(alone)
        next(items)
        with process_group(1, 2):
            assert all_ids(loader) == expected
            with refused(PlanError, "as rank 0 of 1", "rank 1 of 2"):
                next(items)


@pytest.mark.parametrize("rank", range(4))
def test_a_mesh_gives_the_rank_along_the_data_parallel_dimension(rank):
    with make_loader(rank=rank // 2, world_size=2) as told:
        expected = all_ids(told)
    with process_group(rank, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with make_loader(mesh=mesh["dp"]) as loader:
            assert all_ids(loader) == expected
        with refused(PlanError, "2 dimensions, ('dp', 'tp')"):
            make_loader(mesh=mesh)
        with refused(PlanError, "mesh is DeviceMesh", "rank is 0"):
            make_loader(mesh=mesh["dp"], rank=0, world_size=2)


@pytest.mark.parametrize("source", ["group", "environment", "alone"])
def test_a_state_costs_little_whoever_tells_the_ranks(source, monkeypatch):
    if source == "environment":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    with make_loader() as loader:

        def median_s():
            next(iter(loader))
            times = []
            for _ in range(101):
                start = time.perf_counter()
                loader.state_dict()
                times.append(time.perf_counter() - start)
            return sorted(times)[50]

        if source == "group":
            with process_group(0, 2):
                assert median_s() < 1e-3
        else:
            assert median_s() < 1e-3


# Fewer ranks than lanes, and more


def test_ranks_that_share_lanes_are_warned_once_with_the_factor():
    state = None
    with make_loader(rank=0, world_size=2, batch_size=1) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make_loader(rank=0, world_size=3, batch_size=1) as loader:
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="2 lanes on 3 ranks: each chunk is read by up to 3"):
            list(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
            assert loader.state_dict()["lanes"] == 3


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("lanes", [None, 2])
def test_an_epoch_that_keeps_lanes_of_more_ranks_names_them_where_memory_ends(world_size, lanes):
    """Saved by eight ranks, with room for two lanes on fewer."""
    chunk_bytes, block_chunks = 4 * 6 * 4, 2
    plan = {"store": small_store(n=96), "block_chunks": block_chunks, "batch_size": 1}
    with make_loader(rank=0, world_size=8, **plan) as loader:
        next(iter(loader))
        state = loader.state_dict()
    block = chunk_bytes * block_chunks
    n_own = 8 // math.gcd(8, world_size)
    fewer = lanes or world_size
    n_later = fewer // math.gcd(fewer, world_size)
    ranks = {"rank": 0, "world_size": world_size, "lanes": lanes}
    with make_loader(budget_bytes=2 * block, **plan, **ranks) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader.load_state_dict(state)
        if n_own <= 2:
            next(iter(loader))
            return
        facts = [
            f"keeps its 8 lanes and its blocks until it ends, of which this rank reads {n_own}",
            f"from the next epoch on there are {fewer}",
            f"floor of {n_later * block} B",
            f"raise budget_bytes to {n_own * block} for the rest of this epoch",
        ]
        with refused(BudgetError, *facts) as caught:
            next(iter(loader))
        text = str(caught.value)
        assert "lower block_chunks" not in text
        # Lanes that the ranks divide stay unless others are given.
        stays = lanes is None and 8 % world_size == 0
        assert (f"if lanes={fewer} is given" in text) == stays
    ranks["lanes"] = fewer
    with make_loader(budget_bytes=n_own * block, **plan, **ranks) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.load_state_dict(state)
            n_left = len(list(loader))
        assert n_left == (96 - 8) // world_size
        assert loader.floor_bytes == n_later * block


def test_an_epoch_with_lanes_of_its_own_is_told_to_lower_its_blocks():
    with make_loader(lanes=8, budget_bytes=16 * 96 - 1, store=small_store(n=96)) as loader:
        with refused(BudgetError, "lower block_chunks from 2 to 1") as caught:
            next(iter(loader))
        assert "keeps its" not in str(caught.value)


def test_lanes_keep_ranks_apart():
    """Each chunk is read by one rank, but for those that a lane border cuts."""
    reads = []
    for rank in range(2):
        store = CountingStore(small_store(n=24))
        with make_loader(store, rank=rank, world_size=2, batch_size=2, block_chunks=1) as loader:
            store.reset()
            list(loader)
            reads.append({key for key in store.gets if "/c/" in key})
    assert len(reads[0] | reads[1]) == 6
    assert reads[0].isdisjoint(reads[1])


@pytest.mark.parametrize("ranks", [{"rank": 1}, {"world_size": 2}, {"rank": 2, "world_size": 2}])
def test_ranks_that_cannot_be_are_refused_at_once(ranks):
    with pytest.raises(PlanError, match="rank is"):
        make_loader(**ranks)
