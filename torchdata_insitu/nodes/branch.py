"""One chain, from its planner over its gather to the node that hands its batches on."""

from __future__ import annotations

from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.async_chunk_fetcher import AsyncChunkFetcher
from torchdata_insitu.nodes.chunk_pool_node import ChunkPoolNode
from torchdata_insitu.nodes.gather_node import GatherNode
from torchdata_insitu.nodes.graph import find_planner, walk
from torchdata_insitu.nodes.one_to_one import check_keeps_draws, is_stateless
from torchdata_insitu.nodes.pin_memory import PinMemory
from torchdata_insitu.nodes.verbs import NodeWithVerbs, interrupt, nodes_of_ours, shut_down
from torchdata_insitu.planning.cursor import Cursor

__all__ = ["Branch", "is_foreign"]

N = TypeVar("N", bound=BaseNode[Any])


class Branch:
    """The parts of one chain.

    Attributes:
        root: its last node.
        planner: its `ChunkPlanner`.
        fetcher: its `AsyncChunkFetcher`.
        pool_node: its `ChunkPoolNode`.
        gather: its `GatherNode`.

    Raises:
        PlanError: a part is missing or there several times, or a node of somebody else stands
            below the gather.
    """

    def __init__(self, root: BaseNode[Any]) -> None:
        """Find the parts; nothing is started."""
        self.root = root
        self.planner = find_planner(root)
        self.fetcher = self._one(AsyncChunkFetcher)
        self.pool_node = self._one(ChunkPoolNode)
        self.gather = self._one(GatherNode)
        for node in walk(self.gather):
            check_keeps_draws(node)

    def _one(self, kind: type[N]) -> N:
        found = [node for node in walk(self.root) if isinstance(node, kind)]
        if len(found) != 1:
            msg = (
                f"the chain has {len(found)} nodes of kind {kind.__name__}, but needs exactly 1: "
                "build it as ChunkPlanner -> AsyncChunkFetcher -> ChunkPoolNode -> GatherNode"
            )
            raise PlanError(msg)
        return found[0]

    def start(self, cursor: Cursor) -> None:
        """Reset every node so that the next batch is the one at `cursor`."""
        nodes = nodes_of_ours(self.root)
        interrupt(nodes)
        for node in nodes:
            node.seek(cursor)
        self.root.reset(None)

    def shutdown(self) -> None:
        """End every thread, lease and read of the chain."""
        shut_down(nodes_of_ours(self.root))

    def after_gather(self) -> list[BaseNode[Any]]:
        """The nodes behind the gather, the last one first."""
        below = {id(node) for node in walk(self.gather)}
        return [node for node in walk(self.root) if id(node) not in below]


def is_foreign(node: BaseNode[Any]) -> bool:
    """Whether a node can keep state that no cursor stands for."""
    return not isinstance(node, NodeWithVerbs | PinMemory) and not is_stateless(node)
