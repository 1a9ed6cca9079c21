"""Saves and loads one after the other, in the orders in which other loaders go wrong."""

import itertools

import pytest

from tests.contracts.chains import through_json
from tests.small_loaders import all_ids, ids, make_loader, state_after, take

N_BATCHES = 6


@pytest.fixture(scope="module")
def epochs():
    with make_loader() as loader:
        return [all_ids(loader) for _ in range(4)]


def stands_at_the_start(loader):
    """Nothing was asked for."""
    del loader


def is_at_work(loader):
    """In the middle of an epoch, with batches made ahead."""
    take(loader, 2)


def is_at_the_end(loader):
    """All of an epoch was handed out."""
    list(loader)


@pytest.mark.parametrize("where", [stands_at_the_start, is_at_work, is_at_the_end])
@pytest.mark.parametrize("n_before", [0, 2, N_BATCHES])
def test_load_after_state_dict_is_honoured(where, n_before, epochs):
    """At once, and not in the epoch after the next; also where an iterator was asked for."""
    state = state_after(1, n_before)
    with make_loader() as loader:
        where(loader)
        assert loader.state_dict() == loader.state_dict()
        iter(loader)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        expected = [*epochs[1][n_before:], *epochs[2], *epochs[3]]
        found = all_ids(loader)
        if n_before < N_BATCHES:
            found += all_ids(loader)
        assert found + all_ids(loader) == expected


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_save_after_end_of_epoch_resume_moves(prefetch_factor, epochs):
    """A state after every batch of the epoch that follows is the place after that batch."""
    end = state_after(0, N_BATCHES)
    with make_loader(prefetch_factor=prefetch_factor) as loader:
        loader.load_state_dict(through_json(end))
        assert loader.state_dict() == end
        states = []
        for batch, expected in zip(loader, epochs[1], strict=True):
            assert ids(batch) == expected
            states.append(through_json(loader.state_dict()))
    places = [(state["epoch"], state["position"], state["step"]) for state in states]
    assert places == [*((1, 4 * n, n) for n in range(1, N_BATCHES)), (2, 0, 0)]
    for n_before, state in enumerate(states, 1):
        with make_loader(prefetch_factor=prefetch_factor) as loader:
            loader.load_state_dict(state)
            left = itertools.chain(epochs[1][n_before:], epochs[2])
            assert [ids(batch) for _ in range(1 + (n_before < N_BATCHES)) for batch in loader] == [
                *left
            ]
