"""Accelerate: model and optimizer prepared, the loader registered for checkpointing."""

import json

import pytest
from accelerate import DataLoaderConfiguration
from accelerate.data_loader import IterableDatasetShard
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader

import torchdata_insitu as tdi
from tests.engines.accelerate_job import Accelerator, train
from tests.engines.ddp_job import N_EPOCHS, handed_out, make_loader
from tests.processes import run_torchrun
from torchdata_insitu.testing import make_store

N = 43


@pytest.fixture
def folder(tmp_path):
    make_store({"t2m": (N, 2, 3)}, chunks=(4, 2, 3), path=tmp_path / "store.zarr")
    return tmp_path


@pytest.fixture(autouse=True)
def accelerate_of_its_own():
    """Accelerate keeps what it found out for as long as the process lives."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def uninterrupted(folder, rank=0, world_size=1):
    options = {"rank": rank, "world_size": world_size}
    with make_loader(str(folder / "store.zarr"), **options) as loader:
        return [
            [epoch, step, handed_out(batch)]
            for epoch in range(N_EPOCHS)
            for step, batch in enumerate(loader)
        ]


@pytest.mark.parametrize("n_before", [1, 4, 15, 17])
def test_a_registered_loader_is_resumed_exactly(folder, n_before):
    """In the first epoch, at its end, and in the next; the last batch of an epoch is short."""
    whole, weights = train(folder, 0)
    assert whole == uninterrupted(folder)
    before, _ = train(folder, n_before)
    rest, resumed_weights = train(folder, 0)
    assert before + rest == whole
    assert resumed_weights == weights


def test_a_registered_loader_is_resumed_on_the_same_object(folder):
    accelerator = Accelerator(cpu=True)
    with make_loader(str(folder / "store.zarr")) as loader:
        accelerator.register_for_checkpointing(loader)
        items = iter(loader)
        next(items)
        accelerator.save_state(folder / "state")
        expected = [handed_out(batch) for batch in items]
        accelerator.load_state(folder / "state")
        assert [handed_out(batch) for batch in loader] == expected


@pytest.mark.slow
def test_a_dataset_that_is_dispatched_comes_to_two_processes_once(folder):
    make_store({"t2m": (48, 2, 3)}, chunks=(4, 2, 3), path=folder / "even.zarr")
    status, said = run_torchrun(
        *("-m", "tests.engines.dispatch_job", folder), n_ranks=2, timeout_s=100
    )
    assert status == 0, said
    shares = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    with make_loader(str(folder / "even.zarr")) as loader:
        for epoch in range(N_EPOCHS):
            # One batch after the other goes to the ranks in turn.
            expected = [handed_out(batch) for batch in loader]
            assert [share[epoch] for share in shares] == [expected[::2], expected[1::2]]


@pytest.mark.slow
def test_two_processes_resume_exactly_and_share_every_epoch(folder):
    status, said = run_torchrun(
        *("-m", "tests.engines.accelerate_job", folder, 3, 2, 0), n_ranks=2, timeout_s=100
    )
    assert status == 0, said
    for rank in range(2):
        lives = json.loads((folder / f"{rank}.json").read_text())
        assert [len(life) for life in lives[:2]] == [3, 2]
        assert [step for life in lives for step in life] == uninterrupted(folder, rank, 2)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_dataset_that_is_prepared_resumes_exactly_in_one_process(folder):
    """Asked one batch ahead, which only the stateful kind makes good for.

    Its epochs are counted from 0 in every process, so that each has to be said.
    """
    configuration = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    with make_loader(str(folder / "store.zarr")) as loader:
        epochs = [[handed_out(batch) for batch in loader] for _ in range(4)]
    with make_loader(str(folder / "store.zarr")) as loader:
        batches = accelerator.prepare(data_loader(loader))
        assert [handed_out(batch) for batch in batches] == epochs[0]
        items = iter(batches)
        found = [handed_out(next(items)) for _ in range(2)]
        state = batches.state_dict()
        items.close()
    with make_loader(str(folder / "store.zarr")) as loader:
        batches = accelerator.prepare(data_loader(loader))
        batches.load_state_dict(state)
        rest = []
        for epoch in range(1, 4):
            batches.set_epoch(epoch)
            rest.append([handed_out(batch) for batch in batches])
    assert [found + rest[0], *rest[1:]] == epochs[1:]


def data_loader(loader):
    return DataLoader(tdi.as_iterable_dataset(loader), batch_size=None, num_workers=0)


def test_accelerate_cannot_shard_batches_that_come_as_they_are(folder):
    """Why the advice under several processes is not to prepare: `batch_size=None` is no number."""
    with make_loader(str(folder / "store.zarr")) as loader:
        shard = IterableDatasetShard(
            tdi.as_iterable_dataset(loader), batch_size=None, num_processes=2, process_index=0
        )
        with pytest.raises(TypeError, match="NoneType"):
            next(iter(shard))
