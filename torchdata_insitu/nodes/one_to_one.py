"""Which nodes may stand where: what is behind a gather gives one item for one item."""

from __future__ import annotations

from typing import Any

import torchdata.nodes
from torchdata.nodes import BaseNode

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.cursor_node import CursorNode

__all__ = ["check_keeps_draws", "check_one_to_one", "is_stateless"]

# Stock nodes that give one item for one item and keep no state of their own.
_ONE_TO_ONE = frozenset({"Mapper", "ParallelMapper", "Prefetcher", "PinMemory"})


def check_one_to_one(node: BaseNode[Any], user: str) -> None:
    """Refuse a node that is known to change the number of items or their order.

    Args:
        node: a node of a chain.
        user: who stands on the chain, for the message.

    Raises:
        PlanError: says which node, and what to use instead.
    """
    name = type(node).__name__
    changes_count = _is_stock(node) and name not in _ONE_TO_ONE and hasattr(torchdata.nodes, name)
    out_of_order = _is_stock(node) and not getattr(node, "in_order", True)
    if changes_count or out_of_order:
        what = "hands items on out of order" if out_of_order else "changes the number of items"
        msg = (
            f"{name} after the gather {what}, so that the batches handed out no longer say which "
            f"samples were: {user} cannot resume it; use torchdata's Loader for such a chain"
        )
        raise PlanError(msg)


def check_keeps_draws(node: BaseNode[Any]) -> None:
    """Refuse a node of somebody else below a gather.

    Raises:
        PlanError: says which node.
    """
    if not isinstance(node, CursorNode):
        msg = (
            f"{type(node).__name__} stands between planner and gather, where only this library's "
            "nodes and subclasses of SegmentNode can: move it behind the gather"
        )
        raise PlanError(msg)


def is_stateless(node: BaseNode[Any]) -> bool:
    """Whether a node of torchdata gives one item for one item and keeps nothing but that."""
    # The private ones are parts of the public ones.
    name = type(node).__name__
    return _is_stock(node) and (name in _ONE_TO_ONE or name.startswith("_"))


def _is_stock(node: BaseNode[Any]) -> bool:
    return type(node).__module__.split(".")[:2] == ["torchdata", "nodes"]
