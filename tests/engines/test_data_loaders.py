"""PyTorch's `DataLoader` and torchdata's `StatefulDataLoader` over a loader of ours."""

import itertools
import json

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import torchdata_insitu as tdi
from tests.processes import run_python
from tests.small_loaders import all_ids, ids, make_loader, values

# What torchdata 0.11 calls of a newer PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

N_EPOCHS = 4


def wrapped(loader, kind=StatefulDataLoader):
    return kind(tdi.as_iterable_dataset(loader), batch_size=None, num_workers=0)


@pytest.fixture(scope="module")
def epochs():
    with make_loader() as loader:
        return [all_ids(loader) for _ in range(N_EPOCHS)]


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_batches_pass_as_they_are(kind, epochs):
    with make_loader() as loader:
        batches = wrapped(loader, kind)
        assert len(batches) == len(epochs[0])
        for expected in epochs:
            found = list(batches)
            assert all_ids(found) == expected
            assert all(values(batch) == ids(batch) for batch in found)


def test_a_data_loader_resumes_through_the_loader(epochs):
    with make_loader() as loader:
        for _ in itertools.islice(wrapped(loader, DataLoader), 2):
            pass
        state = loader.state_dict()
    with make_loader() as loader:
        loader.load_state_dict(state)
        batches = wrapped(loader, DataLoader)
        assert len(batches) == len(epochs[0])
        assert [all_ids(batches), all_ids(batches)] == [epochs[0][2:], epochs[1]]


def states_of_an_epoch():
    """Of a `StatefulDataLoader`: before and after `iter`, after each batch, and after the end."""
    with make_loader() as loader:
        batches = wrapped(loader)
        states = [(0, batches.state_dict())]
        items = iter(batches)
        states.append((0, batches.state_dict()))
        for n_taken, _ in enumerate(items, start=1):
            states.append((n_taken, batches.state_dict()))
        states.append((states[-1][0], batches.state_dict()))
    return [(n_taken, json.loads(json.dumps(state))) for n_taken, state in states]


def test_a_stateful_data_loader_resumes_exactly_at_every_batch(epochs):
    for n_taken, state in states_of_an_epoch():
        with make_loader() as loader:
            batches = wrapped(loader)
            batches.load_state_dict(state)
            rest = [epochs[0][n_taken:]] if n_taken < len(epochs[0]) else []
            expected = [*rest, *epochs[1:]]
            assert [all_ids(batches) for _ in expected] == expected


def test_a_stateful_data_loader_resumes_again_and_again(epochs):
    found, state = [], None
    for _ in range(6):
        with make_loader() as loader:
            batches = wrapped(loader)
            if state is not None:
                batches.load_state_dict(state)
            found += all_ids(itertools.islice(batches, 2))
            state = json.loads(json.dumps(batches.state_dict()))
    assert found == [batch for epoch in epochs for batch in epoch][: len(found)]


def test_resuming_reads_nothing_of_what_was_handed_out():
    with make_loader() as loader:
        batches = wrapped(loader)
        for _ in itertools.islice(batches, 5):
            pass
        state = batches.state_dict()
    with make_loader() as loader:
        batches = wrapped(loader)
        batches.load_state_dict(state)
        list(batches)
        assert sum(loader.stats().reads.values()) <= 2


@pytest.mark.slow
def test_workers_are_refused_and_told_why():
    status, said = run_python("-m", "tests.engines.worker_cases", timeout_s=60)
    assert status == 0, said
    assert said.count("PlanError") >= 2, said
    assert said.count("of a DataLoader with num_workers=2: give num_workers=0") == 2
    assert "no error" not in said
