"""Which chunks are in memory: leased, on their way, or kept until their slot is needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.arena import Arena
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.debug_mode import overwrite
from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.resident import Resident
from torchdata_insitu.pool.slots import Slots

if TYPE_CHECKING:
    from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["Residency"]

# A chunk of the arena that needs a slot goes in place of the least recently used one of all when
# it was released at most so many releases later. Arrays that are read side by side then use their
# own slots again, where exact order would send pages back to the system and touch them anew.
_NEARLY_AS_OLD = 4


class Residency:
    """The chunks that have a slot, and the least recently used of those that nobody leases.

    Every call but `reserve` is made under the pool's lock.

    Attributes:
        n_evicted: chunks that left memory to make room.
    """

    def __init__(self, *, overwrites: bool = False) -> None:
        """Start with nothing in memory.

        Args:
            overwrites: spoil the rows of what leaves memory, so that no reader of old rows stays
                unnoticed.
        """
        self._overwrites = overwrites
        self._slots = Slots()
        self._residents: dict[ChunkKey, Resident] = {}
        # Readable chunks without a lease, the least recently used first.
        self._kept: dict[ChunkSource, OrderedDict[ChunkKey, Resident]] = {}
        self._kept_bytes = 0
        # Chunks that were forgotten while their slots may still be written.
        self._disowned: set[Resident] = set()
        self._n_releases = 0
        self.n_evicted = 0

    def __len__(self) -> int:
        """Chunks that have a slot."""
        return len(self._residents)

    def __iter__(self) -> Iterator[Resident]:
        """Chunks that have a slot."""
        return iter(self._residents.values())

    def __getitem__(self, key: ChunkKey) -> Resident:
        """A chunk that has a slot."""
        return self._residents[key]

    def find(self, key: ChunkKey) -> Resident | None:
        """A chunk, if it has a slot."""
        return self._residents.get(key)

    @property
    def n_kept(self) -> int:
        """Chunks that can be read and that nobody leases."""
        return sum(len(kept) for kept in self._kept.values())

    @property
    def kept_bytes(self) -> int:
        """Bytes of the chunks that can be read and that nobody leases."""
        return self._kept_bytes

    @property
    def charged_bytes(self) -> int:
        """Bytes of slots that have memory, without those that are forgotten."""
        return self._slots.charged_bytes

    @property
    def arenas(self) -> Collection[Arena]:
        """All arenas."""
        return self._slots.arenas

    @property
    def disowned(self) -> Collection[Resident]:
        """Chunks that were forgotten while their slots may still be written."""
        return self._disowned

    def arena(self, source: ChunkSource) -> Arena:
        """The arena of a source."""
        return self._slots[source]

    def reserve(
        self, slots: Mapping[ChunkSource, SlotShape], limit_bytes: int
    ) -> dict[ChunkSource, Arena]:
        """Reserve address space for sources that have no arena or a worn one, to `add` later.

        Raises:
            BudgetError: there is not so much address space.
        """
        return self._slots.reserve(slots, limit_bytes)

    def add(self, arenas: Mapping[ChunkSource, Arena]) -> None:
        """Take arenas in, but for sources that have a sound one by now, or one that is in use."""
        for source, arena in arenas.items():
            old = self._slots.arena(source)
            if old is None:
                self._slots.add(source, arena)
            elif old.is_worn and not any(r.arena is old and self._is_in_use(r) for r in self):
                self._let_go(source)
                self._slots.add(source, arena)

    @staticmethod
    def _is_in_use(resident: Resident) -> bool:
        return bool(resident.leases) or not resident.is_ready

    def place(
        self, key: ChunkKey, budget_bytes: int, pool: ChunkPool, loader: PoolPass
    ) -> Resident | None:
        """Give a chunk a slot, in place of chunks that nobody leases if it has to be.

        Args:
            key: a chunk that has no slot.
            budget_bytes: the most that slots may be charged.
            pool: who is told when the chunk has landed.
            loader: the pass whose loader is asked to fill it.

        Returns:
            None if no slot can be had; then nothing was evicted for it either.
        """
        source: ChunkSource = key.source  # type: ignore[assignment]
        arena = self._slots[source]
        slots = self._slots
        slot = slots.take(arena, budget_bytes)
        needed = slots.charged_bytes + arena.shape.slot_bytes - budget_bytes
        can_grow = arena.has_untouched and needed <= self._kept_bytes + slots.idle_bytes
        while slot is None:
            victim = self._victim(source, of_all=can_grow)
            if victim is None:
                return None
            self._evict(victim)
            slot = slots.take(arena, budget_bytes)
        resident = Resident(pool, key, arena, slot, loader)
        self._residents[key] = resident
        return resident

    def _victim(self, source: ChunkSource, *, of_all: bool) -> Resident | None:
        heads = {
            other: next(iter(kept.values()))
            for other, kept in self._kept.items()
            if kept and (of_all or other == source)
        }
        if not heads:
            return None
        oldest = min(heads.values(), key=lambda resident: resident.released_at)
        own = heads.get(source)
        if own is not None and own.released_at - oldest.released_at <= _NEARLY_AS_OLD:
            return own
        return oldest

    def _evict(self, resident: Resident) -> None:
        self._unkeep(resident)
        self.n_evicted += 1
        self.drop(resident)

    def drop(self, resident: Resident) -> None:
        """A chunk nobody leases leaves memory; its slot can be used at once."""
        if self._overwrites:
            overwrite(resident.out)
        del self._residents[resident.key]
        self._slots.put_back(resident.arena, resident.slot)

    def lease(self, resident: Resident) -> None:
        """One more lease of a chunk."""
        if resident.is_ready and not resident.leases:
            self._unkeep(resident)
        resident.leases += 1

    def note_release(self) -> None:
        """Leases are given back: what is kept from now on was used later than what was before."""
        self._n_releases += 1

    def unlease(self, resident: Resident) -> None:
        """One lease of a chunk less; with its last one it is kept until its slot is needed."""
        resident.leases -= 1
        if resident.is_ready and not resident.leases:
            self._keep(resident)

    def landed(self, resident: Resident) -> None:
        """The rows of a chunk can be read."""
        resident.is_ready = True
        # What is kept outlives the pass, whose reader keeps a store, threads and descriptors.
        resident.loader = None
        if not resident.leases:
            self._keep(resident)

    def _keep(self, resident: Resident) -> None:
        resident.released_at = self._n_releases
        self._kept.setdefault(resident.key.source, OrderedDict())[resident.key] = resident  # type: ignore[arg-type]
        self._kept_bytes += resident.arena.shape.slot_bytes

    def _unkeep(self, resident: Resident) -> None:
        del self._kept[resident.key.source][resident.key]  # type: ignore[index]
        self._kept_bytes -= resident.arena.shape.slot_bytes

    def forget(self, resident: Resident) -> None:
        """Let go of a chunk whose slot may still be written, and charge it no more."""
        self._disowned.add(resident)
        self._slots.forget(resident.arena)
        del self._residents[resident.key]

    def recover(self, resident: Resident) -> bool:
        """Use the slot of a forgotten chunk again; False if the chunk is none."""
        if resident not in self._disowned:
            return False
        self._disowned.remove(resident)
        self._slots.recover(resident.arena, resident.slot)
        return True

    def clear(self) -> None:
        """Let every chunk that nobody leases leave memory."""
        for source in self._kept:
            self._let_go(source)

    def _let_go(self, source: ChunkSource) -> None:
        kept = self._kept.get(source)
        while kept:
            _, resident = kept.popitem()
            self._kept_bytes -= resident.arena.shape.slot_bytes
            self.drop(resident)

    def return_memory(self) -> None:
        """Give the memory of idle slots back to the system."""
        self._slots.return_memory()

    def recount(self) -> None:
        """Make every count agree with what is resident and leased, after an interrupt."""
        kept = [resident for resident in self if resident.is_ready and not resident.leases]
        self._kept.clear()
        self._kept_bytes = 0
        for resident in sorted(kept, key=lambda resident: resident.released_at):
            released_at = resident.released_at
            self._keep(resident)
            resident.released_at = released_at
        self._slots.recount([*self, *self._disowned], self._disowned)
