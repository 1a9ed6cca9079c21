import logging

import pytest
import torch

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.ranks import resolve_ranks


@pytest.fixture(autouse=True)
def no_ranks_around(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_given_ranks_are_taken_as_they_are(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert resolve_ranks(1, 3) == (1, 3)


def test_alone_without_a_word_about_ranks():
    assert resolve_ranks(None, None) == (0, 1)


def test_the_environment_of_torchrun_is_read_and_told(monkeypatch, caplog):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with caplog.at_level(logging.INFO):
        assert resolve_ranks(None, None) == (2, 4)
    assert "rank 2 of 4" in caplog.text


def test_half_an_environment_is_none(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_ranks(None, None) == (0, 1)


def test_an_initialized_process_group_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    group = {"is_initialized": True, "get_rank": 5, "get_world_size": 6}
    for name, value in group.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert resolve_ranks(None, None) == (5, 6)


@pytest.mark.parametrize("rank, world_size", [(1, None), (None, 2)])
def test_one_without_the_other_is_refused(rank, world_size):
    with pytest.raises(PlanError, match=f"rank is {rank} and world_size is {world_size}: give"):
        resolve_ranks(rank, world_size)


@pytest.mark.parametrize("rank, world_size", [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world_size):
    with pytest.raises(PlanError, match=f"rank is {rank} of world_size {world_size}: needs"):
        resolve_ranks(rank, world_size)
