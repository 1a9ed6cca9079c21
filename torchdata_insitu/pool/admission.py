"""Waiting for chunks: one event for all that a segment asked for."""

from __future__ import annotations

import threading

from torchdata_insitu.errors import ClosedError

__all__ = ["Admission"]


class Admission:
    """What a segment still waits for.

    The pool counts down under its lock and wakes the waiter afterwards; ``interrupt`` may come from
    any thread. Each of the three ways out (all landed, one failed, interrupted) sets the same
    event, so no wait can be left behind.
    """

    __slots__ = ("_event", "_interrupted", "error", "n_left")

    def __init__(self, n_chunks: int) -> None:
        """Wait for ``n_chunks`` chunks; none means ready at once."""
        self.n_left = n_chunks
        self.error: BaseException | None = None
        self._interrupted = False
        self._event = threading.Event()
        if n_chunks == 0:
            self._event.set()

    def count_down(self) -> bool:
        """One more chunk is readable; called under the pool's lock.

        Returns:
            Whether the waiter has to be woken.
        """
        self.n_left -= 1
        return self.n_left == 0

    def fail(self, error: BaseException) -> None:
        """One chunk will not come; the first error is kept. Called under the pool's lock."""
        if self.error is None:
            self.error = error

    def wake(self) -> None:
        """Let the waiter look again."""
        self._event.set()

    def interrupt(self) -> None:
        """End the wait with ``ClosedError``."""
        self._interrupted = True
        self._event.set()

    def wait(self) -> None:
        """Block until every chunk is readable.

        Raises:
            ClosedError: ``interrupt`` was called.
            Exception: what kept a chunk from landing, as it was raised.
        """
        self._event.wait()
        if self.error is not None:
            raise self.error
        if self._interrupted:
            message = "the wait for chunks was interrupted: reset the node before asking again"
            raise ClosedError(message)
