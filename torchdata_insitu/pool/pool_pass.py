"""One pass over a plan as the pool sees it: what it waits for, what it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchdata_insitu.errors import BudgetError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.memory_budget import text_of_bytes

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

    def finish(self, error: BaseException | None) -> None:
        """The last writer left `out`: with all rows in it, or with the error that kept them."""

    def abandon(self) -> None:
        """The last writer left `out` and the load was cancelled: read again if waited for."""


class PoolPass:
    """The leases and the queue of one pass; closing it is the end of its generation.

    Releasing through a closed pass does nothing, so a late release of an old generation cannot take
    a lease of the new one.

    Attributes:
        name: what messages call it.
        floor_bytes: what one block in every open lane needs; kept free for this pass.
        held_bytes: bytes of the chunks it leases.
        queue: chunks not admitted yet, in draw order.
        ahead: what was asked for and not claimed yet, in draw order.
        leases: how often each chunk is leased.
        closed: whether the pass has ended.
    """

    def __init__(
        self,
        pool: ChunkPool,
        name: str,
        floor_bytes: int,
        load: Callable[[Sequence[SlotFill]], None],
    ) -> None:
        """Made by `ChunkPool.open_pass` only."""
        self._pool = pool
        self.name = name
        self.floor_bytes = floor_bytes
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
        return self._pool.request(self, keys)

    def claim(self, admission: Admission) -> None:
        """Rely on what was asked for: until then it is read-ahead, which a new pass may claim."""
        self._pool.claim(self, admission)

    def release(self, keys: Iterable[ChunkKey]) -> None:
        """Give back one lease of each chunk."""
        self._pool.release(self, keys)

    def first_rows(self, keys: Sequence[ChunkKey]) -> list[int]:
        """Row of its region at which each leased chunk starts."""
        return self._pool.first_rows(self, keys)

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
        self._pool.close_pass(self)

    def forget_loads(self) -> None:
        """After `close`, and once its readers were cancelled: wait for none of them any more."""
        self._pool.forget_loads(self)


def budget_error(
    new: PoolPass,
    terms: Sequence[tuple[str, int, int]],
    others: Sequence[PoolPass],
    budget_bytes: int,
    advice: str,
) -> BudgetError:
    """The floors of the live passes and of a new one are more than the budget.

    Args:
        new: the pass that does not fit.
        terms: array, chunks and bytes of a chunk, of its floor.
        others: the live passes.
        budget_bytes: what there is.
        advice: what to do other than raising the budget.
    """
    needed = new.floor_bytes + sum(other.floor_bytes for other in others)
    parts = " + ".join(f"{array} {count} x {text_of_bytes(size)}" for array, count, size in terms)
    floors = [
        f"{new.name!r} {text_of_bytes(new.floor_bytes)} ({parts})",
        *(f"{other.name!r} {text_of_bytes(other.floor_bytes)}" for other in others),
    ]
    return BudgetError(
        f"the floors of the live passes need {text_of_bytes(needed)} but budget_bytes is "
        f"{text_of_bytes(budget_bytes)}: {'; '.join(floors)}; {advice} or raise budget_bytes to "
        f"{needed}"
    )
