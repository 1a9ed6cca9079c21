"""What all nodes of the chain have in common: a state that is one cursor, and the verbs."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torchdata.nodes import BaseNode

from torchdata_insitu.errors import ClosedError
from torchdata_insitu.nodes.graph import find_planner
from torchdata_insitu.planning.cursor import Cursor

if TYPE_CHECKING:
    from torchdata_insitu.nodes.chunk_planner import ChunkPlanner

__all__ = ["CursorNode", "SourcedNode", "check_process"]

T = TypeVar("T")


def check_process(owner: object, pid: int) -> None:
    """Refuse to go on in a forked child: threads and native runtimes did not come along.

    Raises:
        ClosedError: this process is not the one that made `owner`.
    """
    if os.getpid() != pid:
        msg = (
            f"{type(owner).__name__} was made in process {pid} and used in its forked child "
            f"{os.getpid()}: start workers with the 'spawn' method, or make the loader in the child"
        )
        raise ClosedError(msg)


class CursorNode(BaseNode[T]):
    """A node whose state is the cursor of the next item it will hand out.

    Subclasses say where their items come from (`_start`), make one (`_make`) and tell the
    cursor of the one after it (`_cursor_after`).

    State:
        The cursor as plain JSON. At the end of an epoch it stands at position N, and resetting to
        it gives `StopIteration` at once: no node turns an end into the next beginning by itself,
        except that `reset(None)` goes on to the next epoch once an item was handed out.

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
        self._sought: Cursor | None = None
        self._cursor: Cursor | None = None
        self._upcoming: Cursor | None = None
        self._handed_out = False
        self._at_end = False
        self._error: Exception | None = None

    @property
    @abstractmethod
    def planner(self) -> ChunkPlanner:
        """The planner this node stands on."""

    @abstractmethod
    def _start(self, cursor: Cursor) -> None:
        """Begin a pass at a cursor; ends what ran before. Does no I/O and starts no thread."""

    @abstractmethod
    def _make(self) -> T:
        """The next item; `StopIteration` at the end of the epoch."""

    @abstractmethod
    def _cursor_after(self, item: T) -> Cursor:
        """The cursor of the item that follows `item`."""

    def seek(self, cursor: Cursor) -> None:
        """Let the next `reset(None)` start at a cursor."""
        self._sought = cursor

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `StateError` unless `reset` could stand at a state."""
        self.planner.read_cursor(state)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Stand at a state, or at the place the rules of `reset(None)` give.

        Args:
            initial_state: a state of any node of the chain, or None: the cursor set by `seek` if
                there is one; else the start of the next epoch if an item was handed out since the
                last reset or the node stands at its end; else the start of the present epoch.

        Raises:
            StateError: the state is foreign, newer, or of another plan; the node stays as it was.
        """
        cursor = self._target(initial_state)
        super().reset(initial_state)
        self._sought = None
        self._handed_out = False
        self._error = None
        self._at_end = cursor.position >= self.planner.plan.n_draws
        self._cursor = self._upcoming = cursor
        self._start(cursor)

    def _target(self, state: dict[str, Any] | None) -> Cursor:
        planner = self.planner
        if state is not None:
            return planner.read_cursor(state)
        if self._sought is not None:
            return self._sought
        if self._cursor is None:
            return planner.first_cursor()
        if self._handed_out or self._at_end:
            return planner.next_epoch(self._cursor)
        return Cursor(self._cursor.epoch, 0, self._cursor.lanes)

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
        try:
            item = self._make()
        except StopIteration:
            self._at_end = True
            raise
        except Exception as error:
            self._error = error
            raise
        except BaseException as error:
            self._error = ClosedError(f"next() was left by {type(error).__name__}: reset the node")
            raise
        self._handed_out = True
        self._upcoming = self._cursor_after(item)
        return item

    @property
    def cursor(self) -> Cursor:
        """The cursor of the next item."""
        return self._upcoming or self._sought or self.planner.first_cursor()

    def get_state(self) -> dict[str, Any]:
        """The cursor of the next item, as plain JSON."""
        return self.planner.write_cursor(self.cursor)

    def interrupt(self) -> None:
        """Wake a blocked `next`; it raises `ClosedError` and the node can be reset."""

    def shutdown(self) -> None:
        """Return threads, leases and reads; idempotent, and a later reset starts anew."""
        self._stop()
        msg = f"{type(self).__name__} was shut down: reset it before asking for another item"
        self._error = ClosedError(msg)

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
