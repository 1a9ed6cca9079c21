"""One pass over a plan as the pool sees it: what it waits for, what it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchdata_insitu.errors import BudgetError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.memory_budget import PoolBudget, text_of_bytes

if TYPE_CHECKING:
    from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["PoolPass", "SlotFill", "budget_error"]


class SlotFill(Protocol):
    """A slot that waits for its rows; whoever loads it answers exactly once.

    Attributes:
        key: the chunk.
        out: the slot's memory, `(rows, *field_shape)`.
    """

    key: ChunkKey
    out: np.ndarray

    def finish(self, error: BaseException | None, n_missing: int = 0) -> None:
        """The last writer left `out`: with all rows in it, or with the error that kept them.

        Args:
            error: what kept them.
            n_missing: stored chunks that were not there and were filled.
        """

    def abandon(self) -> None:
        """The last writer left `out` and the load was cancelled: read again if waited for."""


class PoolPass:
    """The leases and the queue of one pass; closing it is the end of its generation.

    Releasing through a closed pass does nothing, so a late release of an old generation cannot take
    a lease of the new one.

    Attributes:
        pool: whose pass it is.
        name: what messages call it.
        terms: array, chunks and bytes of a chunk, of its floor.
        floor_bytes: what one block in every open lane needs; kept free for this pass.
        held_bytes: bytes of the chunks it leases.
        queue: chunks not admitted yet, in draw order.
        ahead: what was asked for and not claimed yet, in draw order.
        leases: how often each chunk is leased.
        closed: whether the pass has ended.
        sources: what it reads.
    """

    def __init__(
        self,
        pool: ChunkPool,
        name: str,
        slots: Mapping[ChunkSource, SlotShape],
        floor: Mapping[ChunkSource, int],
        load: Callable[[Sequence[SlotFill]], None],
    ) -> None:
        """Made by `ChunkPool.open_pass` only."""
        self.pool = pool
        self.name = name
        self.sources = tuple(slots)
        self.terms = [(shape.name, floor[s], shape.slot_bytes) for s, shape in slots.items()]
        self.floor_bytes = sum(n_chunks * size for _, n_chunks, size in self.terms)
        self.load = load
        self.held_bytes = 0
        self.queue: deque[tuple[ChunkKey, Admission]] = deque()
        self.ahead: deque[Admission] = deque()
        self.leases: dict[ChunkKey, int] = {}
        self.closed = False

    @property
    def reserved_bytes(self) -> int:
        """What the pass holds or may claim at any moment."""
        return max(self.held_bytes, self.floor_bytes)

    @property
    def has_queue(self) -> bool:
        """Whether chunks wait for a slot: the allowance of the pass is used."""
        return bool(self.queue)

    def request(self, keys: Sequence[ChunkKey]) -> Admission:
        """Queue chunks behind those asked for before, and start what there is room for."""
        return self.pool.request(self, keys)

    def request_all(self, wanted: Sequence[Sequence[ChunkKey]]) -> list[Admission]:
        """The same for several segments at once, so that their loads are begun together."""
        return self.pool.request_all(self, wanted)

    def claim(self, admission: Admission) -> None:
        """Rely on what was asked for: until then it is read-ahead, which a new pass may claim."""
        self.pool.claim(self, admission)

    def release(self, keys: Iterable[ChunkKey]) -> None:
        """Give back one lease of each chunk."""
        self.pool.release(self, keys)

    def first_rows(self, keys: Sequence[ChunkKey]) -> list[int]:
        """Row of its region at which each leased chunk starts."""
        return self.pool.first_rows(self, keys)

    def take_queue(self) -> set[Admission]:
        """Forget what was asked for; called under the pool's lock.

        Returns:
            Who waits for what was queued.
        """
        waiting = {admission for _, admission in self.queue}
        self.queue.clear()
        self.ahead.clear()
        return waiting

    def close(self) -> None:
        """Drop the queue, every lease and the floor; idempotent."""
        self.pool.close_pass(self)

    def forget_loads(self, *, shared: bool = False) -> None:
        """After `close`, and once its readers were cancelled: wait for none of them any more.

        Args:
            shared: let other passes that wait for one of these loads read the chunk themselves.
        """
        self.pool.forget_loads(self, shared=shared)


def budget_error(
    new: PoolPass,
    others: Sequence[PoolPass],
    budget: PoolBudget,
    *,
    block_chunks: int,
    fitting: int,
    kept_lanes: str,
) -> BudgetError:
    """The floors of the live passes and of a new one are more than the budget.

    Args:
        new: the pass that does not fit.
        others: the live passes.
        budget: what there is.
        block_chunks: units in a block of the new pass.
        fitting: the most of them that would fit; 0 if none does.
        kept_lanes: what to say instead of that, of an epoch that keeps lanes and blocks.
    """
    passes = [*others, new]
    needed = sum(pool_pass.floor_bytes for pool_pass in passes)
    n_bytes = budget.grown_for(needed)
    # Rounded, two numbers that differ can look the same.
    is_exact = text_of_bytes(needed) == text_of_bytes(n_bytes)
    size = f"{needed} B" if is_exact else text_of_bytes(needed)
    ways = [f"raise budget_bytes to {needed}"]
    unfit = ""
    if kept_lanes:
        unfit = f"; {kept_lanes}"
        ways = [f"{ways[0]} for the rest of this epoch"]
    elif fitting:
        ways.insert(0, f"lower block_chunks from {block_chunks} to {fitting}")
    else:
        unfit = "; not even one unit in each lane of the new one fits"
    if others:
        ways.insert(0, "close another loader")
    return BudgetError(
        f"the floors of the live passes need {size} but budget_bytes is "
        f"{budget.text(n_bytes, is_exact=is_exact)}: {'; '.join(_floor_texts(passes))}{unfit}; "
        f"{' or '.join([', '.join(ways[:-1]), ways[-1]] if ways[:-1] else ways)}"
    )


def _floor_texts(passes: Sequence[PoolPass]) -> Iterator[str]:
    names = [pool_pass.name for pool_pass in passes]
    for number, pool_pass in enumerate(passes, 1):
        name = repr(pool_pass.name)
        if names.count(pool_pass.name) > 1:
            name += f" no. {names[:number].count(pool_pass.name)}"
        parts = " + ".join(
            f"{array} {n} x {text_of_bytes(size)}" for array, n, size in pool_pass.terms
        )
        yield f"{name} {text_of_bytes(pool_pass.floor_bytes)} ({parts})"
