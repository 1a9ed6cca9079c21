"""The jobs of the example end in the middle of epochs, and no sample comes twice or never."""

import re
import subprocess
import sys

import pytest

from examples.lightning_ddp.ledger import (
    Step,
    read_steps,
    samples_by_epoch,
    what_counts,
    write_entry,
)


def step(number, *samples, epoch=0, n_processes=1):
    return Step(epoch, number, n_processes, samples, loss=0.5)


def test_steps_after_the_checkpoint_of_the_next_job_do_not_count():
    first = [step(1, 10), step(2, 11), step(3, 12)]
    second = [step(3, 13), step(4, 14)]
    third = [step(2, 15)]
    both = what_counts([first, second])
    assert [(job, step.samples) for job, step in both] == [
        *[(0, (10,)), (0, (11,))],
        *[(1, (13,)), (1, (14,))],
    ]
    assert what_counts([first, second, third]) == [(0, first[0]), (2, third[0])]


def test_samples_that_come_twice_are_seen():
    assert samples_by_epoch([step(1, 4, 5), step(2, 5), step(3, 4, epoch=1)]) == {
        0: [4, 5, 5],
        1: [4],
    }


def write(folder, rank, number, samples, loss=1.0):
    write_entry(folder, rank=rank, epoch=0, step=number, samples=samples, loss=loss)


def test_a_step_is_what_all_processes_finished(tmp_path):
    write(tmp_path, 0, 1, [5, 2], loss=1.0)
    write(tmp_path, 1, 1, [3], loss=4.0)
    write(tmp_path, 0, 2, [7])
    assert read_steps(tmp_path) == [Step(0, 1, 2, (2, 3, 5), loss=2.0)]


def test_processes_out_of_step_are_an_error(tmp_path):
    write(tmp_path, 0, 1, [5])
    write(tmp_path, 1, 2, [3])
    with pytest.raises(RuntimeError, match="not at the same step"):
        read_steps(tmp_path)


def test_a_job_that_made_no_step_has_no_steps(tmp_path):
    assert read_steps(tmp_path / "absent") == []


@pytest.mark.slow
def test_the_configuration_trains():
    config = ["--config", "examples/lightning_ddp/config.yaml"]
    quiet = ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.lightning_ddp.cli", "fit", *config, *quiet],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "`max_epochs=1` reached" in done.stderr


@pytest.mark.slow
def test_a_training_ended_twice_sees_what_an_uninterrupted_one_sees(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "examples.lightning_ddp", "--folder", tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(\d+) samples, 0 twice, 0 never", done.stdout) == ["47"] * 3
    assert "with other samples than in the training without interruption: 0" in done.stdout
    first, second = re.findall(r"^  steps (\d+) to (\d+)$", done.stdout, re.MULTILINE)[:2]
    # It was ended in mid-epoch, and the next job went on there and not at the start.
    assert int(first[1]) < 12
    assert int(second[0]) > 1
