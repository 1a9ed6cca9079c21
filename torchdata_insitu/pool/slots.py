"""The arenas of a pool and what their memory is charged at."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torchdata_insitu.pool.arena import Arena, reserve_arenas
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape

__all__ = ["Slots"]


class Slots:
    """One arena for each chunk source; memory moves between them within a budget.

    Every call but `reserve` is made under the pool's lock.

    Attributes:
        charged_bytes: bytes of slots that have memory, without those that are forgotten.
    """

    def __init__(self) -> None:
        """Start without arenas."""
        self.charged_bytes = 0
        self._arenas: dict[ChunkSource, Arena] = {}

    def __getitem__(self, source: ChunkSource) -> Arena:
        """The arena of a source."""
        return self._arenas[source]

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

    def take(self, arena: Arena, budget_bytes: int) -> int | None:
        """A slot of an arena, with idle memory of others if it has to be; None if there is none."""
        if arena.has_idle:
            return arena.take_idle()
        if not arena.has_untouched:
            return None
        size = arena.shape.slot_bytes
        for other in self._arenas.values():
            while self.charged_bytes + size > budget_bytes and other.has_idle:
                self.charged_bytes -= other.return_idle_slot()
        if self.charged_bytes + size > budget_bytes:
            return None
        self.charged_bytes += size
        return arena.take_untouched()

    def forget(self, arena: Arena) -> None:
        """Charge a slot no more that may still be written."""
        self.charged_bytes -= arena.shape.slot_bytes

    def recover(self, arena: Arena, slot: int) -> None:
        """A forgotten slot is written no more."""
        self.charged_bytes += arena.shape.slot_bytes
        arena.put_back(slot)

    def return_memory(self) -> None:
        """Give the memory of idle slots back to the system."""
        for arena in self._arenas.values():
            while arena.has_idle:
                self.charged_bytes -= arena.return_idle_slot()
