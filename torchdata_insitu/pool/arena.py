"""The memory of resident chunks: reserved address space whose touched slots are charged.

A region is one stretch of anonymous memory for several arenas with equal rows. Because their rows
are numbered together, a stack of arrays is gathered with one row copy, in place.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np

from torchdata_insitu.errors import BudgetError
from torchdata_insitu.pool.chunk_source import SlotShape
from torchdata_insitu.pool.memory_budget import text_of_bytes

__all__ = ["Arena", "ArenaRegion", "reserve_arenas"]

# Linux gives untouched pages of such a mapping no memory and does not count them as promised.
_RESERVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)

# Pages of 2 MB where the system has them: the first touch of memory is slow, and most so by page.
# A slot that is smaller would take more than it is charged for.
_HUGE_BYTES = 2 << 20
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)
_NOT_HUGE = getattr(mmap, "MADV_NOHUGEPAGE", None)

# Address space costs nothing, and slots that an interrupt made the pool forget have to be replaced.
_SPARE = 2


class ArenaRegion:
    """Reserved address space for `n_rows` rows of one shape and data type.

    Attributes:
        rows: `(n_rows, *field_shape)`, C-contiguous; only slots handed out by an arena may be
            read or written.
    """

    def __init__(self, n_rows: int, shape: SlotShape, *, may_be_huge: bool = False) -> None:
        """Reserve without touching; no page costs memory until it is written.

        Args:
            n_rows: how many.
            shape: what a row is like.
            may_be_huge: whether pages of 2 MB are small enough for what is touched at a time.

        Raises:
            BudgetError: there is no such address space.
        """
        size = n_rows * shape.row_bytes
        try:
            self._map = mmap.mmap(-1, max(size, 1), flags=_RESERVE)
        except (OSError, OverflowError) as cause:
            msg = (
                f"the system reserves no {text_of_bytes(size)} of address space for array "
                f"{shape.name!r} ({cause}): lower budget_bytes, or raise the limit (ulimit -v)"
            )
            raise BudgetError(msg) from cause
        self._may_be_huge = may_be_huge and self._advise(_HUGE)
        flat = np.frombuffer(self._map, dtype=np.uint8)
        if math.prod(shape.field_shape) == 0:
            self.rows = np.empty((n_rows, *shape.field_shape), np.dtype(shape.dtype))
        else:
            self.rows = flat[:size].view(shape.dtype).reshape(n_rows, *shape.field_shape)

    def return_pages(self, start_byte: int, stop_byte: int) -> None:
        """Give the pages that lie wholly inside the byte range back to the system.

        From then on no page of the region becomes huge: the system makes one of small pages where
        some are missing, and what was given back would be in memory again.
        """
        if self._may_be_huge:
            self._advise(_NOT_HUGE)
            self._may_be_huge = False
        page = mmap.PAGESIZE
        first = -(-start_byte // page) * page
        last = stop_byte // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _advise(self, advice: int | None) -> bool:
        """Whether the system took an advice about the whole region."""
        if advice is None:
            return False
        try:
            self._map.madvise(advice)
        except OSError:
            # Kernels that are built without huge pages refuse both.
            return False
        return True


class Arena:
    """All slots of one chunk source: consecutive rows of a region.

    A slot is fresh (never handed out), taken, idle (charged, for the next chunk) or returned
    (without memory). Not safe for threads by itself: every call is made under the pool's lock.

    Attributes:
        shape: the memory one slot takes.
        region: where the rows live.
    """

    def __init__(self, region: ArenaRegion, first_row: int, shape: SlotShape, n_slots: int) -> None:
        """Lay `n_slots` slots from `first_row` on."""
        self.region = region
        self.shape = shape
        self._first_row = first_row
        self._n_slots = n_slots
        # Slots from here on are fresh: nothing is listed for them, however many there are.
        self._n_begun = 0
        self._returned: set[int] = set()
        self._idle: list[int] = []

    @property
    def has_idle(self) -> bool:
        """Whether a slot that is charged already can be taken at no cost."""
        return bool(self._idle)

    @property
    def has_untouched(self) -> bool:
        """Whether a slot could be taken that has no memory."""
        return bool(self._returned) or self._n_begun < self._n_slots

    @property
    def n_idle(self) -> int:
        """Slots that have memory and hold no chunk."""
        return len(self._idle)

    def take_idle(self) -> int:
        """Take a slot whose memory is charged already: touching memory anew is slow."""
        return self._idle.pop()

    def take_untouched(self) -> int:
        """Take a slot that has no memory; the pool charges it."""
        if self._returned:
            return self._returned.pop()
        self._n_begun += 1
        return self._n_begun - 1

    def put_back(self, slot: int) -> None:
        """Return a slot; its memory stays charged for the next chunk."""
        self._idle.append(slot)

    def return_idle_slot(self) -> int:
        """Give one idle slot's memory back to the system.

        Only whole pages can be given back, so that the pages a slot shares with neighbours go when
        the last of these is returned.

        Returns:
            The bytes that are no longer charged.
        """
        slot = self._idle.pop()
        self._returned.add(slot)
        near = -(-mmap.PAGESIZE // self.shape.slot_bytes)
        first, stop = slot, slot + 1
        while first > max(0, slot - near) and self._has_no_memory(first - 1):
            first -= 1
        while stop < min(self._n_slots, slot + 1 + near) and self._has_no_memory(stop):
            stop += 1
        row_bytes = self.shape.row_bytes
        self.region.return_pages(self.row(first) * row_bytes, self.row(stop) * row_bytes)
        return self.shape.slot_bytes

    @property
    def n_charged(self) -> int:
        """Slots that have memory."""
        return self._n_begun - len(self._returned)

    def recount(self, taken: set[int]) -> None:
        """Let every slot that has memory and is not taken be idle."""
        self._idle = [
            slot
            for slot in range(self._n_begun)
            if slot not in taken and slot not in self._returned
        ]

    def _has_no_memory(self, slot: int) -> bool:
        return slot in self._returned or slot >= self._n_begun

    def row(self, slot: int) -> int:
        """Row of the region at which a slot starts."""
        return self._first_row + slot * self.shape.rows

    def memory(self, slot: int) -> np.ndarray:
        """The slot's memory, `(rows, *field_shape)`."""
        start = self.row(slot)
        return self.region.rows[start : start + self.shape.rows]


def reserve_arenas(shapes: Sequence[SlotShape], limit_bytes: int) -> list[Arena]:
    """Reserve an arena for each shape; arenas with equal rows lie in one region.

    Args:
        shapes: one for each new chunk source.
        limit_bytes: no arena can fill more than this.

    Returns:
        The arenas, in the order of `shapes`.
    """
    groups: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for number, shape in enumerate(shapes):
        groups.setdefault((shape.field_shape, shape.dtype), []).append(number)
    arenas: dict[int, Arena] = {}
    for members in groups.values():
        slots = {
            n: _SPARE * max(1, min(shapes[n].n_chunks, limit_bytes // shapes[n].slot_bytes))
            for n in members
        }
        total = sum(slots[n] * shapes[n].rows for n in members)
        is_fat = min(shapes[n].slot_bytes for n in members) >= _HUGE_BYTES
        region = ArenaRegion(total, shapes[members[0]], may_be_huge=is_fat)
        first_row = 0
        for n in members:
            arenas[n] = Arena(region, first_row, shapes[n], slots[n])
            first_row += slots[n] * shapes[n].rows
    return [arenas[n] for n in range(len(shapes))]
