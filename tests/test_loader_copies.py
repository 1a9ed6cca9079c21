"""Copies: pickled, deep, sent to a spawned process."""

import copy
import multiprocessing
import multiprocessing.resource_tracker
import pickle
import threading

import pytest

import torchdata_insitu as tdi
from tests.conftest import new_threads
from tests.small_loaders import all_ids, ids, make_gather, make_loader, small_store, views_of
from tests.test_loader_lifecycle import ROOTS, each_root, in_the_middle

JOIN_S = 20


@pytest.fixture(scope="module")
def epochs():
    with make_loader() as loader:
        return [all_ids(loader) for _ in range(3)]


def pickled(loader):
    return pickle.loads(pickle.dumps(loader))


each_copy = pytest.mark.parametrize("copied", [pickled, copy.deepcopy])


@each_copy
@each_root
def test_a_copy_of_an_unused_loader_is_one(copied, root, epochs):
    loader = tdi.InSituLoader(ROOTS[root](make_gather()))
    with copied(loader) as other:
        assert [all_ids(other) for _ in range(2)] == epochs[:2]
    with loader:
        assert all_ids(loader) == epochs[0]


@each_copy
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_copy_of_a_used_loader_goes_on_where_it_stands(copied, prefetch_factor, epochs):
    with make_loader(prefetch_factor=prefetch_factor) as loader:
        list(loader)
        items = in_the_middle(loader)
        loader.peek()
        with copied(loader) as other:
            assert other.state_dict() == loader.state_dict()
            assert (len(other), other.step, other.stats().batches) == (6, 2, 0)
            assert all_ids(other) == epochs[1][2:]
            assert all_ids(other) == epochs[2]
        assert [ids(batch) for batch in items] == epochs[1][2:]


@pytest.mark.usefixtures("batches_one_by_one")
@each_copy
def test_a_copy_of_a_running_loader_ends_what_it_started_itself(copied):
    before = set(threading.enumerate())
    # One batch ahead and no more, or the copy could be done with its pass already.
    with make_loader(prefetch_factor=1) as loader:
        in_the_middle(loader)
        ours = set(threading.enumerate())
        other = copied(loader)
        in_the_middle(other)
        pool = other.chain.fetcher.pool
        assert pool.n_passes == 1
        del other
        assert (pool.n_passes, pool.n_in_use, new_threads(ours)) == (0, 0, [])
    assert new_threads(before) == []


@each_copy
def test_a_copy_keeps_what_was_loaded_and_what_was_set(copied, epochs):
    with make_loader() as loader:
        in_the_middle(loader)
        state = loader.state_dict()
        loader.load_state_dict(state)
        with copied(loader) as other:
            assert all_ids(other) == epochs[0][2:]
    loader = make_loader()
    loader.set_epoch(2)
    with copied(loader) as other:
        assert all_ids(other) == epochs[2]


@pytest.mark.usefixtures("batches_one_by_one")
@each_copy
def test_a_copy_has_a_pool_of_its_own_with_the_same_budget(copied):
    pool = tdi.ChunkPool(10**5)
    with make_loader(pool=pool) as loader, copied(loader) as other:
        in_the_middle(loader)
        in_the_middle(other)
        theirs = other.chain.pool_node.pool
        assert theirs is other.chain.fetcher.pool
        assert theirs is not pool
        assert theirs.budget_bytes == 10**5
        assert (pool.n_passes, theirs.n_passes) == (1, 1)


@each_copy
def test_a_copy_keeps_its_settings(copied):
    loader = make_loader(
        strict=False, seed=7, batch_size=3, tail="pad", sample_index="t", max_inflight=5
    )
    with copied(loader) as other:
        assert other.plan.fingerprint() == loader.plan.fingerprint()
        assert (other.plan.batch_size, other.plan.tail) == (3, "pad")
        assert other.chain.fetcher.max_inflight == 5
        assert list(other.peek()) == ["x", "t", "valid"]
        with pytest.warns(UserWarning, match="strict=False"):
            other.load_state_dict({**loader.state_dict(), "plan": {}})


def test_a_copy_looks_for_the_rank_of_its_own_process(monkeypatch):
    loader = make_loader(batch_size=2)
    assert (len(loader), loader.state_dict()["lanes"]) == (11, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pickled(loader) as other, make_loader(batch_size=2, rank=1, world_size=2) as told:
        assert (len(other), other.state_dict()["lanes"]) == (6, 2)
        assert all_ids(other) == all_ids(told)


def test_a_running_loader_can_be_pickled_at_any_time():
    with make_loader(batch_size=1, prefetch_factor=3) as loader:
        for batch in loader:
            with pickled(loader) as other:
                if other.step:
                    assert ids(other.peek()) != ids(batch)
                    assert other.step == loader.step


def spawned(loader, connection):
    with loader:
        connection.send((loader.state_dict(), [ids(batch) for batch in loader]))


@pytest.fixture(scope="module")
def resource_tracker():
    """Lives as long as the process once a process was spawned."""
    multiprocessing.resource_tracker.ensure_running()


def test_a_used_loader_goes_to_a_spawned_process(resource_tracker, epochs, tmp_path):
    store = tdi.open_store(small_store(path=tmp_path).root)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with make_loader(store, views_of(store)) as loader:
        in_the_middle(loader)
        process = context.Process(target=spawned, args=(loader, theirs))
        process.start()
        theirs.close()
        state, found = ours.recv()
        process.join(JOIN_S)
        assert state == loader.state_dict()
    assert (process.exitcode, found) == (0, epochs[0][2:])
    process.close()
    ours.close()
