"""A loader as a dataset: nobody shares out twice, and nobody forgets to."""

import pickle

import pytest
import torch.utils.data
from torch.utils.data._utils import worker

import torchdata_insitu as tdi
from tests.small_loaders import all_ids, make_loader, take
from torchdata_insitu.errors import PlanError


def test_it_is_the_loader_as_a_dataset(loader, epochs):
    dataset = tdi.as_iterable_dataset(loader)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    assert len(dataset) == len(loader) == len(epochs[0])
    assert [all_ids(dataset), all_ids(dataset)] == epochs[:2]


def test_the_place_is_that_of_the_loader(loader, epochs):
    dataset = tdi.as_iterable_dataset(loader)
    take(dataset, 2)
    state = dataset.state_dict()
    assert state == loader.state_dict()
    with make_loader() as other:
        resumed = tdi.as_iterable_dataset(other)
        resumed.load_state_dict(state)
        assert all_ids(resumed) == epochs[0][2:]
    dataset.set_epoch(2)
    assert all_ids(dataset) == epochs[2]


def test_a_copy_for_another_process_goes_on_where_it_stands(loader, epochs):
    dataset = tdi.as_iterable_dataset(loader)
    take(dataset, 1)
    copied = pickle.loads(pickle.dumps(dataset))
    assert all_ids(copied) == epochs[0][1:]
    copied.loader.close()


@pytest.mark.parametrize("sharded_by", [None, "loader", "caller"])
def test_one_process_shares_nothing(loader, sharded_by, epochs):
    assert all_ids(tdi.as_iterable_dataset(loader, sharded_by)) == epochs[0]


def of_two(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_several_processes_have_to_say_who_shares_out(loader, monkeypatch):
    of_two(monkeypatch)
    with pytest.raises(PlanError, match="sharded_by is None in one of 2 processes") as caught:
        tdi.as_iterable_dataset(loader)
    text = str(caught.value)
    assert "sharded_by='loader': the loader does (it is rank 1 of world_size 2)" in text
    assert "do not hand the DataLoader to accelerator.prepare" in text
    assert "sharded_by='caller'" in text
    assert "built with rank=0, world_size=1" in text


def test_ranks_that_were_given_are_several_processes_too():
    with make_loader(rank=0, world_size=3) as loader, pytest.raises(PlanError, match="one of 3"):
        tdi.as_iterable_dataset(loader)


def test_processes_that_come_to_be_later_are_noticed(loader, monkeypatch):
    dataset = tdi.as_iterable_dataset(make_loader(rank=0, world_size=1))
    of_two(monkeypatch)
    with pytest.raises(PlanError, match="one of 2 processes"):
        iter(dataset)
    dataset.loader.close()


def test_the_loader_shares_out(loader, monkeypatch):
    of_two(monkeypatch)
    with make_loader(rank=1, world_size=2) as told:
        expected = all_ids(told)
    assert all_ids(tdi.as_iterable_dataset(loader, "loader")) == expected


def test_the_caller_gets_everything_to_share_out(monkeypatch, epochs):
    of_two(monkeypatch)
    with make_loader(rank=0, world_size=1) as loader:
        assert all_ids(tdi.as_iterable_dataset(loader, "caller")) == epochs[0]


def test_loader_and_caller_do_not_both_share_out(loader, monkeypatch):
    of_two(monkeypatch)
    with pytest.raises(PlanError, match="the loader shards too: it is rank 1 of world_size 2"):
        tdi.as_iterable_dataset(loader, "caller")


def test_what_cannot_be_is_refused(loader):
    with pytest.raises(PlanError, match="sharded_by is 'engine': choose one of 'loader', 'caller'"):
        tdi.as_iterable_dataset(loader, "engine")
    with pytest.raises(PlanError, match=r"wraps an InSituLoader, not \[1\]"):
        tdi.as_iterable_dataset([1])


def test_a_worker_is_refused(loader, monkeypatch):
    dataset = tdi.as_iterable_dataset(loader)
    info = worker.WorkerInfo(id=1, num_workers=2, seed=0, dataset=dataset)
    monkeypatch.setattr(worker, "_worker_info", info)
    with pytest.raises(PlanError, match="in worker 1 of a DataLoader with num_workers=2: give num"):
        iter(dataset)
