"""What happens when a read, a transform, a node or the user breaks an iteration."""

import gc
import threading
import traceback

import pytest
import torchdata.nodes
from torchdata.nodes import BaseNode

import torchdata_insitu as tdi
from tests.conftest import new_threads
from tests.small_loaders import (
    ONE_TRY,
    FailsAt,
    N,
    Once,
    all_ids,
    flat,
    ids,
    make_gather,
    make_loader,
    raises_once,
    shut_down,
    small_store,
)
from torchdata_insitu.errors import ClosedError, PlanError, ReadError

# Half of the chunks come later than the first batch with blocks of one.
BROKEN_KEY = "t2m/c/3/0/0"

each_prefetch = pytest.mark.parametrize("prefetch_factor", [0, 1, 4])


def epochs_with(**options):
    with make_loader(**options) as loader:
        return [all_ids(loader) for _ in range(3)]


def taken_until_it_breaks(items, kind):
    """Batches before an error, and the error."""
    found = []
    with pytest.raises(kind) as raised:
        found.extend(map(ids, items))
    return found, raised.value


@each_prefetch
def test_after_a_read_that_failed_once_nothing_is_lost(prefetch_factor):
    expected = epochs_with(block_chunks=1)
    store, once = raises_once(small_store(), BROKEN_KEY)
    options = {"block_chunks": 1, "prefetch_factor": prefetch_factor, "retry": ONE_TRY}
    with make_loader(store, **options) as loader:
        items = iter(loader)
        found, error = taken_until_it_breaks(items, ReadError)
        state = loader.state_dict()
        for _ in range(3):
            with pytest.raises(ReadError) as again:
                next(items)
            assert again.value is error
        with pytest.raises(ReadError):
            loader.peek()
        assert loader.state_dict() == state
        assert (state["step"], len(loader)) == (len(found), 6)

        assert "array 't2m'" in str(error)
        assert BROKEN_KEY in str(error)
        assert error.__cause__ is once.error

        # Again and again: what is not begun cannot be left out.
        for _ in range(2):
            iter(loader)
        assert loader.state_dict() == state
        assert found + all_ids(loader) == expected[0]
        assert all_ids(loader) == expected[1]
    assert once.n_met > 1


@each_prefetch
@pytest.mark.parametrize("number", [1, 3, 6])
def test_after_a_transform_that_failed_once_nothing_is_lost(number, prefetch_factor):
    expected = epochs_with()
    fails = FailsAt(number)
    with make_loader(batch_transforms=[fails], prefetch_factor=prefetch_factor) as loader:
        found, error = taken_until_it_breaks(loader, LookupError)
        assert error is fails.error
        assert found == expected[0][: number - 1]
        assert loader.step == number - 1
        assert found + all_ids(loader) == expected[0]
        assert all_ids(loader) == expected[1]


@each_prefetch
def test_the_traceback_ends_where_the_error_was_raised(prefetch_factor):
    cause = KeyError("the first reason")

    def breaks(batch):
        raise ValueError("the second reason") from cause

    with make_loader(batch_transforms=[breaks], prefetch_factor=prefetch_factor) as loader:
        _, error = taken_until_it_breaks(loader, ValueError)
    assert type(error) is ValueError
    assert error.__cause__ is cause
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == "breaks"


class TwoArgumentsError(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)


def test_an_error_that_cannot_be_made_of_its_text_comes_as_it_is():
    fails = FailsAt(2, TwoArgumentsError(3, "no"))
    with make_loader(batch_transforms=[fails]) as loader:
        _, error = taken_until_it_breaks(loader, TwoArgumentsError)
    assert error is fails.error


def test_an_error_after_a_resume_goes_on_at_the_resumed_place():
    expected = epochs_with()
    with make_loader() as loader:
        list(loader)
        loader.skip(0)
        items = iter(loader)
        next(items)
        state = loader.state_dict()
    with make_loader(batch_transforms=[FailsAt(1)]) as loader:
        loader.load_state_dict(state)
        found, _ = taken_until_it_breaks(loader, LookupError)
        assert (found, loader.state_dict()) == ([], state)
        assert all_ids(loader) == expected[1][1:]


def test_a_state_saved_after_an_error_resumes_at_the_batch_that_failed():
    expected = epochs_with()
    with make_loader(batch_transforms=[FailsAt(4)]) as loader:
        found, _ = taken_until_it_breaks(loader, LookupError)
        state = loader.state_dict()
    with make_loader() as loader:
        loader.load_state_dict(state)
        assert found + all_ids(loader) == expected[0]


def test_the_batch_that_fails_can_be_skipped():
    expected = epochs_with()
    with make_loader(batch_transforms=[FailsAt(3)]) as loader:
        items = iter(loader)
        found, _ = taken_until_it_breaks(items, LookupError)
        loader.skip(1)
        assert found + [ids(batch) for batch in items] == expected[0][:2] + expected[0][3:]


def test_set_epoch_after_an_error_leaves_the_epoch():
    expected = epochs_with()
    with make_loader(batch_transforms=[FailsAt(3)]) as loader:
        taken_until_it_breaks(loader, LookupError)
        loader.set_epoch(2)
        assert all_ids(loader) == expected[2]


def test_an_error_of_peek_is_that_of_next():
    with make_loader(batch_transforms=[FailsAt(2)]) as loader:
        items = iter(loader)
        next(items)
        with pytest.raises(LookupError) as peeked:
            loader.peek()
        with pytest.raises(LookupError) as taken:
            next(items)
        assert peeked.value is taken.value
        assert len(all_ids(loader)) == 5


@each_prefetch
def test_an_error_returns_leases_floor_and_threads(prefetch_factor):
    before = set(threading.enumerate())
    pool = tdi.ChunkPool(10**6)
    fails = FailsAt(2)
    loader = make_loader(pool=pool, batch_transforms=[fails], prefetch_factor=prefetch_factor)
    taken_until_it_breaks(loader, LookupError)
    assert (pool.n_passes, pool.n_in_use, new_threads(before)) == (0, 0, [])
    assert len(all_ids(loader)) == 5
    loader.close()


class Stops(BaseException):
    """Like a KeyboardInterrupt, which the test runner takes for itself."""


@each_prefetch
def test_what_is_not_an_error_ends_the_iteration_and_loses_nothing(prefetch_factor):
    expected = epochs_with()
    transforms = [FailsAt(3, Stops())]
    with make_loader(batch_transforms=transforms, prefetch_factor=prefetch_factor) as loader:
        items = iter(loader)
        found, _ = taken_until_it_breaks(items, Stops)
        for _ in range(2):
            with pytest.raises(ClosedError, match="Stops: call iter"):
                next(items)
        assert found + all_ids(loader) == expected[0]


def test_an_interrupt_while_a_batch_is_waited_for_loses_nothing():
    expected = epochs_with()
    entered, go_on = threading.Event(), threading.Event()

    def waits(batch):
        entered.set()
        assert go_on.wait(20)
        return batch

    with make_loader(batch_transforms=[waits]) as loader:
        said = []

        def ask():
            with pytest.raises(ClosedError, match="interrupted") as raised:
                next(iter(loader))
            said.append(raised.value)

        asking = threading.Thread(target=ask)
        asking.start()
        assert entered.wait(20)
        loader.chain.interrupt()
        asking.join(20)
        assert len(said) == 1
        go_on.set()
        assert all_ids(loader) == expected[0]


# Nodes that break the one-to-one rule


class Changes(BaseNode):
    """A node after the gather whose items are those that `change` makes of one batch."""

    def __init__(self, source, change):
        super().__init__()
        self.source = source
        self.change = change
        self.made = []

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state["source"])
        self.made = []

    def next(self):
        while not self.made:
            self.made = list(self.change(next(self.source)))
        return self.made.pop(0)

    def get_state(self):
        return {"source": self.source.state_dict()}


@each_prefetch
@pytest.mark.parametrize("node", ["its own", "Mapper"])
def test_a_node_that_gives_none_is_found_out(node, prefetch_factor):
    once = Once(lambda batch: 3 in ids(batch))
    gather = make_gather()
    maps = (
        Changes(gather, lambda batch: [None if once(batch) else batch])
        if node == "its own"
        else torchdata.nodes.Mapper(gather, lambda batch: None if once(batch) else batch)
    )
    root = tdi.Prefetcher(maps, prefetch_factor) if prefetch_factor else maps
    with tdi.InSituLoader(root) as loader:
        found, error = taken_until_it_breaks(loader, PlanError)
        assert f"gave None for a batch after {len(found)} batches, but 6 were planned" in str(error)


@each_prefetch
def test_a_node_that_drops_an_item_is_found_out(prefetch_factor):
    changes = Changes(make_gather(), lambda batch: [batch] if 3 not in ids(batch) else [])
    root = tdi.Prefetcher(changes, prefetch_factor) if prefetch_factor else changes
    with tdi.InSituLoader(root) as loader:
        items = iter(loader)
        found, error = taken_until_it_breaks(items, PlanError)
        assert len(found) == 5
        assert "ended after 5 batches, but 6 were planned" in str(error)
        assert "torchdata's Loader" in str(error)
        with pytest.raises(PlanError):
            next(items)


@each_prefetch
def test_a_node_that_adds_an_item_is_found_out(prefetch_factor):
    changes = Changes(make_gather(), lambda batch: [batch, batch] if 3 in ids(batch) else [batch])
    root = tdi.Prefetcher(changes, prefetch_factor) if prefetch_factor else changes
    with tdi.InSituLoader(root) as loader:
        found, error = taken_until_it_breaks(loader, PlanError)
        assert len(found) == 6
        assert "gave one more after 6 batches, but 6 were planned" in str(error)


def test_the_same_node_works_where_it_keeps_the_count():
    changes = Changes(make_gather(), lambda batch: [batch])
    with tdi.InSituLoader(tdi.Prefetcher(changes, 2)) as loader:
        assert sorted(flat(all_ids(loader))) == list(range(N))


def test_a_node_of_a_chain_fails_again_under_torchdata_loader_too():
    """Its own loader knows nothing of errors: the node has to remember."""
    with shut_down(tdi.Prefetcher(make_gather(transforms=[FailsAt(3)]), 2)) as node:
        loader = torchdata.nodes.Loader(node)
        items = iter(loader)
        taken_until_it_breaks(items, LookupError)
        with pytest.raises(LookupError):
            next(items)
        gc.collect()
