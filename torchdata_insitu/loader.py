"""The loader: a chain as an iterable with a length, a place, and an exact state."""

from __future__ import annotations

import copy
import dataclasses
import logging
import operator
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Self

from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.chain import Chain
from torchdata_insitu.errors import ClosedError, PlanError, StateError
from torchdata_insitu.loader_iterator import LoaderIterator
from torchdata_insitu.loader_state import Place, read_loader_state, saved_epoch, write_loader_state
from torchdata_insitu.loader_stats import LoaderStats
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.truth_value import truth_value
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.process_check import check_process

__all__ = ["InSituLoader"]

_logger = logging.getLogger(__name__)


class InSituLoader:
    """An iterable over a chain of nodes, with the state, length and lifecycle a trainer needs.

    `state_dict()` names a place in the global order of an epoch: it is plain JSON, the same on
    every rank, and independent of batch size, world size, prefetch depth and what nodes follow the
    gather. The epoch advances at `iter()` once a batch of the current one was handed out.

    Args:
        node: the last node of the chain, or of several that a `MixNode` mixes. After the gather
            and the mix any node that gives one item for one item may follow.
        strict: refuse a state of another plan. False starts the saved epoch anew instead.
        own_pool: a pool that nobody else uses, whose memory `close` gives back to the system.

    Raises:
        PlanError: no planner below `node`, several without a `MixNode`, a node that changes the
            number of items, or `strict` is no truth value.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
        >>> views = {"x": tdi.open_arrays(store)["t2m"]}
        >>> with tdi.build_loader(store, views, batch_size=2, budget_bytes="10%") as loader:
        ...     for batch in loader:
        ...         if loader.step == 3:
        ...             state = loader.state_dict()
        ...     n_batches = len(loader)
        >>> n_batches, state["epoch"], state["position"]
        (4, 0, 6)
    """

    def __init__(
        self,
        node: BaseNode[dict[str, Tensor]],
        *,
        strict: bool = True,
        own_pool: ChunkPool | None = None,
    ) -> None:
        """Stand at the start of epoch 0; nothing is read and no thread started."""
        self._chain = Chain(node, own_pool)
        self._strict = truth_value("strict", strict)
        self._pid = os.getpid()
        self._place: Place | None = None
        self._first_epoch = self._handed_out = self._generation = self._n_batches = 0
        self._is_running = self._is_over = self._ends_with_loader = False
        self._peeked: dict[str, Tensor] | None = None
        self._nodes: dict[str, Any] | None = None
        self._error: Exception | None = None
        self._next_epoch: int | None = None

    @property
    def plan(self) -> Plan:
        """The plan: order, draws and reads; over a mix, each source has its own."""
        return self._chain.planner.plan

    @property
    def node(self) -> BaseNode[dict[str, Tensor]]:
        """The last node of the chain."""
        return self._chain.root

    @property
    def chain(self) -> Chain:
        """The nodes of the chain."""
        return self._chain

    # Both the lanes of a first epoch and what is left of a loaded one depend on the world size,
    # which is not looked up before it is needed, and anew in a process that gets a pickled loader.
    def _here(self) -> Place:
        place = self._place
        if place is None:
            return Place(self._chain.order.start_of(self._first_epoch), is_checked=True)
        if not place.is_checked and self._chain.order.steps_from(place.cursor) == 0:
            epoch = place.cursor.epoch
            _logger.info("nothing is left of epoch %d at this batch and world size", epoch)
            cursor = self._chain.order.next_epoch(place.cursor)
            place = self._place = Place(cursor, is_kept=True)
        place.is_checked = True
        return place

    @property
    def cursor(self) -> Cursor | MixCursor:
        """The place of the next batch; of the next epoch once nothing of this one is left."""
        return self._cursor_after(self._handed_out)[0]

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.cursor.epoch

    @property
    def position(self) -> int:
        """Draws handed out in this epoch, over all ranks."""
        return self.cursor.position

    @property
    def step(self) -> int:
        """Batches of that epoch handed out on each rank."""
        return self._cursor_after(self._handed_out)[1]

    def __len__(self) -> int:
        """Batches of the whole epoch on each rank, those handed out before a resume included."""
        # Epochs of a mix differ in length: of the next one, a loop is told when it has ended.
        cursor, step = self._cursor_after(self._handed_out if self._is_over else 0)
        return step + self._chain.order.steps_from(cursor)

    @property
    def units(self) -> dict[str, str]:
        """Units of the views that hold times as int64, such as "ns".

        By the name of the view; over a mix by `source/view` where the sources differ.
        """
        return self._chain.units()

    @property
    def expected_reads(self) -> int:
        """Stored chunks this rank reads from the place where this pass began to its end.

        A pass with overlapping windows and room to spare can find chunks resident and read fewer;
        one whose read-ahead is taken back for a pass that starts on the same pool reads them again.
        """
        return sum(self._chain.order.reads_from(self._here().cursor).values())

    @property
    def floor_bytes(self) -> int:
        """The least budget for the next pass, a pool that the sources of a mix share included."""
        return self._chain.floor_bytes(self.cursor)

    def stats(self) -> LoaderStats:
        """What was read and handed out since the loader was made; over a mix by `source/array`."""
        return LoaderStats.of(self._chain, self._n_batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """An iterator over what is left of the epoch; the older one ends with `ClosedError`.

        The epoch advances here if a batch of it was handed out, and was not followed by an error:
        after one, the epoch goes on at the batch that failed. Nothing is read before the first
        `next`.
        """
        self._generation += 1
        place = self._place
        if self._next_epoch is not None:
            self._stand(Place(self._epoch_start(self._next_epoch)))
        elif self._error is not None:
            self._stand(self._place_after(self._handed_out))
        elif place is not None and (self._handed_out or place.is_begun):
            self._stand(Place(self._chain.order.next_epoch(place.cursor)))
        return LoaderIterator(self, self._generation)

    def _stand(self, place: Place) -> None:
        self._place = place
        self._handed_out = 0
        self._is_running = self._is_over = False
        self._peeked = None
        self._nodes = place.nodes
        self._error = None
        self._next_epoch = None

    def _place_after(self, handed_out: int) -> Place:
        """Where a pass begins that goes on after so many batches of this one."""
        cursor, step = self._cursor_after(handed_out)
        nodes = self._nodes if handed_out == self._handed_out else None
        return Place(cursor, step, is_kept=True, nodes=nodes)

    def _epoch_start(self, epoch: int) -> Cursor | MixCursor:
        return self._chain.order.start_of(epoch, self._here().cursor)  # type: ignore[no-any-return]

    def _next(self, generation: int) -> dict[str, Tensor]:
        check_process(self, self._pid)
        if generation != self._generation:
            msg = (
                "this iterator is not the loader's newest: a later iter(), load_state_dict() or "
                "close() ended it"
            )
            raise ClosedError(msg)
        try:
            batch = self._pull()
        except StopIteration:
            self._is_over = True
            raise
        self._peeked = None
        self._handed_out += 1
        self._n_batches += 1
        # Taken now: later the nodes may stand at a batch that is only looked at, or that failed.
        self._nodes = self._chain.foreign_state()
        return batch

    def _pull(self) -> dict[str, Tensor]:
        """The next batch, without counting it."""
        if self._error is not None:
            raise self._error
        if self._peeked is not None:
            return self._peeked
        try:
            self._peeked = self._batch_of_chain()
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            # Leases and threads end with an error, not with whoever keeps it. Who interrupts wants
            # to go on at once, and not to wait for threads.
            if not isinstance(error, ClosedError):
                self._chain.shutdown()
            raise
        except BaseException as error:
            self._error = ClosedError(f"next() was left by {type(error).__name__}: call iter()")
            raise
        return self._peeked

    def _batch_of_chain(self) -> dict[str, Tensor]:
        place = self._here()
        expected = self._chain.order.steps_from(place.cursor)
        if not self._is_running:
            if self._handed_out == expected:
                raise StopIteration
            if not self._ends_with_loader:
                self._chain.end_with(self)
                self._ends_with_loader = True
            self._chain.start(self._cursor_after(self._handed_out)[0], self._nodes)
            self._place = place
            self._is_running = True
        return self._chain.next_batch(self._handed_out, expected)

    def peek(self) -> dict[str, Tensor]:
        """The batch the next `next` will give; moves nothing.

        Raises:
            StopIteration: the epoch is over.
        """
        check_process(self, self._pid)
        return self._pull()

    def skip(self, n_batches: int) -> None:
        """Go on `n_batches` further in this epoch without reading what is skipped.

        Raises:
            PlanError: negative, or more than are left.
        """
        place = self._here()
        left = self._chain.order.steps_from(place.cursor) - self._handed_out
        if isinstance(n_batches, bool) or not 0 <= n_batches <= left:
            msg = f"cannot skip {n_batches} batches: {left} are left of epoch {place.cursor.epoch}"
            raise PlanError(msg)
        n_batches = operator.index(n_batches)
        if not n_batches:
            return
        is_begun = self._handed_out > 0 or place.is_begun
        if n_batches < left:
            asked = self._next_epoch
            place = self._place_after(self._handed_out + n_batches)
            place.is_begun = is_begun
            self._stand(place)
            self._next_epoch = asked
        else:
            # The iterator that is live ends here, and does not go on to the next epoch.
            handed_out = self._handed_out + n_batches
            self._stand(place)
            self._handed_out = handed_out

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be the given epoch from its start.

        A place that was loaded or skipped to, or where an error came up, is kept while nothing was
        handed out from it, with one warning if it is of another epoch: trainers call this at every
        epoch, and a resume must survive it.

        Raises:
            PlanError: the epoch is negative.
            TypeError: it is no integer.
        """
        if isinstance(epoch, bool) or epoch < 0:
            raise PlanError(f"epoch is {epoch!r}, but must be an integer of at least 0")
        epoch = operator.index(epoch)
        if self._place is None:
            self._first_epoch = epoch
            return
        place = self._here()
        if self._handed_out or place.is_begun:
            self._next_epoch = epoch
        elif not place.is_kept:
            if (place.cursor.epoch, place.cursor.position) != (epoch, 0):
                self._stand(Place(self._epoch_start(epoch)))
        elif place.cursor.epoch != epoch and not place.is_warned:
            place.is_warned = True
            msg = (
                f"set_epoch({epoch}) is ignored: the loader was put to position "
                f"{place.cursor.position} of epoch {place.cursor.epoch} and has not begun there yet"
            )
            warnings.warn(msg, stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch handed out last: plain JSON, fresh, without side effects."""
        place = self._place_after(self._handed_out)
        state = write_loader_state(self._chain.order, place.cursor, place.step)
        if place.nodes is not None:
            state["nodes"] = copy.deepcopy(place.nodes)
        return state

    def _cursor_after(self, handed_out: int) -> tuple[Cursor | MixCursor, int]:
        place, order = self._here(), self._chain.order
        start = place.cursor
        # An epoch that is done is saved as the start of the next: under another batch size or tail
        # there could be draws left of the finished one.
        if handed_out and handed_out >= order.steps_from(start):
            if self._next_epoch is not None:
                return self._epoch_start(self._next_epoch), 0
            return order.next_epoch(start), 0
        # Nothing handed out, nothing moved: neither may a place where nothing is left.
        return order.after(start, handed_out) if handed_out else start, place.step + handed_out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken; wins over any earlier call.

        Batch size, world size, tail, lanes, prefetch depth and nodes after the gather may differ.

        Raises:
            StateError: the state is foreign, newer, or of another plan, with every field that
                differs and both values; the loader stays as it was.
        """
        try:
            cursor, step, nodes = read_loader_state(state, self._chain.order)
        except StateError as error:
            epoch = saved_epoch(state)
            if self._strict or epoch is None:
                raise
            warnings.warn(f"starting epoch {epoch} anew (strict=False): {error}", stacklevel=2)
            cursor, step, nodes = self._epoch_start(epoch), 0, None
        nodes = self._chain.fitting(nodes)
        self._generation += 1
        self._stand(Place(cursor, step, is_kept=True, nodes=nodes))

    def close(self) -> None:
        """End iterators, threads and leases; a shared pool stays, and a later `iter` works.

        Chunks kept in a pool that `build_loader` made for this loader leave memory.
        """
        if os.getpid() != self._pid:
            return
        self._generation += 1
        self._is_running = False
        self._peeked = None
        self._chain.close()

    def __enter__(self) -> Self:
        """Itself; closed at the end of the block."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Configuration and place; a copy goes on where this loader stands."""
        state = dict(self.__dict__)
        del state["_pid"]
        if self._handed_out:
            state["_place"] = self._place_after(self._handed_out)
        elif self._place is not None:
            state["_place"] = dataclasses.replace(self._place, is_checked=False, is_begun=False)
        state.update(_handed_out=0, _n_batches=0, _is_running=False, _is_over=False)
        state.update(_peeked=None, _error=None, _ends_with_loader=False)
        state["_nodes"] = None if state["_place"] is None else state["_place"].nodes
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the process that unpickles."""
        self.__dict__.update(state)
        self._pid = os.getpid()
