"""Several ranks: together exactly the epoch, each as many batches, one state for all."""

import pytest

from tests.small_loaders import N, all_ids, ids, make_loader, small_store
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import CountingStore

each_world = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


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
def test_a_state_of_any_rank_resumes_all_of_them(world_size):
    loaders = ranks_of(world_size, batch_size=2, tail="exact")
    first = steps_of(loaders, 2)
    states = [loader.state_dict() for loader in loaders]
    rest = ranks_of(world_size, batch_size=2, tail="exact")
    for rank, loader in enumerate(rest):
        loader.load_state_dict(states[(rank + 1) % world_size])
    assert sorted(flat(first) + flat(steps_of(rest))) == list(range(N))
    for loader in loaders + rest:
        loader.close()


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
