"""Looking ahead and going on without reading."""

import copy

import pytest

from tests.small_loaders import (
    all_ids,
    ids,
    make_loader,
    small_store,
    state_after,
    take,
)
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import CountingStore

N_BATCHES = 6
N_CHUNKS = 6


def epochs_with(n=4, **options):
    with make_loader(**options) as loader:
        return [all_ids(loader) for _ in range(n)]


def test_peek_moves_nothing(loader, epochs):
    assert ids(loader.peek()) == epochs[0][0]
    state = loader.state_dict()
    assert (loader.step, loader.position, loader.stats().batches) == (0, 0, 0)
    items = iter(loader)
    for n_before, expected in enumerate(epochs[0]):
        before = loader.state_dict()
        assert ids(loader.peek()) == ids(loader.peek()) == expected
        assert loader.state_dict() == before
        assert ids(next(items)) == expected
        assert (n_before > 0) == (before != state)
    for _ in range(2):
        with pytest.raises(StopIteration):
            loader.peek()
    assert all_ids(loader) == epochs[1]


def test_peek_after_a_break_does_not_hold_the_epoch_back(loader, epochs):
    take(loader, 2)
    assert ids(loader.peek()) == epochs[0][2]
    loader.close()
    assert ids(loader.peek()) == epochs[0][2]
    assert loader.state_dict() == state_after(0, 2)
    assert all_ids(loader) == epochs[1]


def test_peek_at_the_end_of_an_epoch_that_was_closed_says_that_it_is_over(loader, epochs):
    list(loader)
    loader.close()
    with pytest.raises(StopIteration):
        loader.peek()
    assert all_ids(loader) == epochs[1]


def test_peek_reads_what_the_next_batch_needs_once():
    store = CountingStore(small_store())
    with make_loader(store, block_chunks=1) as loader:
        store.reset()
        loader.peek()
        iter(loader)
        list(loader)
        assert store.reads() == N_CHUNKS


def test_skip_goes_on_without_reading(epochs):
    store = CountingStore(small_store())
    with make_loader(store, block_chunks=1) as loader:
        store.reset()
        loader.skip(4)
        assert (loader.step, loader.position) == (4, 16)
        expected = loader.expected_reads
        assert all_ids(loader) == epochs_with(block_chunks=1)[0][4:]
        assert store.reads() == expected < N_CHUNKS


def test_skip_within_an_iteration(loader, epochs):
    items = iter(loader)
    found = [ids(next(items))]
    loader.skip(0)
    loader.skip(2)
    found += [ids(next(items))]
    assert found == [epochs[0][0], epochs[0][3]]
    assert loader.state_dict() == state_after(0, 4)
    assert len(loader) == N_BATCHES
    assert [ids(batch) for batch in items] == epochs[0][4:]
    assert all_ids(loader) == epochs[1]


def test_the_epoch_advances_after_a_skip_within_an_iteration(loader, epochs):
    items = iter(loader)
    next(items)
    loader.skip(2)
    assert all_ids(loader) == epochs[1]


def test_a_skip_before_the_iteration_holds_for_it(loader, epochs):
    loader.skip(2)
    iter(loader)
    assert all_ids(loader) == epochs[0][2:]
    assert all_ids(loader) == epochs[1]


def test_skip_to_the_end_ends_the_iteration_and_not_more(loader, epochs):
    items = iter(loader)
    next(items)
    loader.skip(N_BATCHES - 1)
    assert (loader.epoch, loader.position, loader.step) == (1, 0, 0)
    with pytest.raises(StopIteration):
        next(items)
    with pytest.raises(StopIteration):
        loader.peek()
    assert all_ids(loader) == epochs[1]
    iter(loader)
    loader.skip(N_BATCHES)
    assert all_ids(loader) == epochs[3]


@pytest.mark.parametrize("n_batches", [-1, N_BATCHES, True])
def test_no_more_can_be_skipped_than_is_left(loader, epochs, n_batches):
    items = iter(loader)
    next(items)
    with pytest.raises(PlanError, match=f"cannot skip {n_batches} batches: 5 are left of epoch 0"):
        loader.skip(n_batches)
    assert [ids(batch) for batch in items] == epochs[0][1:]


def test_skip_keeps_the_epoch_that_was_asked_for(loader, epochs):
    next(iter(loader))
    loader.set_epoch(2)
    loader.skip(1)
    assert all_ids(loader) == epochs[2]


def test_a_copy_after_a_skip_goes_on_where_the_loader_stands(loader, epochs):
    next(iter(loader))
    loader.skip(1)
    with copy.deepcopy(loader) as copied:
        assert all_ids(copied) == epochs[0][2:]
