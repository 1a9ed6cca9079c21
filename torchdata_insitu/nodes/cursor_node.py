"""What all nodes of a chain have in common: they stand in the order of one planner."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from torchdata.nodes import BaseNode

from torchdata_insitu.nodes.graph import find_planner
from torchdata_insitu.nodes.ordered_node import OrderedNode
from torchdata_insitu.planning.cursor import Cursor

if TYPE_CHECKING:
    from torchdata_insitu.nodes.chunk_planner import ChunkPlanner

__all__ = ["CursorNode", "SourcedNode"]

T = TypeVar("T")


class CursorNode(OrderedNode[T, Cursor]):
    """A node whose state is the cursor of the next item it will hand out.

    State:
        The cursor as plain JSON; one of any node of the chain is a place for every other.

    Threads:
        As in `OrderedNode`.
    """

    @property
    @abstractmethod
    def planner(self) -> ChunkPlanner:
        """The planner this node stands on."""

    @property
    def order(self) -> ChunkPlanner:
        """The planner: it knows the order of the chain."""
        return self.planner


class SourcedNode(CursorNode[T]):
    """A `CursorNode` over another node of the chain.

    Attributes:
        source: the node it takes its items from.
    """

    def __init__(self, source: BaseNode[Any]) -> None:
        """Stand on `source`, which has a `ChunkPlanner` at or below it."""
        super().__init__()
        self.source = source
        self._planner = find_planner(source)

    @property
    def planner(self) -> ChunkPlanner:
        """The planner this node stands on."""
        return self._planner

    def _start(self, cursor: Cursor) -> None:
        self.source.reset(self.planner.write_cursor(cursor))

    def _cursor_after(self, item: T) -> Cursor:
        after: Cursor = item.after  # type: ignore[attr-defined]
        return after
