"""Makes batches ahead of the consumer on one thread, and always knows which were handed out."""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from torchdata_insitu.errors import ClosedError, StateError
from torchdata_insitu.nodes.collection import when_collected
from torchdata_insitu.nodes.prefetch_channel import PrefetchChannel
from torchdata_insitu.nodes.verbs import NodeWithVerbs
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.whole_number import whole_number
from torchdata_insitu.process_check import check_process

__all__ = ["Prefetcher"]

T = TypeVar("T")

SOURCE_KEY = "source"


def source_state(state: Any, node: object) -> dict[str, Any] | None:
    """The state of the source inside the state of a node that only counts.

    Raises:
        StateError: the state is of another kind of node.
    """
    if state is None:
        return None
    if not isinstance(state, dict) or set(state) != {SOURCE_KEY}:
        keys = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        msg = (
            f"the state of {type(node).__name__} has the one key {SOURCE_KEY!r}, but this one has "
            f"{keys}: it was saved by another node or another chain"
        )
        raise StateError(msg)
    inner: dict[str, Any] | None = state[SOURCE_KEY]
    return inner


def check_source_state(state: dict[str, Any], node: BaseNode[Any]) -> None:
    """Check a state of a node that only counts, down to the first node of somebody else.

    Raises:
        StateError: a node below `node` could not stand at it.
    """
    below = source_state(state, node)
    check = getattr(node.source, "check_state", None)
    if below is not None and check is not None:
        check(below)


class Prefetcher(NodeWithVerbs[T]):
    """Keeps `prefetch_factor` items of its source ready.

    Unlike torchdata's node of that name it never resets a source that its old thread is still
    inside, hands an error on as the object it is and again on every further `next`, and passes
    `interrupt` and `shutdown` on.

    Args:
        source: any node; its state is taken after each item.
        prefetch_factor: items made ahead, at least 1. Small batches, of which a `GatherNode` makes
            several at a time, are handed over together: then those that were made with the last one
            come on top.

    State:
        `{"source": ...}`, the state of the source after the item last handed out.

    Threads:
        One, started at the first `next` and ended by reset, shutdown or collection.

    Raises:
        PlanError: `prefetch_factor` is below 1.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata.nodes import IterableWrapper
        >>> node = tdi.Prefetcher(IterableWrapper(range(3)), 2)
        >>> list(node)
        [0, 1, 2]
    """

    def __init__(self, source: BaseNode[T], prefetch_factor: int = 2) -> None:
        """Prepare; the thread starts at the first `next`."""
        super().__init__()
        self.source = source
        self.prefetch_factor = whole_number("prefetch_factor", prefetch_factor, least=1)
        self._pid = os.getpid()
        self._channel: PrefetchChannel | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._state: dict[str, Any] | None = None
        self._handed_out = False
        self._is_sought = False
        self._copied_state: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self._is_over = False

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `StateError` unless `reset` could stand at a state."""
        check_source_state(state, self)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Stand at a state; None leaves the choice to the source.

        A source that only ran ahead is put back first, so that its own rules see what was handed
        out and not what was prepared.

        Raises:
            StateError: a node of ours here or below cannot stand at the state; this one stays as it
                was. When a node of somebody else raises, every `next` does until a reset works.
            ClosedError: in a forked child.
        """
        check_process(self, self._pid)
        if initial_state is not None:
            self.check_state(initial_state)
        below = source_state(initial_state, self)
        self._end_thread()
        super().reset(initial_state)
        try:
            if initial_state is None and not self._is_sought:
                below = self._copied_state
                if self._state is not None and not self._handed_out:
                    self.source.reset(self._state)
            self.source.reset(below)
            self._state = self.source.state_dict()
        except Exception as error:
            self._error = error
            raise
        self._handed_out = self._is_sought = False
        self._is_over = False
        self._copied_state = self._error = None

    def next(self) -> T:
        """The next item, as soon as there is one.

        Raises:
            StopIteration: the source ended.
            ClosedError: in a forked child, after `shutdown`, interrupted meanwhile, or left by an
                interrupt before: which item that had, nobody knows.
        """
        check_process(self, self._pid)
        if self._error is not None:
            raise self._error
        if self._is_over:
            raise StopIteration
        before = self._state, self._handed_out
        try:
            channel = self._channel or self._start_thread()
            taken = channel.take()
            if taken is not None:
                item, self._state = taken
                self._handed_out = True
                return item  # type: ignore[no-any-return]
        except BaseException as error:
            if not isinstance(error, Exception):
                # An interrupt: the item that was on its way is not handed out.
                self._state, self._handed_out = before
                what = f"next() was left by {type(error).__name__}: reset the node"
                self._error = ClosedError(what)
            raise
        end = channel.end
        if end is None:
            self._error = ClosedError("the wait for a batch was interrupted: reset the node")
            raise self._error
        # The thread is over. What would stop it goes too, since an error that is raised here holds
        # this node through its traceback, and is held by the nodes that the thread knows.
        if isinstance(end, StopIteration):
            self._is_over = True
            self._end_thread()
            raise StopIteration
        self._error = end
        self._end_thread()
        # The traceback of an error holds the channel and this frame, which must not hold the error.
        channel.end = None
        del end
        raise self._error

    def get_state(self) -> dict[str, Any]:
        """The state of the source after the item last handed out."""
        return {SOURCE_KEY: self._state}

    def seek(self, cursor: Cursor) -> None:
        """Let the next `reset(None)` leave the place to the nodes below, which were told."""
        del cursor
        self._end_thread()
        self._is_sought = True

    def _start_thread(self) -> PrefetchChannel:
        channel = self._channel = PrefetchChannel(self.source, self.prefetch_factor)
        # The thread must not keep this node alive, for its collection is what stops the thread.
        self._finalizer = when_collected(self, channel.stop)
        channel.start()
        return channel

    def _end_thread(self) -> None:
        # The finalizer can be called once only, and an interrupt may leave `stop` half way: then
        # the next call here has to wait for the thread again.
        channel, finalizer = self._channel, self._finalizer
        if channel is not None:
            channel.stop()
        if finalizer is not None:
            finalizer.detach()
        self._channel = self._finalizer = None

    def interrupt(self) -> None:
        """Wake a blocked `next`, which raises `ClosedError`."""
        channel = self._channel
        if channel is not None:
            channel.leave()

    def shutdown(self) -> None:
        """Join the thread; idempotent."""
        self._end_thread()
        self._error = ClosedError("Prefetcher was shut down: reset it before asking again")

    def __getstate__(self) -> dict[str, Any]:
        """Configuration and place, without the thread."""
        state = dict(self.__dict__)
        state.update(_channel=None, _finalizer=None, _error=None, _BaseNode__initialized=False)
        # The source stands ahead of what was handed out; its copy is put back to that.
        if self._state is not None:
            state["_copied_state"] = self._state
        state.update(_state=None, _handed_out=False)
        del state["_pid"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the process that unpickles."""
        self.__dict__.update(state)
        self._pid = os.getpid()
