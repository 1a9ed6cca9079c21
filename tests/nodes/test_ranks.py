import copy
import logging
import pickle

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.contracts.refusals import refused
from tests.fake_groups import process_group
from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes import ranks as ranks_module
from torchdata_insitu.nodes.ranks import Ranks
from torchdata_insitu.planning.cursor import Cursor


@pytest.fixture(autouse=True)
def no_ranks_around(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks_module._tell_of_environment.cache_clear()


# Who is asked


def test_given_ranks_are_taken_whatever_else_there_is(environment):
    environment(7, 8)
    with process_group(5, 6):
        assert Ranks(1, 3).find() == Ranks(1, 3).use() == (1, 3)


def test_alone_without_a_word_about_ranks():
    assert Ranks().find() == (0, 1)


def test_the_environment_of_torchrun_is_told_once_in_a_process(environment, caplog):
    environment(2, 4)
    with caplog.at_level(logging.INFO):
        assert [Ranks().find() for _ in range(3)] == [(2, 4)] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "rank 2 of 4, from RANK and WORLD_SIZE"
    ]


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_an_environment_is_none(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    assert Ranks().find() == (0, 1)


def test_an_initialized_process_group_wins_over_the_environment(environment):
    environment(2, 4)
    with process_group(5, 6):
        assert Ranks().find() == (5, 6)
    assert Ranks().find() == (2, 4)


@pytest.mark.parametrize("rank, world_size", [(1, None), (None, 2)])
def test_one_without_the_other_is_refused(rank, world_size):
    with refused(PlanError, f"rank is {rank} and world_size is {world_size}: give both"):
        Ranks(rank, world_size)


@pytest.mark.parametrize("rank, world_size", [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world_size):
    with refused(PlanError, f"rank is {rank} of world_size {world_size}: needs"):
        Ranks(rank, world_size)


@pytest.mark.parametrize(
    "rank, world_size", [("x", "2"), ("0", "two"), ("0", "0"), ("2", "2"), ("-1", "2"), ("", "")]
)
def test_an_environment_that_cannot_be_is_refused_by_its_names(environment, rank, world_size):
    environment(rank, world_size)
    with refused(PlanError, f"RANK is {rank!r}", f"WORLD_SIZE is {world_size!r}", "unset"):
        Ranks().find()


# A mesh


@pytest.mark.parametrize("rank", range(6))
def test_a_mesh_tells_the_rank_along_its_dimension(rank):
    with process_group(rank, 6):
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
        assert Ranks(mesh=mesh["dp"]).find() == (rank // 2, 3)
        assert Ranks(mesh=mesh["tp"]).use() == (rank % 2, 2)


def test_a_mesh_is_asked_at_the_first_use_and_then_no_more():
    with process_group(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        early, late = Ranks(mesh=mesh), Ranks(mesh=mesh)
        assert early.lasting is None
        assert early.find() == early.lasting == (1, 2)
    assert early.find() == early.use() == (1, 2)
    with refused(PlanError, "process groups", "DeviceMesh", "are not in this process"):
        late.find()


def test_a_mesh_of_several_dimensions_is_refused_with_their_names():
    with process_group(0, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with refused(PlanError, "2 dimensions, ('dp', 'tp') of sizes (2, 2)", "mesh['dp']"):
            Ranks(mesh=mesh)
        with refused(PlanError, "without names of sizes (2, 2)", "mesh_dim_names"):
            Ranks(mesh=init_device_mesh("cpu", (2, 2)))


@pytest.mark.parametrize("given", [{"rank": 0}, {"world_size": 2}, {"rank": 1, "world_size": 2}])
def test_a_mesh_with_ranks_beside_it_is_refused_with_both(given):
    with process_group(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        texts = [f"{name} is {given.get(name)}" for name in ("rank", "world_size")]
        with refused(PlanError, "mesh is DeviceMesh", *texts):
            Ranks(mesh=mesh, **given)


def test_what_is_no_mesh_is_refused_with_its_type():
    with refused(PlanError, "mesh is 'dp' of type str", "DeviceMesh"):
        Ranks(mesh="dp")


def test_a_mesh_without_this_process_is_refused_at_the_first_use():
    with process_group(3, 4):
        ranks = Ranks(mesh=DeviceMesh("cpu", [0, 1]))
        with refused(PlanError, "does not hold this process, which is rank 3 of 4"):
            ranks.find()


def test_copies_with_a_mesh_ask_it_anew():
    with process_group(1, 2):
        ranks = Ranks(mesh=init_device_mesh("cpu", (2,)))
        assert ranks.find() == (1, 2)
        for again in (copy.deepcopy(ranks), pickle.loads(pickle.dumps(ranks))):
            assert again.lasting is None
            assert again.find() == (1, 2)


def test_a_mesh_that_came_to_a_process_without_its_groups_is_refused():
    with process_group(1, 2):
        pickled = pickle.dumps(Ranks(mesh=init_device_mesh("cpu", (2,))))
    with refused(PlanError, "process groups of DeviceMesh", "are not in this process"):
        pickle.loads(pickled).find()
    # A group of the same name, in which this process has no place in the mesh.
    with process_group(2, 3), refused(PlanError, "does not hold this process", "rank 2 of 3"):
        pickle.loads(pickled).find()


# What stays, and what may change


def test_what_is_looked_up_may_change_until_it_is_used(environment):
    ranks = Ranks()
    assert ranks.find() == (0, 1)
    environment(1, 2)
    assert ranks.find() == (1, 2)
    assert ranks.lasting is None
    with process_group(2, 3):
        assert ranks.use() == ranks.find() == ranks.lasting == (2, 3)


@pytest.mark.parametrize("how", [Ranks.find, Ranks.use])
def test_ranks_that_change_after_use_are_refused_with_both(how):
    ranks = Ranks()
    ranks.use()
    with (
        process_group(1, 2),
        refused(
            PlanError,
            "handed out as rank 0 of 1 (no process group, and not both of RANK and WORLD_SIZE)",
            "up to position 8 of epoch 3",
            "now this process is rank 1 of 2 (torch.distributed)",
            "after init_process_group",
            "rank and world_size",
            "new loader",
        ),
    ):
        how(ranks, Cursor(3, 8, 1))
    assert ranks.find() == ranks.use() == (0, 1)


def test_a_group_that_is_made_again_with_another_size_is_refused():
    ranks = Ranks()
    with process_group(1, 4):
        ranks.use()
    with process_group(1, 4):
        assert ranks.use() == (1, 4)
    with process_group(1, 3), refused(PlanError, "rank 1 of 4 (torch", "rank 1 of 3 (torch"):
        ranks.find()


def test_a_group_that_says_the_same_as_the_environment_is_no_change(environment):
    environment(1, 2)
    ranks = Ranks()
    ranks.use()
    with process_group(1, 2):
        assert ranks.find() == ranks.use() == (1, 2)


def test_after_the_end_of_the_group_places_are_told_and_nothing_is_begun():
    ranks = Ranks()
    with process_group(1, 4):
        ranks.use()
    assert ranks.find() == (1, 4)
    with refused(PlanError, "rank 1 of 4 (torch.distributed)", "rank 0 of 1 (no process group"):
        ranks.use()


def test_copies_look_up_anew_and_keep_what_was_given(environment):
    asked, given = Ranks(), Ranks(0, 1)
    assert asked.use() == given.use() == (0, 1)
    environment(1, 2)
    for copied in (copy.deepcopy, lambda ranks: pickle.loads(pickle.dumps(ranks))):
        assert copied(asked).use() == (1, 2)
        assert copied(given).use() == (0, 1)


def test_nothing_is_asked_of_other_processes(monkeypatch):
    collectives = ("all_gather_object", "all_gather", "broadcast", "all_reduce", "barrier")
    for name in collectives:
        monkeypatch.setattr(torch.distributed, name, None)
    with process_group(1, 2):
        assert Ranks().use() == Ranks(mesh=init_device_mesh("cpu", (2,))).use() == (1, 2)
