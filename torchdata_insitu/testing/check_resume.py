"""The resume test that every loader has to pass."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchdata_insitu.loader import InSituLoader

__all__ = ["check_resume"]


def check_resume(
    make_loader: Callable[[], InSituLoader],
    *,
    positions: Iterable[int] | None = None,
    n_epochs: int = 2,
) -> int:
    """Resume a loader at every position and compare what follows with a run that never stopped.

    Each state goes through JSON into a fresh loader, which has to give the batches left of the
    epoch and all of the epochs after it, with equal names, data types and values.

    Args:
        make_loader: makes a fresh loader, the same every time.
        positions: batches of the first epoch after which to stop; None for each, from none to all.
        n_epochs: epochs compared, the one that is stopped included.

    Returns:
        How many resumes were compared.

    Raises:
        AssertionError: a resumed loader gave other batches; says which.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import check_resume, make_store
        >>> store = make_store({"t2m": (12, 2)}, chunks=(4, 2))
        >>> arrays = tdi.open_arrays(store)
        >>> check_resume(lambda: tdi.build_loader(store, arrays, batch_size=4, budget_bytes="10%"))
        4
    """
    states: list[str] = []
    expected: list[list[dict[str, Tensor]]] = []
    with make_loader() as loader:
        states.append(json.dumps(loader.state_dict()))
        for epoch in range(n_epochs):
            batches = []
            for batch in loader:
                # Copied, so that whoever changes a batch later changes no expectation.
                batches.append(copy.deepcopy(batch))
                if epoch == 0:
                    states.append(json.dumps(loader.state_dict()))
            expected.append(batches)
    wanted = list(range(len(states)) if positions is None else positions)
    for position in wanted:
        with make_loader() as loader:
            loader.load_state_dict(json.loads(states[position]))
            n_first = len(expected[0])
            left = expected[0][position:]
            for batches in [left, *expected[1:]] if position < n_first else expected[1:]:
                _check_equal(list(loader), batches, position)
    return len(wanted)


def _check_equal(
    found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]], position: int
) -> None:
    where = f"resumed after {position} batches"
    if len(found) != len(expected):
        msg = f"{where}: {len(found)} batches were left, not {len(expected)}"
        raise AssertionError(msg)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if list(ours) != list(theirs):
            msg = f"{where}: batch {number} has {list(ours)}, not {list(theirs)}"
            raise AssertionError(msg)
        for name, tensor in ours.items():
            if not _same(tensor, theirs[name]):
                msg = f"{where}: {name!r} of batch {number} differs from the uninterrupted run"
                raise AssertionError(msg)


def _same(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return bool(ours == theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    # Bytes, so that NaN equals NaN and -0.0 does not equal 0.0.
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs)))
