"""Nodes that stand in an order: a state that is one place of it, and the verbs."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, ClassVar

from torchdata_insitu.errors import ClosedError
from torchdata_insitu.nodes.order import AnyCursor, Order
from torchdata_insitu.nodes.verbs import NodeWithVerbs
from torchdata_insitu.process_check import check_process

__all__ = ["OrderedNode"]


class OrderedNode[T, C: AnyCursor](NodeWithVerbs[T]):
    """A node whose state is the place of the next item it will hand out.

    Subclasses say which order they stand in (`order`), where their items come from (`_start`),
    make one (`_make`) and tell the place of the one after it (`_cursor_after`).

    State:
        The place as plain JSON. At the end of an epoch it says so, and resetting to it gives
        `StopIteration` at once: no node turns an end into the next beginning by itself, except
        that `reset(None)` goes on to the next epoch once an item was handed out.

    Threads:
        One thread at a time, not always the same one. `interrupt` and `shutdown` may be called
        from any thread.
    """

    # Attributes that belong to a running pass and are not pickled.
    _RUNTIME: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        """Start nothing: rank, threads and reads wait for the first `next`."""
        super().__init__()
        self._pid = os.getpid()
        self._sought: C | None = None
        self._cursor: C | None = None
        self._upcoming: C | None = None
        self._handed_out = False
        self._at_end = False
        self._error: Exception | None = None

    @property
    @abstractmethod
    def order(self) -> Order[C]:
        """The order this node stands in."""

    @abstractmethod
    def _start(self, cursor: C) -> None:
        """Begin a pass at a place; ends what ran before. Does no I/O and starts no thread."""

    @abstractmethod
    def _make(self) -> T:
        """The next item; `StopIteration` at the end of the epoch."""

    @abstractmethod
    def _cursor_after(self, item: T) -> C:
        """The place of the item that follows `item`."""

    def seek(self, cursor: C) -> None:
        """Let the next `reset(None)` start at a place."""
        self._sought = cursor

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `StateError` unless `reset` could stand at a state."""
        self.order.read_cursor(state)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Stand at a state, or at the place the rules of `reset(None)` give.

        Args:
            initial_state: a state of this node, for one below the gather also that of any other
                node of its chain, or None: the place set by `seek` if there is one; else the start
                of the next epoch if an item was handed out since the last reset or the node stands
                at its end; else the start of the present epoch.

        Raises:
            StateError: the state is foreign, newer, or of another plan; the node stays as it was.
        """
        cursor = self._target(initial_state)
        super().reset(initial_state)
        self._sought = None
        self._handed_out = False
        self._error = None
        self._at_end = self.order.is_at_end(cursor)
        self._cursor = self._upcoming = cursor
        self._start(cursor)

    def _target(self, state: dict[str, Any] | None) -> C:
        order = self.order
        if state is not None:
            return order.read_cursor(state)
        if self._sought is not None:
            return self._sought
        if self._cursor is None:
            return order.start_of(0)
        if self._handed_out or self._at_end:
            return order.next_epoch(self._cursor)
        return order.start_again(self._cursor)

    def next(self) -> T:
        """The next item.

        Raises:
            StopIteration: the epoch is over.
            ClosedError: in a forked child, after `shutdown`, or when `interrupt` was called
                meanwhile.
            Exception: an error is raised again by every further call until the node is reset, so
                that one which is caught cannot look like the end of the epoch. The state stays at
                the item that failed.
        """
        check_process(self, self._pid)
        if self._error is not None:
            raise self._error
        before = self._upcoming, self._handed_out
        try:
            item = self._make()
            self._upcoming = self._cursor_after(item)
            self._handed_out = True
            return item  # noqa: TRY300 - an interrupt may come until it is handed out
        except StopIteration:
            self._at_end = True
            raise
        except Exception as error:
            self._error = error
            raise
        except BaseException as error:
            self._upcoming, self._handed_out = before
            self._error = ClosedError(f"next() was left by {type(error).__name__}: reset the node")
            raise

    @property
    def cursor(self) -> C:
        """The place of the next item."""
        return self._upcoming or self._sought or self.order.start_of(0)

    def get_state(self) -> dict[str, Any]:
        """The place of the next item, as plain JSON."""
        return self.order.write_cursor(self.cursor)

    def interrupt(self) -> None:
        """Wake a blocked `next`; it raises `ClosedError` and the node can be reset."""

    def shutdown(self) -> None:
        """Return threads, leases and reads; idempotent, and a later reset starts anew."""
        msg = f"{type(self).__name__} was shut down: reset it before asking for another item"
        # First, for a `next` on another thread that looks at it once it has begun something.
        self._error = ClosedError(msg)
        self._stop()

    def _stop(self) -> None:
        """Return what a running pass holds; idempotent."""

    def __getstate__(self) -> dict[str, Any]:
        """Configuration and place, without what belongs to a running pass."""
        state = {**self.__dict__, **self._RUNTIME}
        if self._cursor is not None:
            state["_sought"] = self.cursor
        # The copy is reset before its first item, and then stands where this node stands.
        state.update(_BaseNode__initialized=False, _cursor=None, _upcoming=None)
        state.update(_handed_out=False, _at_end=False, _error=None)
        del state["_pid"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the process that unpickles."""
        self.__dict__.update(state)
        self._pid = os.getpid()
