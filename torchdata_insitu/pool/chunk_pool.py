"""The chunks in memory: admission, leases and the byte budget of every live pass.

Slot life: FREE -> FILLING -> READY -> FREE, or FILLING -> FREE when the load fails. Bytes of a slot
are written only while it is FILLING and read only while it is READY under a lease. A slot leaves
FILLING only when its last writer has left, which `finish` and `abandon` announce: cancelling a
load never frees its slot.

The lock is a leaf: under it there is no I/O, no user code and no wait. What has to be loaded or
woken is collected under the lock and acted upon after it.

Why nothing deadlocks: a consumer releases the chunks of closing blocks before it waits for the next
ones, so while a block is not admitted, every lease of its pass belongs to blocks that are open,
which fit the floor; and a pass takes more than its floor only from what no other floor needs. What
it read ahead into the floor of a pass that starts later is taken back from it then, since nobody
relies on a lease before its segment is claimed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from torchdata_insitu.errors import BudgetError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.arena import Arena, ArenaRegion, reserve_arenas
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.memory_budget import resolve_budget, text_of_bytes
from torchdata_insitu.pool.pool_pass import PoolPass, SlotFill, floor_text

__all__ = ["ChunkPool"]


class _Resident:
    """A chunk that has a slot, and the fill of that slot."""

    __slots__ = ("arena", "is_ready", "key", "leases", "out", "pool", "slot", "waiters")

    def __init__(self, pool: ChunkPool, key: ChunkKey, arena: Arena, slot: int) -> None:
        self.pool = pool
        self.key = key
        self.arena = arena
        self.slot = slot
        self.out: np.ndarray = arena.memory(slot)
        self.is_ready = False
        self.leases = 0
        self.waiters: list[tuple[PoolPass, Admission]] = []

    def finish(self, error: BaseException | None) -> None:
        self.pool._landed(self, error, cancelled=False)  # noqa: SLF001 - a part of the pool

    def abandon(self) -> None:
        self.pool._landed(self, None, cancelled=True)  # noqa: SLF001 - a part of the pool


class _Work:
    """What to do once the lock is free."""

    def __init__(self) -> None:
        self.fills: dict[PoolPass, list[SlotFill]] = {}
        self.woken: list[Admission] = []

    def run(self) -> None:
        for admission in self.woken:
            admission.wake()
        for pool_pass, fills in self.fills.items():
            pool_pass.load(fills)


class ChunkPool:
    """Resident chunks within a byte budget, shared by every chain that is given the pool.

    Args:
        budget_bytes: bytes that slots may take; `"50%"` for a share of the memory free now;
            `"auto"` for two blocks of every pass, at most half of the memory free now. Batches
            are outside the budget.

    Raises:
        BudgetError: `budget_bytes` is none of these.

    Example:
        >>> import torchdata_insitu as tdi
        >>> pool = tdi.ChunkPool("64%")
        >>> pool.charged_bytes
        0
        >>> tdi.ChunkPool(0)
        Traceback (most recent call last):
        ...
        torchdata_insitu.errors.BudgetError: budget_bytes is 0, but must be above 0: give bytes, ...
    """

    def __init__(self, budget_bytes: int | str = "auto") -> None:
        """Check the budget; no memory is taken before the first pass starts."""
        self._asked = budget_bytes
        fixed, self._limit_bytes = resolve_budget(budget_bytes)
        self._is_auto = fixed is None
        self._budget_bytes = fixed or 0
        self._lock = threading.Lock()
        self._arenas: dict[ChunkSource, Arena] = {}
        self._residents: dict[ChunkKey, _Resident] = {}
        self._passes: list[PoolPass] = []
        self._charged_bytes = 0

    def __repr__(self) -> str:
        """What was asked for and what is in use."""
        return (
            f"ChunkPool({self._asked!r}: {text_of_bytes(self._charged_bytes)} charged, "
            f"{len(self._residents)} chunks resident, {len(self._passes)} live passes)"
        )

    def __reduce__(self) -> tuple[type[ChunkPool], tuple[int | str]]:
        """A pickled or copied pool is an empty one with the same budget."""
        return ChunkPool, (self._asked,)

    @property
    def budget_bytes(self) -> int:
        """The budget; with `"auto"` what the passes so far made of it."""
        return self._budget_bytes

    @property
    def limit_bytes(self) -> int:
        """The most the budget may become."""
        return self._limit_bytes

    @property
    def charged_bytes(self) -> int:
        """Bytes of slots that have memory."""
        return self._charged_bytes

    @property
    def n_resident(self) -> int:
        """Chunks that have a slot."""
        return len(self._residents)

    @property
    def n_passes(self) -> int:
        """Passes that are live."""
        return len(self._passes)

    def open_pass(
        self,
        name: str,
        slots: Mapping[ChunkSource, SlotShape],
        floor: Mapping[ChunkSource, int],
        load: Callable[[Sequence[SlotFill]], None],
        *,
        block_chunks: int,
        fitting_block: Callable[[int], int],
    ) -> PoolPass:
        """Start a pass: check its floor and reserve address space for its sources.

        Args:
            name: what messages call it.
            slots: the memory of one chunk, by source.
            floor: chunks of one block in every open lane, by source.
            load: called without the lock with slots to fill; must not block.
            block_chunks: units in a block, for the advice in an error.
            fitting_block: the most of them whose floor fits so many bytes, 0 if none does; called
                for an error only.

        Raises:
            BudgetError: the floors of all live passes do not fit the budget.
        """
        terms = [(shape.name, floor[s], shape.slot_bytes) for s, shape in slots.items()]
        new = PoolPass(self, name, sum(n * size for _, n, size in terms), load)
        with self._lock:
            missing = [source for source in slots if source not in self._arenas]
        arenas = reserve_arenas([slots[source] for source in missing], self._limit_bytes)
        with self._lock:
            budget = self._budget_with(new)
            needed = new.floor_bytes + sum(p.floor_bytes for p in self._passes)
            if needed <= budget:
                self._budget_bytes = budget
                for source, arena in zip(missing, arenas, strict=True):
                    self._arenas.setdefault(source, arena)
                self._passes.append(new)
                self._take_back()
                return new
            others = [f"{p.name!r} {text_of_bytes(p.floor_bytes)}" for p in self._passes]
        fitting = fitting_block(budget - (needed - new.floor_bytes))
        lower = f"lower block_chunks from {block_chunks} to {fitting}" if fitting else "read less"
        msg = (
            f"the floors of the live passes need {text_of_bytes(needed)} but budget_bytes is "
            f"{text_of_bytes(budget)}: {'; '.join([floor_text(name, terms), *others])}; "
            f"{lower} or raise budget_bytes to {needed}"
        )
        raise BudgetError(msg)

    def _budget_with(self, new: PoolPass) -> int:
        if not self._is_auto:
            return self._budget_bytes
        wanted = 2 * (new.floor_bytes + sum(p.floor_bytes for p in self._passes))
        return max(self._budget_bytes, min(wanted, self._limit_bytes))

    def request(self, pool_pass: PoolPass, keys: Sequence[ChunkKey]) -> Admission:
        """Queue chunks for a pass and start what there is room for."""
        admission = Admission(len(keys))
        work = _Work()
        with self._lock:
            if pool_pass.closed:
                admission.interrupt()
                return admission
            pool_pass.queue.extend((key, admission) for key in keys)
            pool_pass.ahead.append(admission)
            self._pump(work)
        work.run()
        return admission

    def claim(self, pool_pass: PoolPass, admission: Admission) -> None:
        """Take nothing back any more of what `admission` leases."""
        with self._lock:
            admission.is_claimed = True
            while pool_pass.ahead and pool_pass.ahead[0].is_claimed:
                pool_pass.ahead.popleft()

    def _take_back(self) -> None:
        """Give room to the floors of all live passes, from what was read ahead.

        Chunks go back to the head of their queue in draw order, the last one first.
        """
        excess = sum(p.reserved_bytes for p in self._passes) - self._budget_bytes
        for pool_pass in self._passes:
            for admission in reversed(pool_pass.ahead):
                while excess > 0 and pool_pass.held_bytes > pool_pass.floor_bytes:
                    if admission.is_claimed or not admission.leased:
                        break
                    before = pool_pass.reserved_bytes
                    self._unadmit(pool_pass, admission)
                    excess -= before - pool_pass.reserved_bytes

    def _unadmit(self, pool_pass: PoolPass, admission: Admission) -> None:
        key = admission.leased.pop()
        resident = self._residents[key]
        if (pool_pass, admission) in resident.waiters:
            resident.waiters.remove((pool_pass, admission))
        else:
            admission.n_left += 1
        pool_pass.queue.appendleft((key, admission))
        self._drop_lease(pool_pass, key)

    def release(self, pool_pass: PoolPass, keys: Iterable[ChunkKey]) -> None:
        """Give back one lease of each chunk; a chunk nobody leases leaves memory."""
        work = _Work()
        with self._lock:
            for key in keys:
                if key in pool_pass.leases:
                    self._drop_lease(pool_pass, key)
            self._pump(work)
        work.run()

    def close_pass(self, pool_pass: PoolPass) -> None:
        """End a pass: its queue, leases and floor go; loads under way end by themselves."""
        work = _Work()
        with self._lock:
            if pool_pass.closed:
                return
            pool_pass.closed = True
            self._passes.remove(pool_pass)
            waiting = {id(a): a for _, a in pool_pass.queue}
            pool_pass.queue.clear()
            pool_pass.ahead.clear()
            for key in list(pool_pass.leases):
                resident = self._residents[key]
                waiting.update((id(a), a) for p, a in resident.waiters if p is pool_pass)
                resident.waiters = [(p, a) for p, a in resident.waiters if p is not pool_pass]
                while key in pool_pass.leases:
                    self._drop_lease(pool_pass, key)
            self._pump(work)
        for admission in waiting.values():
            admission.interrupt()
        work.run()

    def first_rows(self, keys: Sequence[ChunkKey]) -> list[int]:
        """Row of its region at which each chunk starts; the caller leases them all."""
        residents = self._residents
        return [residents[key].arena.row(residents[key].slot) for key in keys]

    def region(self, source: ChunkSource) -> ArenaRegion:
        """The region that holds the rows of a source."""
        return self._arenas[source].region

    def return_memory(self) -> None:
        """Give the memory of idle slots back to the system."""
        with self._lock:
            for arena in self._arenas.values():
                while arena.has_idle:
                    self._charged_bytes -= arena.return_idle_slot()

    def _pump(self, work: _Work) -> None:
        for pool_pass in self._passes:
            queue = pool_pass.queue
            while queue:
                key, admission = queue[0]
                if not self._admit(pool_pass, key, admission, work):
                    break
                queue.popleft()

    def _admit(self, pool_pass: PoolPass, key: ChunkKey, admission: Admission, work: _Work) -> bool:
        arena = self._arenas[key.source]  # type: ignore[index]
        size = arena.shape.slot_bytes
        if key not in pool_pass.leases:
            others = sum(p.reserved_bytes for p in self._passes if p is not pool_pass)
            mine = max(pool_pass.held_bytes + size, pool_pass.floor_bytes)
            if mine + others > self._budget_bytes:
                return False
        resident = self._residents.get(key)
        if resident is None:
            slot = self._take_slot(arena)
            if slot is None:
                return False
            resident = self._residents[key] = _Resident(self, key, arena, slot)
            work.fills.setdefault(pool_pass, []).append(resident)
        if key not in pool_pass.leases:
            pool_pass.held_bytes += size
        pool_pass.leases[key] = pool_pass.leases.get(key, 0) + 1
        admission.leased.append(key)
        resident.leases += 1
        if not resident.is_ready:
            resident.waiters.append((pool_pass, admission))
        elif admission.count_down():
            work.woken.append(admission)
        return True

    def _take_slot(self, arena: Arena) -> int | None:
        if arena.has_idle:
            return arena.take_idle()
        if not arena.has_untouched:
            return None
        size = arena.shape.slot_bytes
        for other in self._arenas.values():
            while self._charged_bytes + size > self._budget_bytes and other.has_idle:
                self._charged_bytes -= other.return_idle_slot()
        if self._charged_bytes + size > self._budget_bytes:
            return None
        self._charged_bytes += size
        return arena.take_untouched()

    def _drop_lease(self, pool_pass: PoolPass, key: ChunkKey) -> None:
        resident = self._residents[key]
        pool_pass.leases[key] -= 1
        if pool_pass.leases[key] == 0:
            del pool_pass.leases[key]
            pool_pass.held_bytes -= resident.arena.shape.slot_bytes
        resident.leases -= 1
        if resident.leases == 0 and resident.is_ready:
            self._free(resident)

    def _free(self, resident: _Resident) -> None:
        del self._residents[resident.key]
        resident.arena.put_back(resident.slot)

    def _landed(self, resident: _Resident, error: BaseException | None, *, cancelled: bool) -> None:
        """The last writer of a slot has left it.

        Thread A (a decode thread) comes here while thread B (a consumer) closes its pass: whoever
        gets the lock second finds the lease gone or the chunk ready, and frees the slot.
        """
        work = _Work()
        with self._lock:
            waiters, resident.waiters = resident.waiters, []
            if cancelled and waiters:
                # Another pass waits for a chunk whose reader was stopped: its own loader reads it.
                resident.waiters = waiters
                work.fills[waiters[0][0]] = [resident]
            elif error is None and not cancelled:
                resident.is_ready = True
                work.woken = [admission for _, admission in waiters if admission.count_down()]
                if resident.leases == 0:
                    self._free(resident)
            else:
                for pool_pass, admission in waiters:
                    if error is not None:
                        admission.fail(error)
                    admission.leased.remove(resident.key)
                    work.woken.append(admission)
                    while resident.key in pool_pass.leases:
                        self._drop_lease(pool_pass, resident.key)
                self._free(resident)
            self._pump(work)
        work.run()
