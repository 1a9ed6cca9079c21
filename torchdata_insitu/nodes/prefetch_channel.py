"""The thread that makes items ahead, and what it shares with its consumer."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import Any

from torchdata.nodes import BaseNode

from torchdata_insitu.gate import Gate
from torchdata_insitu.nodes.collection import is_exiting
from torchdata_insitu.nodes.verbs import NodeWithVerbs, interrupt, nodes_of_ours

__all__ = ["PrefetchChannel"]

_logger = logging.getLogger(__name__)
_STUCK_S = 10.0


class PrefetchChannel:
    """A thread that fills a queue, and the ways to wait for it and to end it.

    The thread knows nothing else of the node whose items it makes. It holds no lock while it wakes
    the consumer, nor the consumer while it wakes the thread: with small batches most of a hand-over
    would be the one waiting for the lock of the other.

    Attributes:
        end: why the thread is over: `StopIteration`, or what the source raised.
        is_stopping: whether it was told to leave.
    """

    def __init__(self, source: BaseNode[Any], n_ahead: int) -> None:
        """Prepare.

        Args:
            source: where items come from; its state is taken after each.
            n_ahead: items that are kept ready, with those that the source made together with the
                last of them.
        """
        self._source = source
        self._n_ahead = n_ahead
        self._items: deque[tuple[Any, dict[str, Any]]] = deque()
        self._has_news = Gate()
        self._has_room = Gate()
        self._has_left = Gate()
        self._is_inside = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.end: BaseException | None = None
        self.is_stopping = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="insitu-prefetch", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        """The next item and the state after it, as soon as there is one; None if none comes."""
        while True:
            # In this order: the last item comes before the end does.
            is_over = self.end is not None or self.is_stopping
            taken = self._pop()
            # Also where nothing was taken: an interrupt may have come after the last one was. While
            # enough are left, the thread is not woken only to find that there is no room.
            if len(self._items) < self._n_ahead:
                self._has_room.open()
            if taken is not None:
                if self._items:
                    self._has_news.open()
                return taken
            if is_over:
                # For another thread that waits too.
                self._has_news.open()
                return None
            self._has_news.wait()

    def _pop(self) -> tuple[Any, dict[str, Any]] | None:
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def _run(self) -> None:
        """Fill the queue until it is told to stop, the source ends, or fails."""
        # Thread C stops the channel: it says so and then looks whether this thread is inside, which
        # says that it is and then looks whether it is to stop. One of them sees the other.
        self._is_inside = True
        knows_ready = isinstance(self._source, NodeWithVerbs)
        try:
            while not self.is_stopping:
                if len(self._items) >= self._n_ahead:
                    self._has_room.wait()
                    continue
                self._make_one()
                # Small items are made several at a time. They are in memory, and to hand each over
                # by itself would take longer than to make it.
                while knows_ready and self._source.n_ready and not self.is_stopping:
                    self._make_one()
                self._has_news.open()
        except BaseException as error:  # noqa: BLE001 - handed to the consumer as it is
            # A traceback holds this frame, and with it every node. An end needs none.
            self.end = StopIteration() if isinstance(error, StopIteration) else error
        finally:
            self._is_inside = False
            self._has_left.open()
            self._has_news.open()

    def _make_one(self) -> None:
        # The queue's reference is the only one that is left, so that batch memory is recycled as
        # soon as the consumer drops it.
        item = next(self._source)
        self._items.append((item, self._source.state_dict()))

    def leave(self) -> bool:
        """Wake the thread and the consumer for good; False in a forked child, which has neither."""
        if os.getpid() != self._pid:
            return False
        self.is_stopping = True
        self._has_room.open()
        self._has_news.open()
        return True

    def stop(self) -> None:
        """Let the thread leave the source, and wait until it has.

        The consumer's thread C and the prefetching thread P: C sets `is_stopping` and interrupts
        the nodes below. P is either waiting for room (woken here), inside `next` of a node of
        ours (ends with ClosedError), or inside a node of somebody else, which C waits for:
        resetting a source that P is still inside would let P swallow an item of the new pass.
        """
        thread = self._thread
        if not self.leave() or thread is None or thread.ident == threading.get_ident():
            return
        # Not `join`: one that is interrupted takes the thread for ended ever after. And a thread
        # whose start was interrupted leaves before it looks at the source.
        if self._is_inside:
            interrupt(nodes_of_ours(self._source))
        while self._is_inside and not is_exiting():
            if not self._has_left.wait(_STUCK_S):
                _logger.warning(
                    "waiting for %s to leave a node that cannot be interrupted", thread.name
                )
        # For another thread that stops it too.
        self._has_left.open()
        if thread.ident is not None:
            thread.join(_STUCK_S)
        self._items.clear()
