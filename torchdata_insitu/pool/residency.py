"""Which chunks are in memory: leased, on their way, or kept until their slot is needed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.arena import Arena
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.debug_mode import overwrite
from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.resident import Resident
from torchdata_insitu.pool.slots import Slots

__all__ = ["Residency"]

# A chunk of the arena that needs a slot goes in place of the least recently used one of all when
# it was released at most so many releases later. Arrays that are read side by side then use their
# own slots again, where exact order would send pages back to the system and touch them anew.
_NEARLY_AS_OLD = 4


class LostSlot(NamedTuple):
    """The slot of a chunk that was forgotten while somebody may still write its rows."""

    chunk: weakref.ref[Resident]
    """The chunk; once nobody holds it any more, nobody writes the slot."""
    arena: Arena
    """Where the slot is."""
    slot: int
    """Number of the slot."""


class Residency:
    """The chunks that have a slot, and the least recently used of those that nobody leases.

    Every call but `reserve` is made under the pool's lock.

    Attributes:
        n_kept: chunks that can be read and that nobody leases.
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
        self.n_kept = 0
        self._lost: list[LostSlot] = []
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
    def lost(self) -> Collection[LostSlot]:
        """Slots of chunks that were forgotten and may still be written."""
        return self._lost

    def arena(self, source: ChunkSource) -> Arena:
        """The arena of a source."""
        return self._slots[source]

    def reserve(
        self, slots: Mapping[ChunkSource, SlotShape], limit_bytes: int
    ) -> dict[ChunkSource, Arena]:
        """Reserve address space for the sources that have no arena, to `add` later.

        Raises:
            BudgetError: there is not so much address space.
        """
        return self._slots.reserve(slots, limit_bytes)

    def add(self, arenas: Mapping[ChunkSource, Arena]) -> None:
        """Take arenas in; those that came meanwhile stay."""
        self._slots.add(arenas)

    def place(self, key: ChunkKey, budget_bytes: int, loader: PoolPass) -> Resident | None:
        """Give a chunk a slot, in place of chunks that nobody leases if it has to be.

        Args:
            key: a chunk that has no slot.
            budget_bytes: the most that slots may be charged.
            loader: the pass whose loader is asked to fill it.

        Returns:
            None if no slot can be had; then nothing was evicted for it either.
        """
        source: ChunkSource = key.source  # type: ignore[assignment]
        if self._lost:
            self._recover_dead()
        arena = self._slots[source]
        slots = self._slots
        slot = slots.take(arena, budget_bytes)
        while slot is None:
            needed = slots.charged_bytes + arena.shape.slot_bytes - budget_bytes
            can_grow = arena.has_untouched and needed <= self._kept_bytes + slots.idle_bytes
            victim = self._victim(source, of_all=can_grow)
            if victim is None:
                return None
            self._evict(victim)
            slot = slots.take(arena, budget_bytes)
        resident = Resident(key, arena, slot, loader)
        self._residents[key] = resident
        return resident

    def _victim(self, source: ChunkSource, *, of_all: bool) -> Resident | None:
        kept = self._kept.get(source)
        own = next(iter(kept.values())) if kept else None
        if not of_all:
            return own
        oldest = own
        for others in self._kept.values():
            head = next(iter(others.values())) if others else None
            if head and (oldest is None or head.released_at < oldest.released_at):
                oldest = head
        if own and oldest and own.released_at - oldest.released_at <= _NEARLY_AS_OLD:
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
        resident.settle()
        if not resident.leases:
            self._keep(resident)

    def _keep(self, resident: Resident) -> None:
        if resident.is_stale:
            self.drop(resident)
            return
        self.n_kept += 1
        resident.released_at = self._n_releases
        self._kept.setdefault(resident.key.source, OrderedDict())[resident.key] = resident  # type: ignore[arg-type]
        self._kept_bytes += resident.arena.shape.slot_bytes

    def _unkeep(self, resident: Resident) -> None:
        del self._kept[resident.key.source][resident.key]  # type: ignore[index]
        self._kept_bytes -= resident.arena.shape.slot_bytes
        self.n_kept -= 1

    def forget(self, resident: Resident) -> None:
        """Let go of a chunk whose slot may still be written, and charge it no more."""
        self._lost.append(LostSlot(weakref.ref(resident), resident.arena, resident.slot))
        self._slots.forget(resident.arena)
        del self._residents[resident.key]

    def recover(self, resident: Resident) -> bool:
        """Use the slot of a forgotten chunk again; False if the chunk is none."""
        for lost in self._lost:
            if lost.chunk() is resident:
                self._lost.remove(lost)
                self._slots.recover(lost.arena, lost.slot)
                return True
        return False

    def _recover_dead(self) -> None:
        # Whoever may write a slot or answer for it holds its chunk.
        for lost in [lost for lost in self._lost if lost.chunk() is None]:
            self._lost.remove(lost)
            self._slots.recover(lost.arena, lost.slot)

    def clear(self) -> None:
        """Let chunks that nobody leases leave memory, and the others with their last lease."""
        for kept in self._kept.values():
            while kept:
                resident = next(iter(kept.values()))
                self._unkeep(resident)
                self.drop(resident)
        for resident in self:
            resident.is_stale = True

    def return_memory(self, passes: Iterable[PoolPass]) -> None:
        """`clear`, and give the memory of idle slots back to the system.

        Args:
            passes: the live passes; address space of what none of them reads goes too.
        """
        self.clear()
        self._recover_dead()
        self._slots.return_memory()
        used = {resident.key.source for resident in self}
        used.update(source for pool_pass in passes for source in pool_pass.sources)
        for source in [source for source in self._slots if source not in used]:
            self._slots.remove(source)

    def recount(self) -> None:
        """Make every count agree with what is resident and leased, after an interrupt."""
        for lost in self._lost:
            chunk = lost.chunk()
            if chunk is not None and self._residents.get(chunk.key) is chunk:
                del self._residents[chunk.key]
        kept = [resident for resident in self if resident.is_ready and not resident.leases]
        self._kept.clear()
        self._kept_bytes = self.n_kept = 0
        for resident in sorted(kept, key=lambda resident: resident.released_at):
            released_at = resident.released_at
            self._keep(resident)
            resident.released_at = released_at
        self._slots.recount(self._residents.values(), self._lost)
