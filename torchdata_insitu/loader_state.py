"""The state of a loader as plain JSON: a place, the step, and what decides the order."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchdata_insitu.errors import StateError
from torchdata_insitu.nodes.order import Order
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor

__all__ = ["FORMAT", "Place", "read_loader_state", "saved_epoch", "write_loader_state"]

FORMAT = "torchdata_insitu.loader"
VERSION = 1


@dataclass
class Place:
    """Where a pass of a loader begins; batches handed out since then are counted beside it."""

    cursor: Cursor | MixCursor
    """The place of the first batch."""
    step: int = 0
    """Batches of the epoch on each rank before it."""
    is_kept: bool = False
    """Whether `set_epoch` leaves it alone: it was loaded, skipped to, or follows an error."""
    is_begun: bool = False
    """Whether batches of the epoch were handed out since the last `iter()` before it."""
    is_checked: bool = False
    """Whether something is known to be left of the epoch at this batch and world size."""
    is_warned: bool = False
    """Whether the one warning was given that it was kept."""
    nodes: dict[str, Any] | None = field(default=None, repr=False)
    """State of foreign nodes after the gather."""


def write_loader_state(order: Order[Any], cursor: Cursor | MixCursor, step: int) -> dict[str, Any]:
    """A fresh dictionary of plain values that shares nothing with the loader.

    It is what a node writes, with the step, and of a format of its own: a loader and a node follow
    other rules at the end of an epoch.
    """
    return {**order.write_cursor(cursor), "format": FORMAT, "version": VERSION, "step": step}


def read_loader_state(
    state: Any, order: Order[Any]
) -> tuple[Cursor | MixCursor, int, dict[str, Any] | None]:
    """Check a state against an order.

    Returns:
        The place, the step, and the state of foreign nodes if there is one.

    Raises:
        StateError: foreign, newer, out of range, or of another plan.
    """
    cursor = order.read_cursor(state, format_name=FORMAT)
    step = state.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        msg = f"the state's step is {step!r}, but must be an integer of at least 0"
        raise StateError(msg)
    nodes = state.get("nodes")
    return cursor, step, copy.deepcopy(nodes) if isinstance(nodes, dict) else None


def saved_epoch(state: object) -> int | None:
    """The epoch a state names, if it names one; whatever else is wrong with the state."""
    epoch = state.get("epoch") if isinstance(state, Mapping) else None
    is_epoch = isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 0
    return epoch if is_epoch else None
