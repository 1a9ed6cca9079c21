"""torchdata's sampler over our chains: what works, and each limit that `docs/mixing.md` names."""

import copy
import io
import json

import pytest
import torch
from torchdata.nodes import Loader, MultiNodeWeightedSampler, StopCriteria

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.small_loaders import ids, shut_down
from tests.small_mixes import SIZES, WEIGHTS, all_seen, make_mix, make_source, seen
from torchdata_insitu.errors import PlanError

CRITERIA = {
    "cycle": StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED,
    "all": StopCriteria.ALL_DATASETS_EXHAUSTED,
    "first": StopCriteria.FIRST_DATASET_EXHAUSTED,
}
each_criterion = pytest.mark.parametrize("criterion", CRITERIA)


def make_sampler(criterion="all", weights=None, wrap=lambda node: node, **options):
    plan = {key: options[key] for key in ("rank", "world_size") if key in options}
    return MultiNodeWeightedSampler(
        {name: wrap(make_source(name, **plan)) for name in "abc"},
        WEIGHTS if weights is None else weights,
        stop_criteria=CRITERIA[criterion],
        **options,
    )


def saved(loader):
    """The state as a checkpoint file gives it back."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def epochs_with_states(node, n_epochs=2):
    """Per epoch its batches, and the states before each of them and at the end."""
    loader, epochs = Loader(node), []
    for _ in range(n_epochs):
        batches = iter(loader)
        states, found = [saved(loader)], []
        for batch in batches:
            found.append(seen(batch))
            states.append(saved(loader))
        epochs.append((found, states))
    return epochs


# What works


@each_criterion
def test_batches_of_each_source_come_in_its_order(criterion):
    with shut_down(make_sampler(criterion)) as sampler:
        ((found, _),) = epochs_with_states(sampler, n_epochs=1)
    for name in "abc":
        of_source = [samples for source, samples in found if source == name]
        with shut_down(make_source(name)) as alone:
            expected = [ids(batch) for batch in alone]
            alone.reset(None)
            expected += [ids(batch) for batch in alone]
        n = min(len(of_source), len(expected))
        assert of_source[:n] == expected[:n]
        if criterion != "first":
            n_samples = sum(map(len, of_source))
            assert n_samples == SIZES[name] if criterion == "all" else n_samples >= SIZES[name]


@each_criterion
@pytest.mark.parametrize("wrap", [lambda node: node, tdi.Prefetcher])
def test_it_resumes_at_every_position_in_a_fresh_loader(criterion, wrap):
    with shut_down(make_sampler(criterion, wrap=wrap)) as sampler:
        (found, states), (following, _) = epochs_with_states(sampler)
    for n_before, state in enumerate(states[:-1]):
        with shut_down(make_sampler(criterion, wrap=wrap)) as sampler:
            loader = Loader(sampler)
            loader.load_state_dict(state)
            assert all_seen(loader) == found[n_before:]
            # See below for what may differ after an epoch that leaves sources in the middle.
            assert criterion == "first" or all_seen(loader) == following


# Limits


def test_it_is_refused_below_our_loader_with_advice():
    with refused(PlanError, "MultiNodeWeightedSampler", "changes the number", "torchdata's Loader"):
        tdi.InSituLoader(make_sampler())


def test_one_state_can_be_used_once():
    """What is loaded is written into: by the second use, every source counts as exhausted."""
    with shut_down(make_sampler()) as sampler:
        (found, states), _ = epochs_with_states(sampler)
    n_before = 3
    state, kept = states[n_before], copy.deepcopy(states[n_before])
    left = []
    for used in (state, state, kept):
        with shut_down(make_sampler()) as sampler:
            loader = Loader(sampler, restart_on_stop_iteration=False)
            loader.load_state_dict(used)
            left.append(all_seen(loader))
    assert left[0] == left[2] == found[n_before:]
    assert left[1] == []
    with shut_down(make_mix("all")) as mix:
        for _ in range(n_before):
            next(mix)
        state = mix.state_dict()
        left = []
        for _ in range(2):
            mix.reset(state)
            left.append(all_seen(mix))
        assert left[0] == left[1]


def test_a_source_of_which_nothing_came_since_the_resume_repeats_its_epoch():
    """It was only put back, and goes on at `reset` as one that was not used."""
    with shut_down(make_sampler("first")) as sampler:
        (found, states), (following, _) = epochs_with_states(sampler)
    n_before = len(found) - 1
    with shut_down(make_sampler("first")) as sampler:
        loader = Loader(sampler)
        loader.load_state_dict(states[n_before])
        assert all_seen(loader) == found[n_before:]
        after = all_seen(loader)
    assert [name for name, _ in after] == [name for name, _ in following]
    unused = set("abc") - {name for name, _ in found[n_before:]}
    repeated = {name for name in unused if first_of(after, name) == first_of(found, name)}
    assert repeated
    assert all(first_of(following, name) != first_of(found, name) for name in "abc")


def first_of(batches, name):
    """The first batch of a source."""
    return next((samples for source, samples in batches if source == name), None)


def states_of_ranks(make, n_batches):
    """The positions of the sources on each of two ranks after so many batches."""
    found = []
    for rank in range(2):
        with shut_down(make(rank=rank, world_size=2)) as node:
            for _ in range(n_batches):
                next(node)
            state = node.state_dict()
            cursors = state.get("cursors") or state["dataset_node_states"]
            found.append({name: cursor["position"] for name, cursor in cursors.items()})
    return found


def test_ranks_choose_differently_so_that_no_state_is_that_of_all():
    ours = states_of_ranks(make_mix, 5)
    assert ours[0] == ours[1]
    theirs = states_of_ranks(make_sampler, 5)
    assert theirs[0] != theirs[1]


def test_ranks_can_have_different_numbers_of_batches():
    def n_batches(make):
        found = []
        for rank in range(2):
            with shut_down(make(rank=rank, world_size=2)) as node:
                found.append(sum(1 for _ in node))
        return found

    assert len(set(n_batches(lambda **ranks: make_mix("cycle", **ranks)))) == 1
    assert len(set(n_batches(lambda **ranks: make_sampler("cycle", **ranks)))) == 2


def test_the_state_is_no_json_and_larger():
    with shut_down(make_sampler()) as sampler:
        next(sampler)
        state = sampler.state_dict()
    with pytest.raises(TypeError, match="not JSON"):
        json.dumps(state)
    file = io.BytesIO()
    torch.save(state, file)
    assert len(file.getvalue()) > 5000
    with shut_down(make_mix()) as mix:
        next(mix)
        assert len(json.dumps(mix.state_dict())) < 2000


def test_other_weights_are_taken_without_a_word():
    with shut_down(make_sampler()) as sampler:
        next(sampler)
        state = sampler.state_dict()
        rest = all_seen(sampler)
    with shut_down(make_sampler(weights={"a": 0.1, "b": 0.1, "c": 0.8})) as other:
        other.reset(copy.deepcopy(state))
        assert all_seen(other) != rest


def test_sources_in_another_order_are_another_sequence():
    with shut_down(make_sampler()) as sampler:
        next(sampler)
        state = sampler.state_dict()
        rest = all_seen(sampler)
    with shut_down(make_sampler(weights=dict(reversed(WEIGHTS.items())))) as other:
        other.reset(copy.deepcopy(state))
        assert all_seen(other) != rest


def test_a_loader_over_it_has_no_length():
    with shut_down(make_sampler()) as sampler, pytest.raises(TypeError, match=r"len\(\)"):
        len(Loader(sampler))
