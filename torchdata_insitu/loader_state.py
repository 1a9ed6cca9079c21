"""The state of a loader as plain JSON: a place, the step, and what decides the order."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdata_insitu.errors import PlanError, StateError
from torchdata_insitu.nodes.order import Order
from torchdata_insitu.planning.cursor import Cursor, whole_field
from torchdata_insitu.planning.mix_cursor import MixCursor

__all__ = ["FORMAT", "growth_option", "read_loader_state", "saved_epoch", "write_loader_state"]

FORMAT = "torchdata_insitu.loader"
VERSION = 1
_ON_GROWTH = ("refuse", "finish_epoch")

_logger = logging.getLogger(__name__)


def growth_option(on_growth: str) -> str:
    """What to do with a state from before the data grew.

    Raises:
        PlanError: an unknown choice.
    """
    if on_growth not in _ON_GROWTH:
        choices = ", ".join(map(repr, _ON_GROWTH))
        raise PlanError(f"on_growth is {on_growth!r}: choose one of {choices}")
    return on_growth


def write_loader_state(order: Order[Any], cursor: Cursor | MixCursor, step: int) -> dict[str, Any]:
    """A fresh dictionary of plain values that shares nothing with the loader.

    It is what a node writes, with the step, and of a format of its own: a loader and a node follow
    other rules at the end of an epoch.
    """
    return {**order.write_cursor(cursor), "format": FORMAT, "version": VERSION, "step": step}


def read_loader_state(
    state: Any, order: Order[Any], on_growth: str = "refuse"
) -> tuple[Cursor | MixCursor, int, dict[str, Any] | None]:
    """Check a state against an order.

    Args:
        state: what `write_loader_state` gave.
        order: of the loader that is to continue.
        on_growth: whether an epoch that began before the data grew is taken: "refuse" or
            "finish_epoch".

    Returns:
        The place, the step, and the state of foreign nodes if there is one.

    Raises:
        StateError: foreign, newer, out of range, or of another plan.
    """
    cursor = order.read_cursor(state, format_name=FORMAT)
    # Every step hands out a draw at least.
    step = whole_field(state, "step", min(1, cursor.position), cursor.position)
    if state.get("origin") is not None:
        msg = f"origin of the state is {state['origin']!r}: a loader stands between two batches"
        raise StateError(msg)
    nodes = state.get("nodes")
    if not isinstance(nodes, dict | None):
        msg = f"nodes of the state is {nodes!r}: expected the state of nodes after the gather"
        raise StateError(msg)
    if isinstance(cursor, Cursor) and cursor.n_draws is not None:
        n_now = order.write_cursor(replace(cursor, n_draws=None))["plan"]["n"]
        if on_growth == "refuse":
            msg = (
                f"the draws have grown since the state was saved: n was {cursor.n_draws} and is "
                f"{n_now}, and the first {cursor.n_draws} are the same. Give "
                f'on_growth="finish_epoch" to finish epoch {cursor.epoch} over these and draw from '
                "all afterwards, or the split that the state was saved with"
            )
            raise StateError(msg)
        _logger.info(
            "epoch %d is finished over the %d draws that it began with, of %d by now",
            cursor.epoch,
            cursor.n_draws,
            n_now,
        )
    return cursor, step, copy.deepcopy(nodes)


def saved_epoch(state: object) -> int | None:
    """The epoch a state names, if it names one; whatever else is wrong with the state."""
    epoch = state.get("epoch") if isinstance(state, Mapping) else None
    is_epoch = isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 0
    return epoch if is_epoch else None
