"""Nodes of somebody else after the gather, with and without a state of their own."""

import copy
import json

import pytest
import torch
import torchdata.nodes
from torchdata.nodes import BaseNode

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY, all_ids, ids, make_loader, state_after, take


@pytest.fixture(scope="module")
def state():
    return state_after(1, 3)


class Numbers(BaseNode):
    """Numbers the batches over all epochs: a state that no cursor stands for."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.n = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        if initial_state is None:
            self.source.reset(None)
        else:
            # Popped on purpose: what is given to a node is the node's.
            self.source.reset(initial_state.pop("source"))
            self.n = initial_state.pop("n")

    def next(self):
        batch = next(self.source)
        self.n += 1
        return {**batch, "number": torch.tensor([self.n])}

    def get_state(self):
        return {"source": self.source.state_dict(), "n": self.n}


def numbering(prefetch_factor=2, kind=Numbers):
    node = kind(make_loader(prefetch_factor=0).node)
    return tdi.InSituLoader(tdi.Prefetcher(node, prefetch_factor) if prefetch_factor else node)


def numbered(batches):
    return [(ids(batch), batch["number"].item()) for batch in batches]


@pytest.mark.parametrize("prefetch_factor", [0, 3])
def test_a_stateful_node_after_the_gather_resumes_exactly(prefetch_factor):
    with numbering(prefetch_factor) as loader:
        assert "nodes" not in loader.state_dict()
        whole = [numbered(loader) for _ in range(3)]
        assert whole[1][0][1] > len(whole[0])
    with numbering(prefetch_factor) as loader:
        states = [json.loads(json.dumps(loader.state_dict())) for _ in loader]
    for n_before, state in enumerate(states, start=1):
        assert "nodes" in state
        kept = copy.deepcopy(state)
        with numbering(prefetch_factor) as loader:
            for _ in range(2):
                loader.load_state_dict(state)
                assert loader.state_dict() == state
                assert numbered(loader) == (whole[0][n_before:] or whole[1])
        assert state == kept


def test_a_state_with_nodes_shares_nothing_with_them():
    with numbering() as loader:
        expected = numbered(loader)
    with numbering() as loader:
        items = iter(loader)
        found = numbered([next(items), next(items)])
        state = loader.state_dict()
        loader.state_dict()["nodes"]["state"]["source"].clear()
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        state["nodes"]["state"].clear()
        assert found + numbered(loader) == expected


class Renamed(Numbers):
    pass


def numbering_twice():
    return tdi.InSituLoader(tdi.Prefetcher(Numbers(numbering(0).node)))


OTHER_GRAPHS = {
    "without prefetch": lambda: numbering(0),
    "another node": lambda: numbering(2, Renamed),
    "one more node": numbering_twice,
}


@pytest.mark.parametrize("name", OTHER_GRAPHS)
def test_nodes_of_another_graph_are_left_out_with_a_warning(name, epochs):
    with numbering() as loader:
        take(loader, 2)
        state = loader.state_dict()
    with OTHER_GRAPHS[name]() as loader:
        with pytest.warns(UserWarning, match=r"left out: it is of \['Prefetcher', 'Numbers'\]"):
            loader.load_state_dict(state)
        assert [found for found, _ in numbered(loader)] == epochs[0][2:]


def test_nodes_that_keep_no_state_leave_those_of_a_state_out(loader, epochs):
    with numbering() as other:
        take(other, 2)
        state = other.state_dict()
    with pytest.warns(UserWarning, match=r"and the chain has \['Prefetcher'\]"):
        loader.load_state_dict(state)
    assert "nodes" not in loader.state_dict()
    assert all_ids(loader) == epochs[0][2:]


def test_a_state_without_nodes_is_taken_by_a_chain_that_has_some(state, epochs):
    with numbering() as loader:
        loader.load_state_dict(state)
        assert [found for found, _ in numbered(loader)] == epochs[1][3:]


def test_a_state_knows_nothing_of_nodes_without_one(state, epochs):
    """torchdata's own nodes that map and prefetch are as if they were not there."""
    gather = make_loader(prefetch_factor=0, budget_bytes=PLENTY).node
    node = torchdata.nodes.Prefetcher(torchdata.nodes.Mapper(gather, dict), 2)
    with tdi.InSituLoader(node) as loader:
        list(loader)
        take(loader, 3)
        assert loader.state_dict() == state


@pytest.mark.parametrize("prefetch_factor", [0, 3])
def test_a_batch_that_was_only_looked_at_is_not_in_the_state(prefetch_factor):
    with numbering(prefetch_factor) as loader:
        whole = numbered(loader)
    with numbering(prefetch_factor) as loader:
        batches = iter(loader)
        next(batches)
        seen = numbered([loader.peek()])
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        assert numbered([loader.peek()]) == seen == whole[1:2]
    with numbering(prefetch_factor) as loader:
        loader.load_state_dict(state)
        assert numbered(loader) == whole[1:]


@pytest.mark.parametrize("asked", [None, 5])
@pytest.mark.parametrize("prefetch_factor", [0, 1, 3])
def test_what_was_made_ahead_of_an_epoch_that_is_left_is_not_in_the_next(prefetch_factor, asked):
    with numbering(prefetch_factor) as loader:
        batches = iter(loader)
        assert [number for _, number in numbered([next(batches), next(batches)])] == [1, 2]
        if asked is not None:
            loader.set_epoch(asked)
        assert [number for _, number in numbered(loader)] == [3, 4, 5, 6, 7, 8]


def test_a_state_taken_before_the_first_batch_of_an_epoch_has_the_nodes_of_the_one_before():
    with numbering() as loader:
        whole = [numbered(loader) for _ in range(2)]
    with numbering() as loader:
        list(loader)
        iter(loader)
        state = json.loads(json.dumps(loader.state_dict()))
    with numbering() as loader:
        loader.load_state_dict(state)
        assert numbered(loader) == whole[1]


class Forgets(Numbers):
    """Cannot say its state once, after some batches."""

    def __init__(self, source, fails_after):
        super().__init__(source)
        self._fails_after = fails_after

    def get_state(self):
        if self.n == self._fails_after:
            self._fails_after = None
            raise ArithmeticError("no state")
        return super().get_state()


@pytest.mark.parametrize("fails_after", [1, 3])
def test_an_error_in_the_state_of_a_node_loses_no_batch(fails_after, epochs):
    node = Forgets(make_loader(prefetch_factor=0).node, fails_after)
    with tdi.InSituLoader(node) as loader:
        items = iter(loader)
        seen = [ids(next(items)) for _ in range(fails_after - 1)]
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="no state"):
                next(items)
        assert seen + all_ids(loader) == epochs[0]
        assert all_ids(loader) == epochs[1]


def goes_on(loader):
    """The number of the next batch, in this loader and in one that is resumed from its state."""
    state = loader.state_dict()
    here = next(iter(loader))["number"].item()
    with numbering() as other:
        other.load_state_dict(state)
        return here, next(iter(other))["number"].item()


@pytest.mark.parametrize("n_skipped", [1, 2, "all"])
def test_what_a_node_knows_outlasts_what_is_skipped(n_skipped):
    with numbering() as loader:
        take(loader, 2)
        loader.skip(len(loader) - 2 if n_skipped == "all" else n_skipped)
        here, resumed = goes_on(loader)
        assert here == resumed == 3


def test_what_a_node_knows_outlasts_a_trainer_that_ends_the_epoch_early():
    with numbering() as loader:
        take(loader, 2)
        state = loader.state_dict()
    with numbering() as loader:
        loader.load_state_dict(state)
        loader.batch_sampler.sampler.set_epoch(1)
        assert loader.epoch == 1
        here, resumed = goes_on(loader)
        assert here == resumed == 3
