"""The loader: a chain as an iterable with a length, a place, and an exact state."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.batch_sampler_hook import BatchSamplerHook
from torchdata_insitu.chain import Chain
from torchdata_insitu.errors import ClosedError, PlanError, StateError
from torchdata_insitu.loader_iterator import LoaderIterator
from torchdata_insitu.loader_place import LoaderPlace, Place
from torchdata_insitu.loader_state import (
    growth_option,
    read_loader_state,
    saved_epoch,
    write_loader_state,
)
from torchdata_insitu.loader_stats import LoaderStats
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.truth_value import truth_value
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.process_check import check_process

__all__ = ["InSituLoader"]


class InSituLoader:
    """An iterable over a chain of nodes, with the state, length and lifecycle a trainer needs.

    `state_dict()` names a place in the global order of an epoch: it is plain JSON, the same on
    every rank, and independent of batch size, world size, prefetch depth and what nodes follow the
    gather. The epoch advances at `iter()` once a batch of the current one was handed out.

    Args:
        node: the last node of the chain, or of several that a `MixNode` mixes. After the gather
            and the mix any node that gives one item for one item may follow.
        strict: refuse a state of another plan. False starts the saved epoch anew instead.
        on_growth: what to do with a state from before samples were appended to what is drawn.
            `"refuse"` it, or `"finish_epoch"`: finish its epoch over the draws that it began with,
            in the same order, and draw from all of them afterwards. A state of a mix is refused.
            Samples appended outside of the split are no difference.
        own_pool: a pool that nobody else uses, whose memory `close` gives back to the system.

    Raises:
        PlanError: no planner below `node`, several without a `MixNode`, a node that changes the
            number of items, `strict` is no truth value, or an unknown `on_growth`.

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
        on_growth: str = "refuse",
        own_pool: ChunkPool | None = None,
    ) -> None:
        """Stand at the start of epoch 0; nothing is read and no thread started."""
        self._chain = Chain(node, own_pool)
        self._strict = truth_value("strict", strict)
        self._on_growth = growth_option(on_growth)
        self._pid = os.getpid()
        self._place = LoaderPlace(self._chain.order)
        self._generation = self._n_batches = 0
        self._is_running = self._ends_with_loader = False
        self._peeked: tuple[dict[str, Tensor], dict[str, Any] | None] | None = None
        self._error: Exception | None = None
        self._progress: Callable[[], int | None] | None = None

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

    @property
    def cursor(self) -> Cursor | MixCursor:
        """The place of the next batch; of the next epoch once nothing of this one is left."""
        return self._place.cursor

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
        return self._place.step

    def __len__(self) -> int:
        """Batches of the whole epoch on each rank, those handed out before a resume included."""
        return self._place.n_batches

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
        return sum(self._chain.order.reads_from(self._place.start.cursor).values())

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
        if self._place.next_pass(failed=self._error is not None):
            self._leave_pass()
        return LoaderIterator(self, self._generation)

    def _leave_pass(self) -> None:
        self._is_running = False
        self._peeked = None
        self._error = None

    def _next(self, generation: int) -> dict[str, Tensor]:
        check_process(self, self._pid)
        if generation != self._generation:
            msg = (
                "this iterator is not the loader's newest: a later iter(), load_state_dict() or "
                "close() ended it"
            )
            raise ClosedError(msg)
        try:
            batch, nodes = self._pull()
        except StopIteration:
            self._place.is_over = True
            raise
        self._peeked = None
        self._n_batches += 1
        self._place.count(nodes)
        return batch

    def _pull(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """The next batch and the state of foreign nodes after it, without counting it."""
        if self._error is not None:
            raise self._error
        if self._peeked is not None:
            return self._peeked
        try:
            batch = self._batch_of_chain()
            # Taken now: later the nodes may stand at a batch that failed.
            self._peeked = batch, self._chain.foreign_state()
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
        place = self._place
        expected = place.n_planned
        if not self._is_running:
            if place.handed_out == expected:
                raise StopIteration
            if not self._ends_with_loader:
                self._chain.end_with(self)
                self._ends_with_loader = True
            self._chain.start(place.cursor, place.nodes)
            place.begin()
            self._is_running = True
        return self._chain.next_batch(place.handed_out, expected)

    def peek(self) -> dict[str, Tensor]:
        """The batch the next `next` will give; moves nothing.

        Raises:
            StopIteration: the epoch is over.
        """
        check_process(self, self._pid)
        return self._pull()[0]

    def skip(self, n_batches: int) -> None:
        """Go on `n_batches` further in this epoch without reading what is skipped.

        Raises:
            PlanError: negative, or more than are left.
        """
        if self._place.skip(n_batches):
            self._leave_pass()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be the given epoch from its start.

        A place that was loaded or skipped to, or where an error came up, is kept while nothing was
        handed out from it, with one warning if it is of another epoch: trainers call this at every
        epoch, and a resume must survive it.

        Raises:
            PlanError: the epoch is negative.
            TypeError: it is no integer.
        """
        if self._place.set_epoch(epoch):
            self._leave_pass()

    def _enter_epoch(self, epoch: int) -> None:
        if self._place.enter_epoch(epoch):
            self._leave_pass()

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch handed out last: plain JSON, fresh, without side effects."""
        place = self._place.after_trained(None if self._progress is None else self._progress())
        state = write_loader_state(self._chain.order, place.cursor, place.step)
        if place.nodes is not None:
            state["nodes"] = copy.deepcopy(place.nodes)
        return state

    @property
    def progress(self) -> Callable[[], int | None] | None:
        """For trainers: a function that says how many batches of this epoch were trained on.

        It counts those before a resume and those skipped too, as `step` does, and may give None
        where it does not know. `state_dict` then names the place after that many batches if at
        most two more were handed out: a trainer can look one ahead, and fail in the one it works
        on. Any other number is of another epoch, and all that was handed out counts. A copy or a
        pickled loader has none.

        Raises:
            PlanError: on assignment, neither a function nor None.

        Example:
            >>> import torchdata_insitu as tdi
            >>> from torchdata_insitu.testing import make_store
            >>> store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
            >>> views = {"x": tdi.open_arrays(store)["t2m"]}
            >>> loader = tdi.build_loader(store, views, batch_size=2, budget_bytes="10%")
            >>> n_trained = 0
            >>> loader.progress = lambda: n_trained
            >>> _ = next(iter(loader))
            >>> loader.position, loader.state_dict()["position"]
            (2, 0)
            >>> loader.close()
        """
        return self._progress

    @progress.setter
    def progress(self, progress: Callable[[], int | None] | None) -> None:
        if progress is not None and not callable(progress):
            msg = f"progress is {progress!r}, but must be a function that gives a number, or None"
            raise PlanError(msg)
        self._progress = progress

    @property
    def batch_sampler(self) -> BatchSamplerHook:
        """For trainers, which call `batch_sampler.sampler.set_epoch` before each epoch.

        `batch_size` is the largest of the sources of a mix.
        """
        branches = self._chain.branches.values()
        return BatchSamplerHook(self, max(branch.planner.plan.batch_size for branch in branches))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken; wins over any earlier call.

        Batch size, world size, tail, lanes, prefetch depth and nodes after the gather may differ.

        Raises:
            StateError: the state is foreign, newer, or of another plan, with every field that
                differs and both values; the loader stays as it was.
        """
        try:
            cursor, step, nodes = read_loader_state(state, self._chain.order, self._on_growth)
        except StateError as error:
            epoch = saved_epoch(state)
            if self._strict or epoch is None:
                raise
            warnings.warn(f"starting epoch {epoch} anew (strict=False): {error}", stacklevel=2)
            cursor, step, nodes = self._place.epoch_start(epoch), 0, None
        nodes = self._chain.fitting(nodes)
        self._generation += 1
        self._place.stand(Place(cursor, step, is_kept=True, nodes=nodes))
        self._leave_pass()

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
        state.update(_n_batches=0, _is_running=False, _ends_with_loader=False)
        state.update(_peeked=None, _error=None, _progress=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the process that unpickles."""
        self.__dict__.update(state)
        self._pid = os.getpid()
