"""What a pool has to do once its lock is free: waiters to wake, slots to fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.resident import Resident

__all__ = ["PoolWork"]


class PoolWork:
    """Collected under the lock and done after it.

    Attributes:
        fills: chunks to load, by the pass whose loader is asked.
        woken: waiters that have something to look at.
        interrupted: waiters whose pass has ended.
        handed_over: chunks whose loader is just being asked.
        lost: chunks whose loader may or may not have accepted them, and what came in between.
    """

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.fills: dict[PoolPass, list[Resident]] = {}
        self.woken: list[Admission] = []
        self.interrupted: list[Admission] = []
        self.handed_over: list[Resident] = []
        self.lost: list[tuple[list[Resident], BaseException]] = []

    def run(self, disown: Callable[[Sequence[Resident], BaseException], None]) -> None:
        """Do what is left; after an interrupt it can be called again and goes on.

        Args:
            disown: called with chunks of which an error leaves unknown whether their load was
                accepted, and with the error. They are never handed over a second time: two writers
                of one slot would not know of each other.
        """
        # Each item goes once it is done; to wake, to interrupt and to disown twice does no harm.
        while self.woken:
            self.woken[-1].wake()
            self.woken.pop()
        while self.interrupted:
            self.interrupted[-1].interrupt()
            self.interrupted.pop()
        while self.lost:
            disown(*self.lost[-1])
            self.lost.pop()
        while self.fills:
            pool_pass = next(iter(self.fills))
            self.handed_over = self.fills[pool_pass]
            del self.fills[pool_pass]
            pool_pass.load(self.handed_over)
            self.handed_over = []
