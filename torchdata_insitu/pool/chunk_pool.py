"""The chunks in memory: admission, leases and the byte budget of every live pass.

Slot life: FREE -> FILLING -> READY -> FREE, or FILLING -> FREE when the load fails. Bytes of a slot
are written only while it is FILLING and read only while it is READY under a lease. A slot leaves
FILLING only when its last writer has left, which `finish` and `abandon` announce: cancelling a
load never frees its slot. A READY chunk that nobody leases is kept until its slot is needed, the
least recently used first; asked for again before that, it costs no read.

The lock is a leaf: under it there is no I/O, no user code and no wait. What has to be loaded or
woken is collected under the lock and acted upon after it.

Why nothing deadlocks: a consumer releases the chunks of closing blocks before it waits for the next
ones, so while a block is not admitted, every lease of its pass belongs to blocks that are open,
which fit the floor; and a pass takes more than its floor only from what no other floor needs. Kept
chunks stand in nobody's way, for they can be evicted at any moment. What a pass read ahead into the
floor of one that starts later is taken back from it then, since nobody relies on a lease before its
segment is claimed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchdata_insitu.errors import ClosedError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.arena import ArenaRegion
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.debug_mode import is_debugging
from torchdata_insitu.pool.invariants import check_invariants, check_landing, check_readable
from torchdata_insitu.pool.memory_budget import PoolBudget, text_of_bytes
from torchdata_insitu.pool.mend import mend_counts
from torchdata_insitu.pool.pool_pass import PoolPass, SlotFill, budget_error
from torchdata_insitu.pool.pool_work import PoolWork
from torchdata_insitu.pool.residency import Residency
from torchdata_insitu.pool.resident import Resident
from torchdata_insitu.pool.take_back import take_back

__all__ = ["ChunkPool"]


class ChunkPool:
    """Resident chunks within a byte budget, shared by every chain that is given the pool.

    Chunks stay in memory after their last use until the budget needs their slots: with room for a
    whole split, a second epoch reads nothing. Whoever changes a store in place calls `clear`.

    With `TORCHDATA_INSITU_DEBUG=1` in the environment it checks its invariants at every step.

    Args:
        budget_bytes: bytes that slots may take; `"50%"` for a share of the memory free now;
            `"auto"` for two blocks of every pass, at most half of the memory free now. Batches
            are outside the budget.

    Attributes:
        n_hits: how often a chunk that was asked for was resident or on its way.

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
        self._budget = PoolBudget(budget_bytes)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_checked = is_debugging()
        self._residency = Residency(overwrites=self._is_checked)
        self._passes: list[PoolPass] = []
        self._is_torn = False
        self.n_hits = 0

    def __repr__(self) -> str:
        """What was asked for and what is in use."""
        return (
            f"ChunkPool({self._budget.asked!r}: {text_of_bytes(self.charged_bytes)} charged, "
            f"{self.n_resident} chunks resident, {len(self._passes)} live passes)"
        )

    def __reduce__(self) -> tuple[type[ChunkPool], tuple[int | str]]:
        """A pickled or copied pool is an empty one with the same budget."""
        return ChunkPool, (self._budget.asked,)

    @property
    def budget_bytes(self) -> int:
        """The budget; with `"auto"` what the passes so far made of it."""
        return self._budget.n_bytes

    @property
    def charged_bytes(self) -> int:
        """Bytes of slots that have memory."""
        return self._residency.charged_bytes

    @property
    def n_resident(self) -> int:
        """Chunks that have a slot."""
        return len(self._residency)

    @property
    def n_in_use(self) -> int:
        """Chunks that are leased or being read."""
        return len(self._residency) - self._residency.n_kept

    @property
    def n_evicted(self) -> int:
        """Chunks that left memory to make room for others."""
        return self._residency.n_evicted

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
            ClosedError: in a forked child.
        """
        terms = [(shape.name, floor[s], shape.slot_bytes) for s, shape in slots.items()]
        new = PoolPass(self, name, sum(n * size for _, n, size in terms), load)
        if os.getpid() != self._pid:
            msg = (
                f"the pool was made in process {self._pid} and used in its forked child "
                f"{os.getpid()}: start workers with the 'spawn' method, or make a pool in the child"
            )
            raise ClosedError(msg)
        reserved = self._residency.reserve(slots, self._budget.limit_bytes)
        try:
            with self._working():
                self._mend()
                others = list(self._passes)
                floors = new.floor_bytes + sum(p.floor_bytes for p in others)
                budget = self._budget.grown_for(floors)
                left = budget - sum(p.floor_bytes for p in others)
                if new.floor_bytes <= left:
                    self._budget.n_bytes = budget
                    self._residency.add(reserved)
                    self._passes.append(new)
                    take_back(self._passes, budget, self._unadmit)
                    return new
        except BaseException:
            # Nobody else knows the pass yet.
            self.close_pass(new)
            raise
        fitting = fitting_block(left)
        lower = f"lower block_chunks from {block_chunks} to {fitting}" if fitting else "read less"
        raise budget_error(new, terms, others, budget, lower)

    def request(self, pool_pass: PoolPass, keys: Sequence[ChunkKey]) -> Admission:
        """Queue chunks for a pass and start what there is room for."""
        admission = Admission(len(keys))
        with self._working() as work:
            if pool_pass.closed:
                admission.interrupt()
                return admission
            pool_pass.queue.extend((key, admission) for key in keys)
            pool_pass.ahead.append(admission)
            self._pump(work)
        return admission

    @contextlib.contextmanager
    def _working(self) -> Iterator[PoolWork]:
        """Hold the lock, and do afterwards what came up: also if an interrupt comes in between."""
        work = PoolWork()
        try:
            with self._lock:
                yield work
                if self._is_checked:
                    check_invariants(self._passes, self._residency, self._budget.n_bytes)
        except BaseException:
            self._is_torn = True
            raise
        finally:
            work.run(self._disown)

    def _disown(self, fills: Sequence[Resident]) -> None:
        """Forget chunks that may or may not be loaded: nobody can be left waiting for them.

        Their slots are not used again before somebody answers for them, which may be never; so they
        are not charged until then.
        """
        error = ClosedError("reading a chunk was interrupted before it began: reset and ask again")
        with self._working() as work:
            for resident in fills:
                if not resident.is_ready and self._residency.find(resident.key) is resident:
                    self._residency.forget(resident)
                    work.woken += resident.fail(error)
            self._pump(work)

    def forget_loads(self, pool_pass: PoolPass) -> None:
        """Forget what the readers of a closed pass have not answered for after they were cancelled.

        These are loads that a thread is just writing, and any that an interrupt lost.
        """
        with self._working() as work:
            for resident in list(self._residency):
                if resident.loader is pool_pass and not (resident.is_ready or resident.leases):
                    self._residency.forget(resident)
            self._pump(work)

    def claim(self, pool_pass: PoolPass, admission: Admission) -> None:
        """Take nothing back any more of what `admission` leases."""
        with self._lock:
            admission.is_claimed = True
            while pool_pass.ahead and pool_pass.ahead[0].is_claimed:
                pool_pass.ahead.popleft()

    def _unadmit(self, pool_pass: PoolPass, admission: Admission) -> None:
        key = admission.leased.pop()
        resident = self._residency[key]
        if (pool_pass, admission) in resident.waiters:
            resident.waiters.remove((pool_pass, admission))
        else:
            admission.n_left += 1
        pool_pass.queue.appendleft((key, admission))
        self._drop_lease(pool_pass, key)

    def release(self, pool_pass: PoolPass, keys: Iterable[ChunkKey]) -> None:
        """Give back one lease of each chunk; what nobody leases is kept until room is needed."""
        with self._working() as work:
            self._residency.note_release()
            for key in keys:
                if key in pool_pass.leases:
                    self._drop_lease(pool_pass, key)
            self._pump(work)

    def close_pass(self, pool_pass: PoolPass) -> None:
        """End a pass: its queue, leases and floor go; loads under way end by themselves.

        May be called again, and goes on where an interrupt left it.
        """
        with self._working() as work:
            self._mend()
            pool_pass.closed = True
            if pool_pass not in self._passes:
                pool_pass.leases.clear()
                return
            self._passes.remove(pool_pass)
            waiting = pool_pass.take_queue()
            self._residency.note_release()
            for key in list(pool_pass.leases):
                waiting |= self._residency[key].unwait(pool_pass)
                while key in pool_pass.leases:
                    self._drop_lease(pool_pass, key)
            self._pump(work)
        for admission in waiting:
            admission.interrupt()

    def _mend(self) -> None:
        if self._is_torn:
            mend_counts(self._passes, self._residency)
            self._is_torn = False

    def first_rows(self, pool_pass: PoolPass, keys: Sequence[ChunkKey]) -> list[int]:
        """Row of its region at which each chunk starts; `ClosedError` if the pass has ended."""
        with self._lock:
            if pool_pass.closed:
                raise ClosedError("the pass ended while its chunks were looked up: reset the node")
            residents = [self._residency[key] for key in keys]
            if self._is_checked:
                check_readable(pool_pass, residents)
        return [resident.arena.row(resident.slot) for resident in residents]

    def region(self, source: ChunkSource) -> ArenaRegion:
        """The region that holds the rows of a source."""
        return self._residency.arena(source).region

    def clear(self) -> None:
        """Let go of every chunk that no pass leases: the next one that asks for it reads it again.

        The memory stays with the pool, see `return_memory`.

        Example:
            >>> import torchdata_insitu as tdi
            >>> from torchdata_insitu.testing import make_store
            >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
            >>> pool = tdi.ChunkPool("10%")
            >>> loader = tdi.build_loader(store, tdi.open_arrays(store), batch_size=4, pool=pool)
            >>> len(list(loader)), pool.n_resident
            (3, 3)
            >>> pool.clear()
            >>> pool.n_resident
            0
        """
        with self._working():
            self._mend()
            self._residency.clear()

    def return_memory(self) -> None:
        """`clear`, and give the memory of slots without a chunk back to the system."""
        with self._working():
            self._mend()
            self._residency.clear()
            self._residency.return_memory()

    def _pump(self, work: PoolWork) -> None:
        for pool_pass in self._passes:
            queue = pool_pass.queue
            while queue:
                key, admission = queue[0]
                if not self._admit(pool_pass, key, admission, work):
                    break
                queue.popleft()

    def _admit(
        self, pool_pass: PoolPass, key: ChunkKey, admission: Admission, work: PoolWork
    ) -> bool:
        residency = self._residency
        size = residency.arena(key.source).shape.slot_bytes  # type: ignore[arg-type]
        if key not in pool_pass.leases:
            others = sum(p.reserved_bytes for p in self._passes if p is not pool_pass)
            mine = max(pool_pass.held_bytes + size, pool_pass.floor_bytes)
            if mine + others > self._budget.n_bytes:
                return False
        resident = residency.find(key)
        if resident is None:
            resident = residency.place(key, self._budget.n_bytes, self, pool_pass)
            if resident is None:
                return False
            work.fills.setdefault(pool_pass, []).append(resident)
        else:
            self.n_hits += 1
        if key not in pool_pass.leases:
            pool_pass.held_bytes += size
        pool_pass.leases[key] = pool_pass.leases.get(key, 0) + 1
        admission.leased.append(key)
        residency.lease(resident)
        if not resident.is_ready:
            resident.waiters.append((pool_pass, admission))
        elif admission.count_down():
            work.woken.append(admission)
        return True

    def _drop_lease(self, pool_pass: PoolPass, key: ChunkKey) -> None:
        resident = self._residency[key]
        pool_pass.leases[key] -= 1
        if pool_pass.leases[key] == 0:
            del pool_pass.leases[key]
            pool_pass.held_bytes -= resident.arena.shape.slot_bytes
        self._residency.unlease(resident)

    def landed(
        self, resident: Resident, error: BaseException | None, *, is_cancelled: bool
    ) -> None:
        """The last writer of a slot has left it; called once for each fill, from any thread.

        Thread A (a decode thread) comes here while thread B (a consumer) closes its pass: whoever
        gets the lock second finds the lease gone or the chunk ready, and keeps the chunk.
        """
        with self._working() as work:
            if self._is_checked:
                check_landing(resident, self._residency)
            if self._residency.recover(resident):
                pass
            elif is_cancelled and resident.waiters:
                # Another pass waits for a chunk whose reader was stopped: its own loader reads it.
                resident.loader = resident.waiters[0][0]
                work.fills[resident.loader] = [resident]
            elif error is None and not is_cancelled:
                waiters, resident.waiters = resident.waiters, []
                work.woken = [admission for _, admission in waiters if admission.count_down()]
                self._residency.landed(resident)
            else:
                work.woken += resident.fail(error)
                self._residency.drop(resident)
            self._pump(work)
