"""Walking a chain of nodes, ours and others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchdata.nodes import BaseNode

if TYPE_CHECKING:
    from torchdata_insitu.nodes.chunk_planner import ChunkPlanner

from torchdata_insitu.errors import PlanError

__all__ = ["find_planner", "walk"]


def walk(node: BaseNode[Any]) -> Iterator[BaseNode[Any]]:
    """Every node at and below `node`, the root first.

    Nodes are found through `source`, `source_nodes` and any other attribute that is a node or a
    collection of nodes, since no stock node passes interrupt and shutdown on.
    """
    seen: set[int] = set()
    pending: list[BaseNode[Any]] = [node]
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        pending.extend(_nodes_of(current))


def _nodes_of(node: BaseNode[Any]) -> Iterator[BaseNode[Any]]:
    for value in list(vars(node).values()):
        if isinstance(value, BaseNode):
            yield value
        elif isinstance(value, Mapping):
            yield from (item for item in value.values() if isinstance(item, BaseNode))
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, BaseNode))


def find_planner(node: BaseNode[Any]) -> ChunkPlanner:
    """The one planner at or below `node`.

    Raises:
        PlanError: there is none, or there are several.
    """
    from torchdata_insitu.nodes.chunk_planner import ChunkPlanner  # noqa: PLC0415 - a cycle else

    planners = [found for found in walk(node) if isinstance(found, ChunkPlanner)]
    if len(planners) != 1:
        msg = (
            f"{type(node).__name__} stands on {len(planners)} ChunkPlanners, but needs exactly 1: "
            "build the chain as ChunkPlanner -> AsyncChunkFetcher -> ChunkPoolNode -> GatherNode"
        )
        raise PlanError(msg)
    return planners[0]
