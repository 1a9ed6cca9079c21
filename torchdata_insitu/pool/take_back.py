"""Room for the floor of a pass that starts, from what other passes read ahead."""

from collections.abc import Callable, Sequence

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.pool_pass import PoolPass

__all__ = ["take_back"]


def take_back(
    passes: Sequence[PoolPass],
    budget_bytes: int,
    unadmit: Callable[[PoolPass, Admission, ChunkKey], None],
) -> None:
    """Take leases that nobody relies on yet, until every live floor has room.

    Chunks go back to the head of their queue in draw order, the last one first.

    Args:
        passes: the live passes, whose floors together fit the budget.
        budget_bytes: the budget.
        unadmit: takes back a chunk that an admission leased.
    """
    excess = sum(pool_pass.reserved_bytes for pool_pass in passes) - budget_bytes
    for pool_pass in passes:
        for admission in reversed(pool_pass.ahead):
            while excess > 0 and pool_pass.held_bytes > pool_pass.floor_bytes:
                if admission.is_claimed or not admission.leased:
                    break
                before = pool_pass.reserved_bytes
                unadmit(pool_pass, admission, admission.leased[-1])
                excess -= before - pool_pass.reserved_bytes
