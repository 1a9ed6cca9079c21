"""A chain of nodes as its loader sees it: which of them are ours, and how to drive them all."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import torchdata.nodes
from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.async_chunk_fetcher import AsyncChunkFetcher
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.nodes.chunk_pool_node import ChunkPoolNode
from torchdata_insitu.nodes.collection import when_collected
from torchdata_insitu.nodes.cursor_node import CursorNode
from torchdata_insitu.nodes.gather_node import GatherNode
from torchdata_insitu.nodes.graph import find_planner, walk
from torchdata_insitu.nodes.pin_memory import PinMemory
from torchdata_insitu.nodes.prefetcher import Prefetcher
from torchdata_insitu.planning.cursor import Cursor

__all__ = ["Chain"]

N = TypeVar("N", bound=BaseNode[Any])

_OURS = (CursorNode, Prefetcher, PinMemory)
# Stock nodes that give one item for one item and keep no state of their own.
_ONE_TO_ONE = frozenset({"Mapper", "ParallelMapper", "Prefetcher", "PinMemory"})


class Chain:
    """The nodes below a loader.

    Attributes:
        root: the last node, which the loader takes batches from.
        planner: the one `ChunkPlanner`.
        fetcher: the `AsyncChunkFetcher`.
        pool_node: the `ChunkPoolNode`.
        graph: kinds of the nodes after the gather, the root first.

    Raises:
        PlanError: a part of the chain is missing, or a node changes the number of items.
    """

    def __init__(self, root: BaseNode[dict[str, Tensor]]) -> None:
        """Find the parts; nothing is started."""
        self.root = root
        nodes = list(walk(root))
        if any(isinstance(node, ChunkPlanner) for node in nodes):
            # Before the planners are counted: nodes that mix chains have several.
            for node in nodes:
                _check_one_to_one(node)
        self.planner = find_planner(root)
        self.fetcher = self._one(AsyncChunkFetcher)
        self.pool_node = self._one(ChunkPoolNode)
        self.gather = self._one(GatherNode)
        below = {id(node): node for node in walk(self.gather)}
        after = [node for node in walk(root) if id(node) not in below]
        for node in below.values():
            _check_keeps_draws(node)
        self._has_foreign_state = any(_is_foreign(node) for node in after)
        self.graph = [type(node).__qualname__ for node in after]

    def _one(self, kind: type[N]) -> N:
        found = [node for node in walk(self.root) if isinstance(node, kind)]
        if len(found) != 1:
            msg = (
                f"the chain has {len(found)} nodes of kind {kind.__name__}, but needs exactly 1: "
                "build it as ChunkPlanner -> AsyncChunkFetcher -> ChunkPoolNode -> GatherNode"
            )
            raise PlanError(msg)
        return found[0]

    def start(self, cursor: Cursor, foreign: dict[str, Any] | None) -> None:
        """Reset every node so that the next batch is the one at `cursor`.

        Nodes of ours are told the place directly: stock nodes in between hand on nothing but
        `reset`.

        Args:
            cursor: where to begin.
            foreign: what `foreign_state` gave at that place, if it is `fitting`. At the start of an
                epoch it is of the end of the one before, from which nodes of others then begin
                anew, as they do in a run that is not interrupted.
        """
        self.interrupt()
        if foreign is not None:
            self._seek(cursor)
            self.root.reset(copy.deepcopy(foreign["state"]))
        if foreign is None or cursor.position == 0:
            self._seek(cursor)
            self.root.reset(None)

    def _seek(self, cursor: Cursor) -> None:
        for node in self._ours():
            node.seek(cursor)

    def next_batch(self, n_before: int, n_planned: int) -> dict[str, Tensor]:
        """The batch that follows `n_before` of `n_planned`.

        Raises:
            StopIteration: there were as many as planned.
            PlanError: a node after the gather changed the number of batches.
        """
        what = "ended"
        try:
            batch: dict[str, Tensor] | None = next(self.root)
        except StopIteration:
            if n_before == n_planned:
                raise
        else:
            if batch is not None and n_before < n_planned:
                return batch
            what = "gave None for a batch" if batch is None else "gave one more"
        msg = (
            f"the chain {what} after {n_before} batches, but {n_planned} were planned: a node "
            "after the gather changes the number of batches; use torchdata's Loader for such a "
            "chain"
        )
        raise PlanError(msg)

    def foreign_state(self) -> dict[str, Any] | None:
        """The state of the whole chain if a node in it keeps state that no cursor stands for."""
        if not self._has_foreign_state:
            return None
        return {"graph": list(self.graph), "state": copy.deepcopy(self.root.state_dict())}

    def fitting(self, foreign: dict[str, Any] | None) -> dict[str, Any] | None:
        """A `foreign_state`, or None with a warning if it is of other nodes after the gather."""
        if foreign is None:
            return None
        is_whole = isinstance(foreign.get("state"), dict)
        if self._has_foreign_state and is_whole and foreign.get("graph") == self.graph:
            return foreign
        msg = (
            f"the state of nodes after the gather is left out: it is of {foreign.get('graph')}, "
            f"and the chain has {self.graph}"
        )
        warnings.warn(msg, stacklevel=3)
        return None

    def interrupt(self) -> None:
        """Wake every `next` of a node of ours that is blocked."""
        for node in self._ours():
            node.interrupt()

    def shutdown(self) -> None:
        """End every thread, lease and read of nodes of ours."""
        _shut_down(self._ours())

    def end_with(self, owner: object) -> None:
        """Shut down when `owner` is collected, and at the exit of the interpreter."""
        # Weak, because a node may hold an error, and with its traceback the owner.
        when_collected(owner, _shut_down_living, [weakref.ref(node) for node in self._ours()])

    def _ours(self) -> list[CursorNode[Any] | Prefetcher[Any]]:
        return [node for node in walk(self.root) if isinstance(node, CursorNode | Prefetcher)]


def _shut_down(nodes: Sequence[CursorNode[Any] | Prefetcher[Any]]) -> None:
    for node in nodes:
        node.interrupt()
    for node in nodes:
        node.shutdown()


def _shut_down_living(
    nodes: Sequence[weakref.ref[CursorNode[Any]] | weakref.ref[Prefetcher[Any]]],
) -> None:
    _shut_down([node for ref in nodes if (node := ref()) is not None])


def _is_foreign(node: BaseNode[Any]) -> bool:
    if isinstance(node, _OURS):
        return False
    # The private ones are parts of the public ones.
    name = type(node).__name__
    return not (_is_stock(node) and (name in _ONE_TO_ONE or name.startswith("_")))


def _is_stock(node: BaseNode[Any]) -> bool:
    return type(node).__module__.split(".")[:2] == ["torchdata", "nodes"]


def _check_keeps_draws(node: BaseNode[Any]) -> None:
    if not isinstance(node, CursorNode):
        msg = (
            f"{type(node).__name__} stands between planner and gather, where only this library's "
            "nodes and subclasses of SegmentNode can: move it behind the gather"
        )
        raise PlanError(msg)


def _check_one_to_one(node: BaseNode[Any]) -> None:
    name = type(node).__name__
    changes_count = _is_stock(node) and name not in _ONE_TO_ONE and hasattr(torchdata.nodes, name)
    out_of_order = _is_stock(node) and not getattr(node, "in_order", True)
    if changes_count or out_of_order:
        what = "hands items on out of order" if out_of_order else "changes the number of items"
        msg = (
            f"{name} after the gather {what}, so that the batches handed out no longer say which "
            "samples were: InSituLoader cannot resume it; use torchdata's Loader for such a chain"
        )
        raise PlanError(msg)
