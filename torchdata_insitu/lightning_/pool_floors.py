"""Whether loaders that are live at the same time fit into one pool."""

from __future__ import annotations

from collections.abc import Mapping

from torchdata_insitu.errors import BudgetError
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.pool.memory_budget import text_of_bytes

__all__ = ["check_floors"]


def check_floors(pool: ChunkPool, loaders: Mapping[str, InSituLoader]) -> None:
    """Refuse loaders whose floors together are more than the budget; nothing is read.

    Args:
        pool: the pool that they share.
        loaders: loaders that will be live at the same time, by the name of their split.

    Raises:
        BudgetError: each floor with its terms, and what the budget is.
    """
    needed = sum(_floor_bytes(loader) for loader in loaders.values())
    budget = pool.budget.grown_for(needed)
    if needed <= budget:
        return
    is_exact = text_of_bytes(needed) == text_of_bytes(budget)
    floors = "; ".join(_floor_text(name, loader) for name, loader in loaders.items())
    ways = f"lower block_chunks or raise budget_bytes to {needed}"
    if len(loaders) > 1:
        ways += ", or train with Trainer(limit_val_batches=0)"
    msg = (
        f"{' and '.join(map(repr, loaders))} are read at the same time and need "
        f"{f'{needed} B' if is_exact else text_of_bytes(needed)} but budget_bytes is "
        f"{pool.budget.text(budget, is_exact=is_exact)}: {floors}; {ways}"
    )
    raise BudgetError(msg)


# At the start of an epoch: one in progress that keeps more lanes finds out at its first batch.
def _terms(loader: InSituLoader) -> list[tuple[str, int, int]]:
    planner = loader.chain.planner
    return planner.floor_terms(planner.start_of(0).lanes)


def _floor_bytes(loader: InSituLoader) -> int:
    return sum(n_chunks * size for _, n_chunks, size in _terms(loader))


def _floor_text(name: str, loader: InSituLoader) -> str:
    parts = " + ".join(f"{array} {n} x {text_of_bytes(size)}" for array, n, size in _terms(loader))
    return f"{name!r} {text_of_bytes(_floor_bytes(loader))} ({parts})"
