"""Which data-parallel rank this process is, asked for as late as possible."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.whole_number import whole_number

__all__ = ["Ranks"]

_logger = logging.getLogger(__name__)
_ALONE = "no process group, and not both of RANK and WORLD_SIZE"


class _Found(NamedTuple):
    ranks: tuple[int, int]
    told_by: str


class Ranks:
    """Rank and world size of one planner.

    As given, or of a mesh; else of `torch.distributed` once it is initialized, else of `RANK` and
    `WORLD_SIZE`, which torchrun sets, else alone. What is given stays, and so does what a mesh said
    at the first use. What is looked up may change until draws are handed out, since a process group
    is often made after the loader. Nothing here is collective.

    A copy or a pickled one keeps what was given and looks the rest up anew, in its own process.

    Args:
        rank: data-parallel rank, or None to look it up.
        world_size: number of data-parallel ranks, or None to look it up.
        mesh: the data-parallel dimension of a device mesh, instead of both.

    Raises:
        PlanError: one of the two without the other, numbers that do not fit each other, or a mesh
            of several dimensions.
    """

    def __init__(self, rank: Any = None, world_size: Any = None, mesh: Any = None) -> None:
        """Check what is given; nothing is looked up."""
        if mesh is not None:
            _check_mesh(mesh, rank, world_size)
        self._mesh: DeviceMesh | None = mesh
        self._given = None if mesh is not None else _given(rank, world_size)
        self._of_mesh: tuple[int, int] | None = None
        self._used: _Found | None = None

    @property
    def lasting(self) -> tuple[int, int] | None:
        """Rank and world size if they are known and stay as they are."""
        used = None if self._used is None else self._used.ranks
        return self._given or self._of_mesh or used

    def find(self, upcoming: Cursor | None = None) -> tuple[int, int]:
        """Rank and world size as they are now.

        Args:
            upcoming: the place that draws were handed out up to, for an error.

        Raises:
            PlanError: they were other ones when draws were handed out, or cannot be.
        """
        if (fixed := self._fixed()) is not None:
            return fixed
        found = _look_up()
        used = self._used
        if used is None or found.ranks == used.ranks:
            return found.ranks
        # At the end of a training the group is gone, and the place of the loader is still asked.
        if found.told_by == _ALONE:
            return used.ranks
        raise _changed(used, found, upcoming)

    def use(self, upcoming: Cursor | None = None) -> tuple[int, int]:
        """Those that draws are handed out under from now on.

        Raises:
            PlanError: draws were handed out under other ones, or they cannot be.
        """
        if (fixed := self._fixed()) is not None:
            return fixed
        found = _look_up()
        if self._used is not None and found.ranks != self._used.ranks:
            raise _changed(self._used, found, upcoming)
        self._used = found
        return found.ranks

    def _fixed(self) -> tuple[int, int] | None:
        if self._mesh is not None and self._of_mesh is None:
            self._of_mesh = _of_mesh(self._mesh)
        return self._given or self._of_mesh

    def __getstate__(self) -> dict[str, Any]:
        """What was given: another process is of another rank."""
        return {**self.__dict__, "_of_mesh": None, "_used": None}


def _given(rank: Any, world_size: Any) -> tuple[int, int] | None:
    rank, world_size = (
        None if value is None else whole_number(name, value)
        for name, value in (("rank", rank), ("world_size", world_size))
    )
    if (rank is None) != (world_size is None):
        msg = f"rank is {rank} and world_size is {world_size}: give both or neither"
        raise PlanError(msg)
    if rank is None or world_size is None:
        return None
    if not 0 <= rank < world_size:
        msg = f"rank is {rank} of world_size {world_size}: needs 0 <= rank < world_size"
        raise PlanError(msg)
    return rank, world_size


def _check_mesh(mesh: Any, rank: Any, world_size: Any) -> None:
    if rank is not None or world_size is not None:
        msg = (
            f"mesh is {mesh}, and rank is {rank} and world_size is {world_size}: give the mesh, "
            "or rank and world_size"
        )
        raise PlanError(msg)
    if not isinstance(mesh, DeviceMesh):
        msg = (
            f"mesh is {mesh!r} of type {type(mesh).__name__}: give a DeviceMesh of one dimension, "
            "such as init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))['dp']"
        )
        raise PlanError(msg)
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        advice = f"as in mesh[{names[0]!r}]" if names else "which needs mesh_dim_names"
        msg = (
            f"mesh has {mesh.ndim} dimensions, {names or 'without names'} of sizes "
            f"{tuple(mesh.shape)}, but needs 1: slice the data-parallel one out by its name, "
            f"{advice}"
        )
        raise PlanError(msg)


def _of_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    distributed = torch.distributed
    try:
        own = distributed.get_rank()
        # Looked at too, for a mesh that was pickled keeps the place of the process it came from.
        if mesh.get_coordinate() is not None and own in mesh.mesh.tolist():
            return mesh.get_local_rank(), mesh.size()
    except (RuntimeError, ValueError) as cause:
        msg = (
            f"the process groups of {mesh} are not in this process ({cause}): make the mesh and "
            "the loader where they are used, after init_process_group"
        )
        raise PlanError(msg) from cause
    msg = (
        f"{mesh} does not hold this process, which is rank {own} of "
        f"{distributed.get_world_size()}: give each process a mesh that it is part of, and those "
        "that do not train no loader"
    )
    raise PlanError(msg)


def _look_up() -> _Found:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return _Found((distributed.get_rank(), distributed.get_world_size()), "torch.distributed")
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return _Found((0, 1), _ALONE)
    try:
        ranks = int(rank), int(world_size)
    except ValueError:
        ranks = -1, -1
    if not 0 <= ranks[0] < ranks[1]:
        msg = (
            f"RANK is {rank!r} and WORLD_SIZE is {world_size!r} in the environment, but they have "
            "to be whole numbers with 0 <= RANK < WORLD_SIZE: set both, unset both, or give rank "
            "and world_size"
        )
        raise PlanError(msg)
    _tell_of_environment(*ranks)
    return _Found(ranks, "RANK and WORLD_SIZE")


@functools.cache
def _tell_of_environment(rank: int, world_size: int) -> None:
    """Say it once in a process, whatever number of loaders there is."""
    _logger.info("rank %d of %d, from RANK and WORLD_SIZE", rank, world_size)


def _changed(used: _Found, found: _Found, upcoming: Cursor | None) -> PlanError:
    upto = ""
    if upcoming is not None:
        upto = f", up to position {upcoming.position} of epoch {upcoming.epoch}"
    before, now = (
        f"rank {rank} of {world_size} ({told_by})" for (rank, world_size), told_by in (used, found)
    )
    return PlanError(
        f"draws were handed out as {before}{upto}, and now this process is {now}: begin to iterate "
        "after init_process_group, or give rank and world_size; to go on with other ranks, make a "
        "new loader and load a state that was saved before"
    )
