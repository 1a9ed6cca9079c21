"""Counting again after an interrupt, which can come between any two steps under the lock."""

from collections.abc import Collection

from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.residency import Residency

__all__ = ["mend_counts"]


def mend_counts(passes: Collection[PoolPass], residency: Residency) -> None:
    """Make every count agree with the two facts that are one step each.

    These are what a live pass says it leases, and which chunk has which slot. From them follow the
    leases and the bytes held, which slots are idle, which chunks are kept and what is charged.

    Args:
        passes: the live passes.
        residency: the chunks that have a slot.
    """
    for pool_pass in passes:
        for key, n_leases in list(pool_pass.leases.items()):
            if n_leases <= 0 or residency.find(key) is None:
                del pool_pass.leases[key]
        pool_pass.held_bytes = sum(
            residency[key].arena.shape.slot_bytes for key in pool_pass.leases
        )
    for resident in residency:
        resident.leases = sum(pool_pass.leases.get(resident.key, 0) for pool_pass in passes)
        resident.waiters = [waiter for waiter in resident.waiters if waiter[0] in passes]
    residency.recount()
