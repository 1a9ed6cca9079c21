"""A state through a file into a new process: the same samples, the same values, for good."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from tests.contracts.resumed_run import N_EPOCHS, make_loader, passed
from torchdata_insitu.testing import make_store

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh") / "store.zarr"
    make_store(
        {"t": (43, 3, 2), "u": (43, 3, 2)}, chunks={"t": (4, 2, 2), "u": (6, 3, 1)}, path=folder
    )
    return str(folder)


@pytest.fixture(scope="module")
def states(path):
    """After every batch of an epoch, from none to all, and in the middle of the next."""
    with make_loader(path) as loader:
        states = [loader.state_dict()]
        batches = iter(loader)
        # Once more, between `iter` and the first batch.
        states.append(loader.state_dict())
        states += [loader.state_dict() for _ in batches]
        states.append(loader.state_dict())
        for _ in itertools.islice(loader, 2):
            pass
        states.append(loader.state_dict())
    return states


def test_state_is_small_plain_and_its_own(path, states):
    for state in states:
        text = json.dumps(state)
        assert len(text) < 600
        assert json.loads(text) == state
    with make_loader(path) as loader:
        first, second = loader.state_dict(), loader.state_dict()
        assert first == second
        first["plan"]["seed"] = 99
        first["position"] = 5
        assert loader.state_dict() == second


def test_exact_at_every_k_in_fresh_process(path, states, tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    middle = states[len(states) // 2]
    torch.save({"loader": middle, "weights": torch.ones(2)}, checkpoint)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"store": path, "states": states, "checkpoint": str(checkpoint)}))
    done = subprocess.run(
        [sys.executable, "-m", "tests.contracts.resumed_run", str(request)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    answers = json.loads(done.stdout)
    assert done.stderr == ""

    with make_loader(path) as loader:
        whole = [passed(loader) for _ in range(N_EPOCHS + 2)]
    for state, answer in zip(states, answers[: len(states)], strict=True):
        epoch, step = state["epoch"], state["step"]
        expected = whole[epoch : epoch + N_EPOCHS]
        assert answer == [expected[0][step:], *expected[1:]]
    assert answers[len(states) :] == [answers[len(states) // 2]] * 2
