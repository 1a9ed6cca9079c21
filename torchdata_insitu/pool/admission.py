"""Waiting for chunks: one gate for all that a segment asked for."""

from __future__ import annotations

from torchdata_insitu.errors import ClosedError
from torchdata_insitu.gate import Gate
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.debug_mode import check_may_wait, is_debugging

__all__ = ["Admission"]


class Admission:
    """What a segment still waits for.

    The pool counts under its lock and wakes the waiter afterwards; `interrupt` may come from any
    thread. Each of the three ways out (all landed, one failed, interrupted) opens the same gate, so
    no wait can be left behind.

    Until it is claimed, the pool may take leases back for a pass that starts: then `n_left` rises
    again, and a wake-up that was on its way comes for nothing. `wait` therefore looks again.

    Attributes:
        n_left: chunks that are not readable yet.
        error: the first one that kept a chunk from landing.
        leased: chunks leased so far, in the order asked for.
        is_claimed: whether a consumer relies on what is leased.
    """

    __slots__ = ("_gate", "_interrupted", "error", "is_claimed", "leased", "n_left")

    def __init__(self, n_chunks: int) -> None:
        """Wait for `n_chunks` chunks; none means ready at once."""
        self.n_left = n_chunks
        self.error: BaseException | None = None
        self.leased: list[ChunkKey] = []
        self.is_claimed = False
        self._interrupted = False
        self._gate = Gate()

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
        self._gate.open()

    def interrupt(self) -> None:
        """End the wait with `ClosedError`."""
        self._interrupted = True
        self.wake()

    def wait(self) -> None:
        """Block until every chunk is readable.

        Raises:
            ClosedError: `interrupt` was called.
            Exception: what kept a chunk from landing, as it was raised.
        """
        if is_debugging():
            check_may_wait()
        while self.n_left and self.error is None and not self._interrupted:
            self._gate.wait()
        if self.error is not None:
            raise self.error
        if self._interrupted:
            msg = "the wait for chunks was interrupted: reset the node before asking again"
            raise ClosedError(msg)
