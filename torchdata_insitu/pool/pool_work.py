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
    """

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.fills: dict[PoolPass, list[Resident]] = {}
        self.woken: list[Admission] = []
        self.interrupted: list[Admission] = []

    def run(self, disown: Callable[[Sequence[Resident], BaseException], None]) -> None:
        """Wake and load; may be called again after an interrupt, and does what is left.

        Args:
            disown: called with chunks of which an error leaves unknown whether their load was
                accepted, and with the error.
        """
        while self.woken:
            self.woken[-1].wake()
            self.woken.pop()
        while self.interrupted:
            self.interrupted[-1].interrupt()
            self.interrupted.pop()
        while self.fills:
            pool_pass, fills = next(iter(self.fills.items()))
            try:
                pool_pass.load(fills)
            except BaseException as error:
                del self.fills[pool_pass]
                disown(fills, error)
                for fill in [fill for others in self.fills.values() for fill in others]:
                    fill.abandon()
                raise
            del self.fills[pool_pass]
