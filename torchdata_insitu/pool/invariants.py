"""What is true of a pool whenever its lock is free, as assertions.

The numbers are those of the design: P1 bytes are written only in FILLING and read only in READY
under a lease; P2 a chunk becomes READY once per fill; P3 a slot leaves FILLING only when its last
writer has; P5 an old lease releases nothing. (P4, reads belong to the pool, shows in which loads
are asked for; P6, who may wait, is checked by those who wait.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.debug_mode import holds
from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.residency import Residency
from torchdata_insitu.pool.resident import Resident

__all__ = ["check_invariants", "check_landing", "check_readable"]


def check_invariants(passes: Collection[PoolPass], residency: Residency, budget_bytes: int) -> None:
    """Check all counts of a pool against each other; called under its lock.

    Raises:
        AssertionError: one of them is wrong.
    """
    leases: Counter[ChunkKey] = Counter()
    for pool_pass in passes:
        holds("P5: a closed pass is not live", not pool_pass.closed, pool_pass.name)
        leases.update(pool_pass.leases)
        held = sum(residency[key].arena.shape.slot_bytes for key in pool_pass.leases)
        holds("held bytes are those of leases", held == pool_pass.held_bytes, pool_pass.name, held)
    reserved = sum(pool_pass.reserved_bytes for pool_pass in passes)
    holds("leases and floors fit the budget", reserved <= budget_bytes, reserved, budget_bytes)
    for resident in residency:
        _check_resident(passes, resident, leases[resident.key])
    kept = [resident for resident in residency if resident.is_ready and not resident.leases]
    kept_bytes = sum(resident.arena.shape.slot_bytes for resident in kept)
    holds("what nobody leases is kept", len(kept) == residency.n_kept, len(kept), residency.n_kept)
    holds("kept bytes are counted", kept_bytes == residency.kept_bytes, kept_bytes)
    _check_slots(residency, budget_bytes)


def _check_resident(passes: Collection[PoolPass], resident: Resident, n_leases: int) -> None:
    key = resident.key
    holds("leases are those of the passes", resident.leases == n_leases, key, n_leases)
    if resident.is_ready:
        holds("P2: nobody waits for what is READY", not resident.waiters, key)
        return
    n_waiters = len(resident.waiters)
    holds("P1: who leases what is FILLING waits for it", n_waiters == n_leases, key, n_waiters)
    is_live = all(pool_pass in passes for pool_pass, _ in resident.waiters)
    holds("P5: only live passes wait", is_live, key)


def _check_slots(residency: Residency, budget_bytes: int) -> None:
    holders = [*residency, *residency.lost]
    for arena in residency.arenas:
        taken = [resident.slot for resident in holders if resident.arena is arena]
        holds("P3: a slot has one chunk", len(set(taken)) == len(taken), taken)
        n_in_use = arena.n_charged - arena.n_idle
        holds("a slot with memory has a chunk or is idle", n_in_use == len(taken), n_in_use, taken)
    charged = sum(
        (arena.n_charged - sum(lost.arena is arena for lost in residency.lost))
        * arena.shape.slot_bytes
        for arena in residency.arenas
    )
    holds("charged bytes are those of slots", charged == residency.charged_bytes, charged)
    holds("charged bytes fit the budget", charged <= budget_bytes, charged, budget_bytes)


def check_landing(resident: Resident, residency: Residency) -> None:
    """Check that a fill ends that is under way.

    Raises:
        AssertionError: it was answered for before, or the chunk has another slot by now.
    """
    holds("P2: a chunk is READY once per fill", not resident.is_ready, resident.key)
    is_known = residency.find(resident.key) is resident or any(
        lost.chunk() is resident for lost in residency.lost
    )
    holds("P3: the slot still belongs to the fill", is_known, resident.key)


def check_readable(pool_pass: PoolPass, residents: Iterable[Resident]) -> None:
    """Check that a pass may read the rows it asks the place of.

    Raises:
        AssertionError: a chunk is not leased by it, or not READY.
    """
    for resident in residents:
        holds("P1: a slot is read under a lease", resident.key in pool_pass.leases, resident.key)
        holds("P1: a slot is read when it is READY", resident.is_ready, resident.key)
