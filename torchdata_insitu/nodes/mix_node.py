"""Mixes the batches of several chains by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.nodes.branch import Branch, is_foreign
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.nodes.mix_order import MixOrder
from torchdata_insitu.nodes.one_to_one import check_one_to_one
from torchdata_insitu.nodes.ordered_node import OrderedNode
from torchdata_insitu.nodes.verbs import interrupt, nodes_of_ours
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor

Batch = dict[str, Tensor]

__all__ = ["MixNode"]


class MixNode(OrderedNode["Batch", MixCursor]):
    """Hands on batches of several chains, chosen by weight, as they are.

    Which source batch `i` comes from is a function of `(seed, epoch, i)`, equal on all ranks. The
    order in which sources are given does not matter, since they go by their names.

    Args:
        source_nodes: chains by name, each with its own planner and up to its gather or a node of
            one item for one item behind it. They may share a pool.
        weights: how often each is chosen, in proportion; positive and finite, with the same names.
        seed: keys every choice.
        stop: when an epoch ends. `"first"`: a source is chosen that has no batch left. `"all"`:
            none has a batch left; one that has none is no longer chosen. `"cycle"`: every source
            was through once; one that is chosen after that begins another pass, in another order.

    State:
        The epoch and step, and the cursor of each source by its name. Each epoch begins every
        source at the start of its own epoch of that number.

    Threads:
        None of its own.

    Raises:
        PlanError: names that differ, a bad weight, seed or stop rule; a source that is no such
            chain, has another rank than the others, or shares a node with them.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> pool = tdi.ChunkPool("10%")
        >>> def gather(n_samples):
        ...     store = make_store({"t2m": (n_samples, 2)}, chunks=(4, 2))
        ...     views = {"x": tdi.open_arrays(store)["t2m"]}
        ...     planner = tdi.ChunkPlanner(views, batch_size=4)
        ...     fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
        ...     return tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))
        >>> sources = {"era5": gather(40), "cmip": gather(20)}
        >>> mix = tdi.MixNode(sources, {"era5": 0.7, "cmip": 0.3}, seed=0, stop="all")
        >>> with tdi.InSituLoader(mix) as loader:
        ...     n_samples = sum(len(batch["x"]) for batch in loader)
        >>> n_samples, len(loader)
        (60, 15)
    """

    _RUNTIME: ClassVar[dict[str, Any]] = {
        "_after": None,
        "_is_running": False,
        "_interrupted": False,
    }

    def __init__(
        self,
        source_nodes: Mapping[str, BaseNode[Batch]],
        weights: Mapping[str, float],
        *,
        seed: int = 0,
        stop: str = "first",
    ) -> None:
        """Check the sources; nothing is started."""
        super().__init__()
        _check_names(source_nodes, weights)
        self.source_nodes = dict(sorted(source_nodes.items()))
        for name, node in self.source_nodes.items():
            _check_source(name, node)
        _check_apart(self.source_nodes)
        self.branches = {name: _branch(name, node) for name, node in self.source_nodes.items()}
        self._order = MixOrder(
            {name: branch.planner for name, branch in self.branches.items()},
            weights,
            seed=seed,
            stop=stop,
        )
        self._after: MixCursor | None = None
        self._is_running = False
        self._interrupted = False

    @property
    def order(self) -> MixOrder:
        """The order of the mix."""
        return self._order

    def _start(self, cursor: MixCursor) -> None:
        # Ranks that were looked up only now are compared.
        _ = self._order.ranks
        self._after = None
        self._is_running = True
        self._interrupted = False
        for branch, source in zip(self.branches.values(), cursor.cursors, strict=True):
            branch.start(source)

    def _make(self) -> Batch:
        cursor = self.cursor
        if self._after is None:
            # Of a source that is chosen later too, for its batches are counted already.
            self._order.use_ranks()
        number = self._order.source(cursor)
        if number is None:
            self._leave_unfinished(cursor)
            raise StopIteration
        name, branch = list(self.branches.items())[number]
        begun = self._order.begun(cursor, number)
        if begun is not cursor:
            self._begin_pass(branch, begun.cursors[number])
        try:
            batch = _batch_of(name, branch, self._order, begun, number)
        except BaseException as error:
            error.add_note(f"in source {name!r} of the mix, at step {cursor.step}")
            # Leases end with the error, those of the other sources too. Who interrupts wants to go
            # on at once, and not to wait for threads.
            if isinstance(error, Exception) and not isinstance(error, ClosedError):
                self._stop()
            raise
        self._after = self._order.after_one(begun, number)
        return batch

    def _begin_pass(self, branch: Branch, cursor: Cursor) -> None:
        branch.start(cursor)
        # The thread I that interrupts sets the flag and then wakes the nodes of the branch; this
        # thread resets them, by which they forget that they were woken, and then looks at the flag.
        # So either it is seen here, or I wakes the nodes after they were reset.
        if self._interrupted:
            msg = "the node was interrupted: reset it before asking again"
            raise ClosedError(msg)

    def _cursor_after(self, item: Batch) -> MixCursor:
        del item
        return self._after or self.cursor

    def _leave_unfinished(self, cursor: MixCursor) -> None:
        """Let sources that the epoch leaves in the middle of a pass give their leases back."""
        if not self._is_running:
            return
        self._is_running = False
        for branch, source in zip(self.branches.values(), cursor.cursors, strict=True):
            if not branch.planner.is_at_end(source):
                branch.shutdown()

    def interrupt(self) -> None:
        """Wake a `next` that waits for a source."""
        self._interrupted = True
        for branch in self.branches.values():
            interrupt(nodes_of_ours(branch.root))

    def _stop(self) -> None:
        self._is_running = False
        for branch in self.branches.values():
            branch.shutdown()


def _batch_of(name: str, branch: Branch, order: MixOrder, cursor: MixCursor, number: int) -> Batch:
    what = "ended"
    try:
        batch: Batch | None = next(branch.root)
    except StopIteration:
        pass
    else:
        if batch is not None:
            return batch
        what = "gave None for a batch"
    source = cursor.cursors[number]
    msg = (
        f"source {name!r} of the mix {what} at position {source.position} of its epoch "
        f"{source.epoch}, where {order.planners[name].steps_from(source)} batches were planned: a "
        "node after its gather changes the number of batches"
    )
    raise PlanError(msg)


def _check_names(source_nodes: Any, weights: Any) -> None:
    if not isinstance(source_nodes, Mapping) or not isinstance(weights, Mapping):
        kinds = f"{type(source_nodes).__name__} and {type(weights).__name__}"
        raise PlanError(f"MixNode takes two mappings by name, of nodes and of weights, not {kinds}")
    for name in source_nodes:
        if not isinstance(name, str):
            msg = f"a source of the mix is named {name!r}: names are text, as keys of JSON are"
            raise PlanError(msg)
    if set(source_nodes) != set(weights):
        msg = (
            f"the sources of the mix are {sorted(map(str, source_nodes))}, and the weights are of "
            f"{sorted(map(str, weights))}: give each source a weight, under its name"
        )
        raise PlanError(msg)


def _check_source(name: str, root: BaseNode[Any]) -> None:
    if not isinstance(root, BaseNode):
        msg = f"source {name!r} of the mix is {root!r}, not a node: give the last node of a chain"
        raise PlanError(msg)
    for node in walk(root):
        if isinstance(node, MixNode):
            msg = (
                f"source {name!r} of the mix is a mix itself: put its sources beside the others, "
                "each with the product of both weights"
            )
            raise PlanError(msg)
        check_one_to_one(node, f"MixNode, which has it in source {name!r},")


def _branch(name: str, root: BaseNode[Any]) -> Branch:
    try:
        branch = Branch(root)
    except PlanError as error:
        raise PlanError(f"source {name!r} of the mix: {error}") from None
    for node in branch.after_gather():
        if is_foreign(node):
            msg = (
                f"source {name!r} of the mix has {type(node).__name__} behind its gather, whose "
                "state no cursor stands for: use Mapper for it, or put it behind the MixNode"
            )
            raise PlanError(msg)
    return branch


def _check_apart(source_nodes: Mapping[str, BaseNode[Any]]) -> None:
    owners: dict[int, str] = {}
    for name, root in source_nodes.items():
        for node in walk(root):
            other = owners.setdefault(id(node), name)
            if other != name:
                msg = (
                    f"sources {other!r} and {name!r} of the mix stand on the same "
                    f"{type(node).__name__}: give each a chain of its own; a pool can be shared"
                )
                raise PlanError(msg)
