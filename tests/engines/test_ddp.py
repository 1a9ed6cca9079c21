"""torchrun and DDP, in processes that are real: every sample once an epoch, through any resume."""

import itertools
import json

import pytest

from tests.engines.ddp_job import N_EPOCHS, handed_out, make_loader
from tests.forked_ranks import run_ranks
from tests.processes import run_torchrun
from torchdata_insitu.testing import make_store

N = 43
# Of all launches of a test.
TIMEOUT_S = 110


@pytest.fixture
def folder(tmp_path):
    make_store({"t2m": (N, 2, 3)}, chunks=(4, 2, 3), path=tmp_path / "store.zarr")
    return tmp_path


def run_job(folder, start, *lives, n_ranks=2, kill_at=0, options=(), n_launches=1):
    """Start the job, for lives of so many steps; 0 for all that are left."""
    return run_torchrun(
        *("-m", "tests.engines.ddp_job", folder, start, kill_at, *lives),
        n_ranks=n_ranks,
        timeout_s=TIMEOUT_S / n_launches,
        options=options,
    )


def lives_of(folder):
    """Of each life where it began, and by epoch, step and rank what was handed out."""
    lives = {}
    for path in sorted(folder.glob("*.jsonl")):
        life, rank = path.stem.split("-")
        begin, *lines = (json.loads(line) for line in path.read_text().splitlines())
        began, steps = lives.setdefault(life, (begin, {}))
        assert began == begin
        steps |= {(epoch, step, int(rank)): samples for epoch, step, samples in lines}
    return list(lives.values())


def trained(folder):
    """What was handed out and is part of the training: nothing that a later life did again."""
    lives = lives_of(folder)
    ends = [begin for begin, _ in lives[1:]] + [[N_EPOCHS, 0]]
    return [
        {at: samples for at, samples in steps.items() if list(at[:2]) < end}
        for (_, steps), end in zip(lives, ends, strict=True)
    ]


def check_ledger(folder):
    """Every sample exactly once in each epoch, whoever handed it out."""
    for epoch in range(N_EPOCHS):
        samples = [
            sample
            for steps in trained(folder)
            for (found, _, _), of_step in steps.items()
            for sample in of_step
            if found == epoch
        ]
        assert sorted(samples) == list(range(N))


def uninterrupted(folder, n_ranks):
    """What ranks are handed out that nothing ever stopped."""
    found = {}
    for rank in range(n_ranks):
        with make_loader(str(folder / "store.zarr"), rank=rank, world_size=n_ranks) as loader:
            for epoch in range(N_EPOCHS):
                for step, batch in enumerate(loader):
                    found[epoch, step, rank] = handed_out(batch)
    return found


def merged(steps_of_lives):
    return {at: samples for steps in steps_of_lives for at, samples in steps.items()}


def test_two_ranks_are_stopped_in_mid_epoch_and_resumed_on_two_and_on_one(folder):
    status, said = run_job(folder, "a", 3, 0)
    assert status == 0, said
    assert [begin for begin, _ in lives_of(folder)] == [[0, 0], [0, 3]]
    check_ledger(folder)
    assert merged(trained(folder)) == uninterrupted(folder, 2)

    # On one rank the epoch ends with what is left, and the next one is whole.
    before = list(itertools.chain(*trained(folder)[0].values()))
    saved = json.loads((folder / "stopped.json").read_text())
    with make_loader(str(folder / "store.zarr")) as loader:
        loader.load_state_dict(saved)
        rest = [sample for batch in loader for sample in handed_out(batch)]
        assert sorted(before + rest) == list(range(N))
        assert sorted(sample for batch in loader for sample in handed_out(batch)) == list(range(N))


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(2, 1), (2, 3), (1, 2)])
def test_a_training_goes_on_with_another_number_of_ranks(folder, before, after):
    run_ranks("tests.engines.ddp_job:train_in_group", before, folder, "a", 3)
    run_ranks("tests.engines.ddp_job:train_in_group", after, folder, "b", 0)
    assert [begin for begin, _ in lives_of(folder)] == [[0, 0], [0, 3]]
    assert {rank for _, _, rank in trained(folder)[1]} == set(range(after))
    check_ledger(folder)


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_no_sample_and_repeats_none(folder):
    """Killed in mid-epoch; the job is started again by hand from what was saved last."""
    status, said = run_job(folder, "a", 0, kill_at=6, n_launches=2)
    assert status != 0
    assert "Signal 9 (SIGKILL)" in said
    status, said = run_job(folder, "b", 0, n_launches=2)
    assert status == 0, said
    (_, first), (begin, _) = lives_of(folder)
    assert begin == [0, 4]
    assert (0, 4, 0) in first
    check_ledger(folder)
    assert merged(trained(folder)) == uninterrupted(folder, 2)


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank_where_the_last_checkpoint_is(folder):
    status, said = run_job(folder, "a", 0, kill_at=6, options=("--max-restarts", 1))
    assert status == 0, said
    assert [begin for begin, _ in lives_of(folder)] == [[0, 0], [0, 4]]
    check_ledger(folder)
    assert merged(trained(folder)) == uninterrupted(folder, 2)
