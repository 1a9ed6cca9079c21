"""The arenas of a pool and what their memory is charged at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from torchdata_insitu.pool.arena import Arena, reserve_arenas
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape

__all__ = ["HasSlot", "Slots"]


class HasSlot(Protocol):
    """What a slot is taken by."""

    @property
    def arena(self) -> Arena:
        """Where the slot is."""

    @property
    def slot(self) -> int:
        """Number of the slot."""


class Slots:
    """One arena for each chunk source; memory moves between them within a budget.

    Every call but `reserve` is made under the pool's lock.

    Attributes:
        charged_bytes: bytes of slots that have memory, without those that are forgotten.
        idle_bytes: bytes of slots that have memory and hold no chunk.
    """

    def __init__(self) -> None:
        """Start without arenas."""
        self.charged_bytes = 0
        self.idle_bytes = 0
        self._arenas: dict[ChunkSource, Arena] = {}

    def __getitem__(self, source: ChunkSource) -> Arena:
        """The arena of a source."""
        return self._arenas[source]

    def __iter__(self) -> Iterator[ChunkSource]:
        """The sources that have an arena."""
        return iter(self._arenas)

    @property
    def arenas(self) -> Collection[Arena]:
        """All arenas."""
        return self._arenas.values()

    def reserve(
        self, slots: Mapping[ChunkSource, SlotShape], limit_bytes: int
    ) -> dict[ChunkSource, Arena]:
        """Reserve address space for the sources that have no arena, to `add` later.

        Raises:
            BudgetError: there is not so much address space.
        """
        missing = [source for source in slots if source not in self._arenas]
        arenas = reserve_arenas([slots[source] for source in missing], limit_bytes)
        return dict(zip(missing, arenas, strict=True))

    def add(self, arenas: Mapping[ChunkSource, Arena]) -> None:
        """Take arenas in; those that came meanwhile stay."""
        for source, arena in arenas.items():
            self._arenas.setdefault(source, arena)

    def remove(self, source: ChunkSource) -> None:
        """Let go of an arena, none of whose slots has memory that is charged."""
        del self._arenas[source]

    def take(self, arena: Arena, budget_bytes: int) -> int | None:
        """A slot of an arena, with idle memory of others if it has to be; None if there is none."""
        size = arena.shape.slot_bytes
        if arena.has_idle:
            self.idle_bytes -= size
            return arena.take_idle()
        if not arena.has_untouched:
            return None
        if self.charged_bytes + size - self.idle_bytes > budget_bytes:
            return None
        for other in self._arenas.values():
            while self.charged_bytes + size > budget_bytes and other.has_idle:
                self._return_idle_slot(other)
        self.charged_bytes += size
        return arena.take_untouched()

    def put_back(self, arena: Arena, slot: int) -> None:
        """A slot holds no chunk any more; its memory stays, for touching it anew is slow."""
        self.idle_bytes += arena.shape.slot_bytes
        arena.put_back(slot)

    def forget(self, arena: Arena) -> None:
        """Charge a slot no more that may still be written."""
        self.charged_bytes -= arena.shape.slot_bytes

    def recover(self, arena: Arena, slot: int) -> None:
        """A forgotten slot is written no more; its memory, not charged meanwhile, goes back."""
        arena.put_back(slot)
        arena.return_idle_slot()

    def return_memory(self) -> None:
        """Give the memory of idle slots back to the system."""
        for arena in self._arenas.values():
            while arena.has_idle:
                self._return_idle_slot(arena)

    def _return_idle_slot(self, arena: Arena) -> None:
        n_bytes = arena.return_idle_slot()
        self.idle_bytes -= n_bytes
        self.charged_bytes -= n_bytes

    def recount(self, residents: Collection[HasSlot], lost: Collection[HasSlot]) -> None:
        """Make idle slots and charges agree with which chunk has which slot.

        Args:
            residents: chunks in a slot.
            lost: slots of chunks that are forgotten, which are not charged.
        """
        in_use: dict[int, set[int]] = {id(arena): set() for arena in self.arenas}
        for holder in (*residents, *lost):
            in_use.setdefault(id(holder.arena), set()).add(holder.slot)
        for arena in self.arenas:
            arena.recount(in_use[id(arena)])
        self.idle_bytes = sum(a.n_idle * a.shape.slot_bytes for a in self.arenas)
        charged = sum(arena.n_charged * arena.shape.slot_bytes for arena in self.arenas)
        live = {id(arena) for arena in self.arenas}
        self.charged_bytes = charged - sum(
            slot.arena.shape.slot_bytes for slot in lost if id(slot.arena) in live
        )
