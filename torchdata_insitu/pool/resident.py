"""A chunk that has a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.arena import Arena
from torchdata_insitu.pool.debug_mode import holds
from torchdata_insitu.pool.pool_pass import PoolPass

if TYPE_CHECKING:
    from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["Resident"]


class Resident:
    """A chunk in memory or on its way there; as a `SlotFill` it is answered exactly once.

    Attributes:
        key: the chunk.
        arena: where its slot is.
        slot: number of the slot.
        out: the slot's memory.
        is_ready: whether its rows can be read.
        is_stale: whether it leaves memory with its last lease, instead of being kept.
        leases: how often it is leased, over all passes.
        loader: the pass whose loader was asked to fill it; None once it is ready.
        n_missing: stored chunks of it that were not there and were filled.
        released_at: how many releases there had been when its last lease was given back.
        waiters: who waits for its rows.
    """

    __slots__ = (
        "__weakref__",
        "_pool",
        "arena",
        "is_ready",
        "is_stale",
        "key",
        "leases",
        "loader",
        "n_missing",
        "out",
        "released_at",
        "slot",
        "waiters",
    )

    def __init__(self, key: ChunkKey, arena: Arena, slot: int, loader: PoolPass) -> None:
        """Take the slot; nothing is in it yet."""
        # Gone once it is ready: a pool and what it keeps would only be collected as a cycle.
        self._pool: ChunkPool | None = loader.pool
        self.key = key
        self.arena = arena
        self.slot = slot
        self.out: np.ndarray = arena.memory(slot)
        self.is_ready = False
        self.is_stale = False
        self.n_missing = 0
        self.leases = 0
        self.released_at = 0
        self.loader: PoolPass | None = loader
        self.waiters: list[tuple[PoolPass, Admission]] = []

    def unwait(self, pool_pass: PoolPass) -> set[Admission]:
        """Let a pass wait no more; called under the pool's lock.

        Returns:
            Who waited for it.
        """
        waiting = {admission for waiter, admission in self.waiters if waiter is pool_pass}
        self.waiters = [waiter for waiter in self.waiters if waiter[0] is not pool_pass]
        return waiting

    def fail(self, error: BaseException | None) -> list[Admission]:
        """Take the leases of all who wait for rows that will not come.

        Called under the pool's lock.

        Returns:
            Whom to wake.
        """
        waiters, self.waiters = self.waiters, []
        for pool_pass, admission in waiters:
            if error is not None:
                admission.fail(error)
            admission.leased.remove(self.key)
            if pool_pass.leases.pop(self.key, 0):
                pool_pass.held_bytes -= self.arena.shape.slot_bytes
        self.leases = 0
        return [admission for _, admission in waiters]

    def finish(self, error: BaseException | None, n_missing: int = 0) -> None:
        """The last writer left the slot: with all rows in it, or with what kept them."""
        self.n_missing = n_missing
        self._told().landed(self, error, is_cancelled=False)

    def abandon(self) -> None:
        """The last writer left the slot, and the load was cancelled."""
        self._told().landed(self, None, is_cancelled=True)

    def settle(self) -> None:
        """Its rows can be read; called under the pool's lock.

        What is kept outlives the pass, whose reader keeps a store, threads and descriptors.
        """
        self.is_ready = True
        self.loader = None
        self._pool = None

    def _told(self) -> ChunkPool:
        pool = self._pool
        holds("P2: a chunk is READY once per fill", pool is not None, self.key)
        return cast("ChunkPool", pool)
