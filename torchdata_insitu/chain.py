"""A chain of nodes as its loader sees it: which of them are ours, and how to drive them all."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.async_chunk_fetcher import AsyncChunkFetcher
from torchdata_insitu.nodes.branch import Branch, is_foreign
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.nodes.chunk_pool_node import ChunkPoolNode
from torchdata_insitu.nodes.collection import when_collected
from torchdata_insitu.nodes.gather_node import GatherNode
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.nodes.mix_node import MixNode
from torchdata_insitu.nodes.mix_order import MixOrder
from torchdata_insitu.nodes.one_to_one import check_one_to_one
from torchdata_insitu.nodes.order import Order
from torchdata_insitu.nodes.verbs import NodeWithVerbs, interrupt, nodes_of_ours, shut_down
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor
from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["Chain"]


class Chain:
    """The nodes below a loader: one chain, or a mix of several.

    Attributes:
        root: the last node, which the loader takes batches from.
        mix: the `MixNode` if there is one.
        branches: the chain of each source of the mix by its name; without a mix, the one chain
            under the empty name.
        order: the order of the batches.
        own_pool: a pool that nobody else uses, if there is one.
        graph: kinds of the nodes after the gather, the root first.

    Raises:
        PlanError: a part of the chain is missing, or a node changes the number of items.
    """

    def __init__(
        self, root: BaseNode[dict[str, Tensor]], own_pool: ChunkPool | None = None
    ) -> None:
        """Find the parts; nothing is started."""
        self.root = root
        self.own_pool = own_pool
        nodes = list(walk(root))
        if any(isinstance(node, ChunkPlanner) for node in nodes):
            # Before the planners are counted: nodes that mix chains have several.
            for node in nodes:
                check_one_to_one(node, "InSituLoader")
        self.mix = _mix_of(nodes)
        self.branches = {"": Branch(root)} if self.mix is None else self.mix.branches
        self.order: Order[Any] = self.planner if self.mix is None else self.mix.order
        below = {id(node) for branch in self.branches.values() for node in walk(branch.gather)}
        after = [node for node in nodes if id(node) not in below]
        self._has_foreign_state = any(is_foreign(node) for node in after)
        self.graph = [type(node).__qualname__ for node in after]

    def _only(self) -> Branch:
        if self.mix is not None:
            msg = (
                f"the chain mixes {', '.join(map(repr, self.branches))}: ask one of them, as in "
                f"chain.branches[{next(iter(self.branches))!r}]"
            )
            raise PlanError(msg)
        return self.branches[""]

    @property
    def mix_order(self) -> MixOrder:
        """The order of the mix.

        Raises:
            PlanError: the chain mixes nothing.
        """
        if self.mix is None:
            raise PlanError("the chain has no MixNode: ask its planner")
        return self.mix.order

    @property
    def planner(self) -> ChunkPlanner:
        """The one `ChunkPlanner`; of a mix, ask its `branches`."""
        return self._only().planner

    @property
    def fetcher(self) -> AsyncChunkFetcher:
        """The one `AsyncChunkFetcher`."""
        return self._only().fetcher

    @property
    def pool_node(self) -> ChunkPoolNode:
        """The one `ChunkPoolNode`."""
        return self._only().pool_node

    @property
    def gather(self) -> GatherNode:
        """The one `GatherNode`."""
        return self._only().gather

    def by_array(self, counts: Callable[[Branch], Mapping[str, int]]) -> dict[str, int]:
        """Counts of all branches by array, over a mix by `source/array`."""
        return {
            f"{name}/{array}" if name else array: count
            for name, branch in self.branches.items()
            for array, count in counts(branch).items()
        }

    def units(self) -> dict[str, str]:
        """Units of the views that hold times, by view.

        A view that the sources of a mix have in different units, or as no times in some of them, is
        named for each source as `source/view`.
        """
        found: dict[str, dict[str, str | None]] = {}
        for source, branch in self.branches.items():
            for name, view in branch.planner.views.items():
                found.setdefault(name, {})[source] = view.unit
        return {
            name if len(set(units.values())) == 1 else f"{source}/{name}": unit
            for name, units in found.items()
            for source, unit in units.items()
            if unit is not None
        }

    def floor_bytes(self, cursor: Cursor | MixCursor) -> int:
        """The least budget for a pass from a cursor on; of a mix, for all its sources together."""
        cursors = cursor.cursors if isinstance(cursor, MixCursor) else (cursor,)
        return sum(
            branch.planner.floor_bytes(start.lanes, start.n_draws)
            for branch, start in zip(self.branches.values(), cursors, strict=True)
        )

    def start(self, cursor: Any, foreign: dict[str, Any] | None) -> None:
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

    def _seek(self, cursor: Any) -> None:
        # A mix tells its sources itself, each its own cursor.
        told: set[int] = set()
        if self.mix is not None:
            told = {id(node) for branch in self.branches.values() for node in walk(branch.root)}
        for node in self._ours():
            if id(node) not in told:
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
        interrupt(self._ours())

    def shutdown(self) -> None:
        """End every thread, lease and read of nodes of ours."""
        shut_down(self._ours())

    def close(self) -> None:
        """Shut down, and give the memory of a pool back that nobody else uses."""
        self.shutdown()
        if self.own_pool is not None:
            self.own_pool.return_memory()

    def end_with(self, owner: object) -> None:
        """Shut down when `owner` is collected, and at the exit of the interpreter."""
        # Weak, because a node may hold an error, and with its traceback the owner.
        when_collected(owner, _shut_down_living, [weakref.ref(node) for node in self._ours()])

    def _ours(self) -> list[NodeWithVerbs[Any]]:
        return nodes_of_ours(self.root)


def _shut_down_living(nodes: list[weakref.ref[NodeWithVerbs[Any]]]) -> None:
    shut_down([node for ref in nodes if (node := ref()) is not None])


def _mix_of(nodes: list[BaseNode[Any]]) -> MixNode | None:
    mixes = [node for node in nodes if isinstance(node, MixNode)]
    if len(mixes) > 1:
        msg = f"the chain has {len(mixes)} MixNodes, but can have 1: put their sources into one"
        raise PlanError(msg)
    return mixes[0] if mixes else None
