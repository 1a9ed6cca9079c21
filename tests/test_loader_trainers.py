"""What trainers do to a loader: tell it the epoch, and how far they have trained."""

import copy
import json
import pickle

import pytest
import torch
import torch.utils.data

import torchdata_insitu as tdi
from tests.small_loaders import all_ids, flat, ids, make_loader, state_after, take
from tests.test_loader_foreign_nodes import numbered, numbering
from torchdata_insitu.errors import PlanError

N_BATCHES = 6


class Trainer:
    """Trains on what it is given, and says how many batches of the epoch that were."""

    def __init__(self, loader, n_trained=0):
        self.n_trained = n_trained
        self._loader = loader
        loader.progress = lambda: self.n_trained

    def saves(self):
        return json.loads(json.dumps(self._loader.state_dict()))


# progress


@pytest.mark.parametrize("n_ahead", [0, 1, 2])
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_state_is_after_what_was_trained_on_and_not_after_what_was_handed_out(
    n_ahead, n_before, epochs
):
    """Each state of an epoch, of a run and of a resumed run whose trainer runs ahead."""
    first = state_after(1, n_before)
    for n_trained in range(n_before, N_BATCHES - n_ahead + 1):
        with make_loader() as loader:
            loader.load_state_dict(first)
            trainer = Trainer(loader, n_before)
            take(loader, n_trained + n_ahead - n_before)
            trainer.n_trained = n_trained
            state = trainer.saves()
            assert state == state_after(1, n_trained)
            assert loader.step == (n_trained + n_ahead) % N_BATCHES
        with make_loader() as resumed:
            resumed.load_state_dict(state)
            assert all_ids(resumed) == (epochs[1][n_trained:] or epochs[2])


def test_a_batch_whose_step_failed_is_trained_on_after_a_resume(loader, epochs):
    trainer = Trainer(loader)
    trained = []
    for batch in loader:
        if len(trained) == 4:
            break
        trained.append(ids(batch))
        trainer.n_trained += 1
    loader.load_state_dict(trainer.saves())
    assert trained + all_ids(loader) == epochs[0]


def test_the_last_batch_of_an_epoch_counts_when_it_was_trained_on(loader, epochs):
    trainer = Trainer(loader, N_BATCHES - 1)
    list(loader)
    assert trainer.saves()["epoch"] == 0
    trainer.n_trained = N_BATCHES
    assert (trainer.saves()["epoch"], trainer.saves()["step"]) == (1, 0)


@pytest.mark.parametrize("n_trained", [None, 0, 4, 10**9, -1])
def test_a_number_that_cannot_be_of_this_epoch_is_no_difference(loader, n_trained):
    trainer = Trainer(loader, n_trained)
    take(loader, 3)
    assert trainer.saves() == state_after(0, 3)


def test_the_number_of_the_epoch_before_is_no_difference_at_the_start_of_one(loader):
    trainer = Trainer(loader, N_BATCHES)
    list(loader)
    iter(loader)
    assert trainer.saves() == state_after(1, 0)


def test_a_resumed_loader_does_not_go_back_before_its_place(loader):
    state = state_after(0, 3)
    loader.load_state_dict(state)
    trainer = Trainer(loader, 2)
    assert trainer.saves() == state


def test_batches_that_were_skipped_count_as_trained_on(loader, epochs):
    trainer = Trainer(loader)
    loader.skip(2)
    items = iter(loader)
    next(items)
    trainer.n_trained = 2
    loader.load_state_dict(trainer.saves())
    assert all_ids(loader) == epochs[0][2:]


def test_the_iteration_itself_goes_on_after_what_was_handed_out(loader, epochs):
    trainer = Trainer(loader)
    found = []
    for batch in loader:
        found.append(ids(batch))
        trainer.n_trained = max(0, len(found) - 2)
        trainer.saves()
    assert found == epochs[0]
    assert all_ids(loader) == epochs[1]


@pytest.mark.parametrize("prefetch_factor", [0, 3])
def test_the_state_of_foreign_nodes_is_of_the_batch_that_was_trained_on(prefetch_factor):
    with numbering(prefetch_factor) as loader:
        whole = [numbered(loader) for _ in range(2)]
    for n_handed_out in range(1, N_BATCHES + 1):
        for n_trained in range(max(0, n_handed_out - 2), n_handed_out):
            with numbering(prefetch_factor) as loader:
                trainer = Trainer(loader, n_trained)
                items = iter(loader)
                numbered([next(items) for _ in range(n_handed_out)])
                state = trainer.saves()
                assert ("nodes" in state) == (n_trained > 0)
            with numbering(prefetch_factor) as resumed:
                resumed.load_state_dict(state)
                assert numbered(resumed) == whole[0][n_trained:]
                assert numbered(resumed) == whole[1]


def test_the_state_of_foreign_nodes_at_a_resume_is_kept_until_its_batch_is_trained_on():
    with numbering() as loader:
        whole = numbered(loader)
    with numbering() as loader:
        take(loader, 2)
        state = loader.state_dict()
    with numbering() as loader:
        loader.load_state_dict(state)
        trainer = Trainer(loader, 2)
        take(loader, 2)
        assert trainer.saves() == state
    with numbering() as loader:
        loader.load_state_dict(state)
        assert numbered(loader) == whole[2:]


def pickled(loader):
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_belongs_to_no_trainer(loader, copied, epochs):
    Trainer(loader)
    take(loader, 2)
    with copied(loader) as other:
        assert other.progress is None
        assert other.state_dict() == state_after(0, 2)
        assert all_ids(other) == epochs[0][2:]


def test_a_trainer_can_let_go(loader):
    Trainer(loader)
    take(loader, 2)
    loader.progress = None
    assert loader.state_dict() == state_after(0, 2)


@pytest.mark.parametrize("progress", [3, "processed", True])
def test_progress_is_a_function(loader, progress):
    with pytest.raises(PlanError, match=f"progress is {progress!r}"):
        loader.progress = progress
    assert loader.progress is None


# The epoch, and what else trainers reach for


def test_a_trainer_sets_the_epoch_where_a_data_loader_has_its_batch_sampler(loader, epochs):
    hook = loader.batch_sampler
    hook.sampler.set_epoch(2)
    assert hook.batch_size == 4
    assert all_ids(loader) == epochs[2]


def test_a_sampler_of_its_own_would_be_asked_for_more_than_the_epoch(loader):
    assert not hasattr(loader, "sampler")
    assert not hasattr(loader, "dataset")
    assert not isinstance(loader, torch.utils.data.DataLoader)


def test_the_hook_of_a_copy_is_of_the_copy(loader, epochs):
    with pickled(loader) as other:
        other.batch_sampler.sampler.set_epoch(1)
        assert all_ids(other) == epochs[1]
    assert loader.epoch == 0


def test_the_batch_size_of_a_mix_is_the_largest_of_its_sources():
    mix = tdi.MixNode(
        {name: make_loader(batch_size=n).node for name, n in (("a", 2), ("b", 3))},
        {"a": 0.5, "b": 0.5},
        seed=0,
        stop="first",
    )
    with tdi.InSituLoader(mix) as loader:
        assert loader.batch_sampler.batch_size == 3


def test_a_trainer_that_drops_an_iterator_it_thinks_is_there_does_no_harm(loader, epochs):
    """As Lightning's teardown does to every loader it finds one in."""
    assert not hasattr(loader, "_iterator")
    items = iter(loader)
    found = [ids(next(items))]
    loader._iterator = None
    assert flat(found + all_ids(items)) == flat(epochs[0])
