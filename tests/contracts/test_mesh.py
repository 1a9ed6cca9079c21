"""Processes in a mesh of two by two: one dimension shares the epoch, the other gets it twice."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from torchdata_insitu.testing import make_store

ROOT = pathlib.Path(__file__).resolve().parents[2]
N_SAMPLES, WORLD_SIZE, TIMEOUT_S = 23, 4, 100


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each of the processes saw, by rank."""
    folder = tmp_path_factory.mktemp("mesh")
    make_store({"t": (N_SAMPLES, 3)}, chunks=(2, 3), path=folder / "store.zarr")
    said = folder / "said"
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.contracts.mesh_run", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            process.wait(TIMEOUT_S)
        finally:
            if process.poll() is None:
                # The processes that it forked with it.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert process.returncode == 0, said.read_text()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


def test_processes_along_the_tensor_parallel_dimension_get_equal_batches(answers):
    for first, second in ((0, 1), (2, 3)):
        assert answers[first]["epochs"] == answers[second]["epochs"]
        assert answers[first]["ranks"] == answers[second]["ranks"] == [first // 2, 2]


def test_processes_along_the_data_parallel_dimension_share_the_epoch(answers):
    for epoch in range(2):
        mine, others = (answers[rank]["epochs"][epoch] for rank in (0, 2))
        assert len(mine) == len(others) > 1
        assert sorted(itertools.chain(*mine, *others)) == list(range(N_SAMPLES))


def test_one_state_goes_on_in_all_processes(answers):
    assert all(answer["state"] == answers[0]["state"] for answer in answers)
    for answer in answers:
        assert answer["resumed"] == answer["epochs"][0][1:]
    assert answers[0]["state"]["lanes"] == 2


def test_the_whole_mesh_is_refused_with_its_dimensions(answers):
    for answer in answers:
        assert "('dp', 'tp') of sizes (2, 2)" in answer["refused"]
