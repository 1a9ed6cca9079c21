"""Whether all ranks stand at the same place, asked once before a training begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchdata_insitu.errors import StateError
from torchdata_insitu.loader import InSituLoader

__all__ = ["check_ranks"]

# Values of one field, or errors, that a message shows: of thousands of ranks each can have its own.
_MOST_SHOWN = 8
_ABSENT = "absent"


@dataclass(frozen=True)
class _Report:
    """What one rank says of itself; plain values, for it goes to all the others."""

    fields: dict[str, Any]
    """What has to be equal on all ranks, by name."""
    data_rank: int = 0
    """Its data-parallel rank, of which several processes may have the same."""
    world_size: int = 1
    """How many data-parallel ranks it knows of."""
    error: str | None = None
    """Why it has nothing to say."""


def check_ranks(
    loader: InSituLoader | None,
    *,
    error: BaseException | str | None = None,
    group: torch.distributed.ProcessGroup | None = None,
) -> None:
    """Make sure that all ranks go on from the same place, or that none goes on.

    Ranks that were built or resumed differently take other numbers of steps, and the first
    collective of the training then waits for ever. Here they find out beforehand: plan, epoch,
    position, batch size and length have to be equal, and all data-parallel ranks have to be there.

    This is the one place of the library where processes wait for each other: a single
    `all_gather_object`, which ends by the timeout of its group. Every rank has to call it, also one
    whose set-up failed: it hands in its error, so that the others do not wait for it.

    Args:
        loader: the loader of this rank; None if there is none because of `error`.
        error: what went wrong on this rank before, or None. What goes wrong while the place of the
            loader is read is found here.
        group: who is asked; None for all processes. In a mesh, all processes or the group of the
            data-parallel dimension. Without a process group, or with a single rank, nobody is.

    Raises:
        StateError: the same on every rank: which ranks failed, and how, or which field differs on
            which ranks, with the values. With nobody to ask, only if there is an `error`.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
        >>> loader = error = None
        >>> try:
        ...     loader = tdi.build_loader(store, tdi.open_arrays(store, ["t2"]), batch_size=2)
        ... except tdi.errors.InSituError as found:
        ...     error = found
        >>> tdi.check_ranks(loader, error=error)
        Traceback (most recent call last):
        ...
        torchdata_insitu.errors.StateError: rank 0 failed: GeometryError: no array 't2' in ...
    """
    ranks = _ranks_of(group)
    if len(ranks) == 1 and error is None:
        return
    report, cause = _report_of(loader, error)
    found: list[Any] = [report]
    if len(ranks) > 1:
        found = [None] * len(ranks)
        torch.distributed.all_gather_object(found, report, group)
    reports: dict[int, _Report] = dict(zip(ranks, found, strict=True))
    complaint = _failures(reports) or _differences(reports)
    # A group within tensor parallelism shares its draws.
    if complaint is None and len(ranks) == torch.distributed.get_world_size():
        complaint = _absent_shares(reports)
    if complaint is not None:
        raise StateError(complaint) from cause


def _ranks_of(group: torch.distributed.ProcessGroup | None) -> list[int]:
    """The global ranks that take part; this one alone if there is nobody else."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return [0]
    if distributed.get_rank(group) < 0:
        return [distributed.get_rank()]
    return list(distributed.get_process_group_ranks(group))


def _report_of(
    loader: InSituLoader | None, error: BaseException | str | None
) -> tuple[_Report, BaseException | None]:
    """What this rank hands in, and what it failed with; a failure is handed in, not raised."""
    if error is None:
        try:
            if loader is None:
                return _Report({}, error="there is no loader, and no error was given"), None
            data_rank, world_size = loader.chain.order.ranks
            return _Report(dict(_fields_of(loader)), data_rank, world_size), None
        except Exception as failure:  # noqa: BLE001 - the other ranks wait for this one
            error = failure
    if isinstance(error, str):
        return _Report({}, error=error), None
    return _Report({}, error=f"{type(error).__name__}: {error}"), error


def _fields_of(loader: InSituLoader) -> Iterator[tuple[str, Any]]:
    state = loader.state_dict()
    # What nodes of others keep may differ: statistics of a rank's own batches, for one.
    state.pop("nodes", None)
    yield from _flat(state)
    yield "world_size", loader.chain.order.ranks[1]
    yield "len", len(loader)
    for name, branch in loader.chain.branches.items():
        yield f"{name}/batch_size" if name else "batch_size", branch.planner.plan.batch_size


def _flat(state: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _failures(reports: Mapping[int, _Report]) -> str | None:
    failed = {rank: report.error for rank, report in reports.items() if report.error is not None}
    if not failed:
        return None
    return _by_value(failed, lambda text, ranks: f"{ranks} failed: {text}", "; ")


def _differences(reports: Mapping[int, _Report]) -> str | None:
    names = dict.fromkeys(name for report in reports.values() for name in report.fields)
    found = []
    for name in names:
        values = {rank: repr(r.fields.get(name, _ABSENT)) for rank, r in reports.items()}
        if len(set(values.values())) > 1:
            is_where = _by_value(values, lambda value, ranks: f"{value} on {ranks}", " and ")
            found.append(f"{name} is {is_where}")
    if not found:
        return None
    return (
        f"the ranks disagree: {'; '.join(found)}. Build the loader alike on every rank, and load "
        "the same state into each"
    )


def _absent_shares(reports: Mapping[int, _Report]) -> str | None:
    world_size = next(iter(reports.values())).world_size
    absent = sorted(set(range(world_size)) - {report.data_rank for report in reports.values()})
    if not absent:
        return None
    has = {rank: str(report.data_rank) for rank, report in reports.items()}
    given = _by_value(has, lambda value, ranks: f"{value} on {ranks}", " and ")
    return (
        f"no process has data-parallel {_named(absent)} of world_size {world_size}, whose draws "
        f"are left out: rank is {given}. Give each process its own rank among all nodes, or none, "
        "so that it is looked up"
    )


def _by_value(values: Mapping[int, str], phrase: Callable[[str, str], str], between: str) -> str:
    """A phrase for each value with the ranks that have it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks_of.setdefault(value, []).append(rank)
    shown = [phrase(value, _named(ranks)) for value, ranks in ranks_of.items()][:_MOST_SHOWN]
    n_more = len(ranks_of) - len(shown)
    return between.join([*shown, *([f"{n_more} more"] if n_more else [])])


def _named(ranks: Sequence[int]) -> str:
    """Ranks as people write them, such as "rank 3" or "ranks 0, 4-7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs)
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {text}"
