"""Which data-parallel rank this process is, asked for as late as possible."""

from __future__ import annotations

import logging
import os

import torch

from torchdata_insitu.errors import PlanError

__all__ = ["resolve_ranks"]

_logger = logging.getLogger(__name__)


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else of `torch.distributed`, else of torchrun's environment.

    Args:
        rank: data-parallel rank, or None to look it up.
        world_size: number of data-parallel ranks, or None to look it up.

    Raises:
        PlanError: only one of the two is given, or they do not fit each other.
    """
    if (rank is None) != (world_size is None):
        msg = f"rank is {rank} and world_size is {world_size}: give both or neither"
        raise PlanError(msg)
    if rank is None or world_size is None:
        rank, world_size = _look_up()
    if world_size < 1 or not 0 <= rank < world_size:
        msg = f"rank is {rank} of world_size {world_size}: needs 0 <= rank < world_size"
        raise PlanError(msg)
    return rank, world_size


def _look_up() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _logger.info("rank %d of %d, from RANK and WORLD_SIZE", rank, world_size)
        return rank, world_size
    return 0, 1
