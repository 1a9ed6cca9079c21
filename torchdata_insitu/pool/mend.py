"""Counting again after an interrupt, which can come between any two steps under the lock."""

from collections.abc import Collection, Iterable

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.arena import Arena
from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.resident import Resident

__all__ = ["mend_counts"]


def mend_counts(
    passes: Collection[PoolPass],
    residents: dict[ChunkKey, Resident],
    disowned: Iterable[Resident],
    arenas: Collection[Arena],
) -> int:
    """Make every count agree with the two facts that are one step each.

    These are what a live pass says it leases, and which chunk has which slot. From them follow the
    leases and the bytes held, which slots are idle, and which chunks nobody needs.

    Args:
        passes: the live passes.
        residents: chunks that have a slot; those that nobody leases are taken out.
        disowned: chunks the pool forgot, whose slots may still be written.
        arenas: all arenas.

    Returns:
        Bytes of slots that are charged.
    """
    for pool_pass in passes:
        for key in [key for key in pool_pass.leases if key not in residents]:
            del pool_pass.leases[key]
        pool_pass.held_bytes = sum(residents[k].arena.shape.slot_bytes for k in pool_pass.leases)
    for key, resident in list(residents.items()):
        resident.leases = sum(pool_pass.leases.get(key, 0) for pool_pass in passes)
        resident.waiters = [waiter for waiter in resident.waiters if waiter[0] in passes]
        if resident.is_ready and not resident.leases:
            del residents[key]
    forgotten = list(disowned)
    in_use: dict[int, set[int]] = {id(arena): set() for arena in arenas}
    for resident in [*residents.values(), *forgotten]:
        in_use[id(resident.arena)].add(resident.slot)
    for arena in arenas:
        arena.recount(in_use[id(arena)])
    charged = sum(arena.n_charged * arena.shape.slot_bytes for arena in arenas)
    return charged - sum(resident.arena.shape.slot_bytes for resident in forgotten)
