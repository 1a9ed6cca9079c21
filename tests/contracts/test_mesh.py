"""Processes in a mesh of two by two: one dimension shares the epoch, the other gets it twice."""

import itertools

import pytest

from tests.forked_ranks import run_ranks
from torchdata_insitu.testing import make_store

N_SAMPLES, WORLD_SIZE, TIMEOUT_S = 23, 4, 100


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each of the processes saw, by rank."""
    folder = tmp_path_factory.mktemp("mesh")
    make_store({"t": (N_SAMPLES, 3)}, chunks=(2, 3), path=folder / "store.zarr")
    return run_ranks("tests.contracts.mesh_run:run_rank", WORLD_SIZE, folder, timeout_s=TIMEOUT_S)


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
