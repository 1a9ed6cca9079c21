"""A chunk that has a slot, and what the pool has to do once its lock is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.arena import Arena
from torchdata_insitu.pool.pool_pass import PoolPass

if TYPE_CHECKING:
    from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["PoolWork", "Resident"]


class Resident:
    """A chunk in memory or on its way there; as a `SlotFill` it is answered exactly once.

    Attributes:
        key: the chunk.
        arena: where its slot is.
        slot: number of the slot.
        out: the slot's memory.
        is_ready: whether its rows can be read.
        leases: how often it is leased, over all passes.
        loader: the pass whose loader was asked to fill it.
        waiters: who waits for its rows.
    """

    __slots__ = (
        "_pool",
        "arena",
        "is_ready",
        "key",
        "leases",
        "loader",
        "out",
        "slot",
        "waiters",
    )

    def __init__(
        self, pool: ChunkPool, key: ChunkKey, arena: Arena, slot: int, loader: PoolPass
    ) -> None:
        """Take the slot; nothing is in it yet."""
        self._pool = pool
        self.key = key
        self.arena = arena
        self.slot = slot
        self.out: np.ndarray = arena.memory(slot)
        self.is_ready = False
        self.leases = 0
        self.loader = loader
        self.waiters: list[tuple[PoolPass, Admission]] = []

    def finish(self, error: BaseException | None) -> None:
        """The last writer left the slot: with all rows in it, or with what kept them."""
        self._pool.landed(self, error, is_cancelled=False)

    def abandon(self) -> None:
        """The last writer left the slot, and the load was cancelled."""
        self._pool.landed(self, None, is_cancelled=True)


class PoolWork:
    """Waiters to wake and slots to fill, collected under the lock and done after it."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.fills: dict[PoolPass, list[Resident]] = {}
        self.woken: list[Admission] = []
