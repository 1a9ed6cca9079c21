"""The rules of the pool: who is admitted when, and what happens to a chunk when its load ends.

Why nothing deadlocks: a consumer releases the chunks of closing blocks before it waits for the next
ones, so while a block is not admitted, every lease of its pass belongs to blocks that are open,
which fit the floor; and a pass takes more than its floor only from what no other floor needs. Kept
chunks stand in nobody's way, for they can be evicted at any moment. What a pass read ahead into the
floor of one that starts later is taken back from it then, since nobody relies on a lease before its
segment is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.arena import Arena
from torchdata_insitu.pool.chunk_source import ChunkSource
from torchdata_insitu.pool.memory_budget import PoolBudget
from torchdata_insitu.pool.mend import mend_counts
from torchdata_insitu.pool.pool_pass import PoolPass
from torchdata_insitu.pool.pool_work import PoolWork
from torchdata_insitu.pool.residency import Residency
from torchdata_insitu.pool.resident import Resident
from torchdata_insitu.pool.take_back import take_back

__all__ = ["LivePasses"]


class LivePasses:
    """The passes that are live, and the chunks that they lease.

    Every call is made under the pool's lock and does nothing but count. What has to be loaded or
    woken is put into the `PoolWork` that each call is given, for the time after the lock.

    Attributes:
        passes: the live passes.
        n_hits: how often a chunk that was asked for was resident or on its way.
    """

    def __init__(self, budget: PoolBudget, residency: Residency) -> None:
        """Start without passes.

        Args:
            budget: what may be charged.
            residency: the chunks in memory.
        """
        self._budget = budget
        self._residency = residency
        self.passes: list[PoolPass] = []
        self.n_hits = 0

    def start(self, new: PoolPass, arenas: Mapping[ChunkSource, Arena]) -> int:
        """Let a pass begin if its floor fits.

        Returns:
            The bytes of the budget with it that no other floor needs.
        """
        others = sum(pool_pass.floor_bytes for pool_pass in self.passes)
        budget = self._budget.grown_for(others + new.floor_bytes)
        left = budget - others
        if new.floor_bytes <= left:
            self._budget.n_bytes = budget
            self._residency.add(arenas)
            self.passes.append(new)
            take_back(self.passes, budget, self._unadmit)
        return left

    def ask(
        self,
        work: PoolWork,
        pool_pass: PoolPass,
        wanted: Sequence[Sequence[ChunkKey]],
        admissions: Sequence[Admission],
    ) -> None:
        """Queue the chunks of segments for a pass and start what there is room for."""
        if pool_pass.closed:
            for admission in admissions:
                admission.interrupt()
            return
        for keys, admission in zip(wanted, admissions, strict=True):
            pool_pass.queue.extend((key, admission) for key in keys)
            pool_pass.ahead.append(admission)
        self.pump(work)

    def release(self, work: PoolWork, pool_pass: PoolPass, keys: Iterable[ChunkKey]) -> None:
        """Give back one lease of each chunk."""
        self._residency.note_release()
        for key in keys:
            if key in pool_pass.leases:
                self._drop_lease(pool_pass, key)
        self.pump(work)

    def end(self, work: PoolWork, pool_pass: PoolPass) -> None:
        """End a pass; may be called again."""
        pool_pass.closed = True
        if pool_pass not in self.passes:
            pool_pass.leases.clear()
            return
        self.passes.remove(pool_pass)
        waiting = pool_pass.take_queue()
        self._residency.note_release()
        for key in list(pool_pass.leases):
            waiting |= self._residency[key].unwait(pool_pass)
            while key in pool_pass.leases:
                self._drop_lease(pool_pass, key)
        work.interrupted += waiting
        self.pump(work)

    def land(
        self, work: PoolWork, resident: Resident, error: BaseException | None, *, is_cancelled: bool
    ) -> None:
        """The last writer of a slot has left it.

        Thread A (a decode thread) comes here while thread B (a consumer) closes its pass: whoever
        gets the lock second finds the lease gone or the chunk ready, and keeps the chunk.
        """
        residency = self._residency
        if residency.recover(resident) or residency.find(resident.key) is not resident:
            pass
        elif is_cancelled and resident.waiters:
            # Another pass waits for a chunk whose reader was stopped: its own loader reads it.
            resident.loader = resident.waiters[0][0]
            work.fills[resident.loader] = [resident]
        elif error is None and not is_cancelled:
            waiters, resident.waiters = resident.waiters, []
            work.woken += [admission for _, admission in waiters if admission.count_down()]
            residency.landed(resident)
            if resident.leases:
                # It has its slot as before: there is no more room for others.
                return
        else:
            work.woken += resident.fail(error)
            residency.drop(resident)
        self.pump(work)

    def disown(self, work: PoolWork, fills: Iterable[Resident], error: BaseException) -> None:
        """Forget chunks that may or may not be loaded: nobody can be left waiting for them.

        A slot is not used again, nor charged, before somebody answers for it or nobody can any
        more.

        Args:
            work: for afterwards.
            fills: the chunks.
            error: what came as they were handed over. Of an interrupt no pass is told, for it may
                be one of another thread that waits: it asks again.
        """
        is_fault = isinstance(error, Exception)
        for resident in fills:
            if resident.is_ready or self._residency.find(resident.key) is not resident:
                continue
            if not is_fault:
                self._put_waiters_back(resident)
            self._residency.forget(resident)
            work.woken += resident.fail(error)
        self.pump(work)

    def forget_loads(self, work: PoolWork, pool_pass: PoolPass, *, shared: bool) -> None:
        """Forget what the readers of a closed pass have not answered for.

        Args:
            work: for afterwards.
            pool_pass: the pass, whose readers were cancelled.
            shared: also what other passes wait for; these ask for it again.
        """
        for resident in list(self._residency):
            if resident.is_ready or resident.loader is not pool_pass:
                continue
            if shared:
                self._put_waiters_back(resident)
            if not resident.leases:
                self._residency.forget(resident)
        self.pump(work)

    def mend(self) -> None:
        """Make all counts right again after an interrupt."""
        mend_counts(self.passes, self._residency)

    def pump(self, work: PoolWork) -> None:
        """Admit what there is room for, of each pass in draw order."""
        for pool_pass in self.passes:
            queue = pool_pass.queue
            if not queue:
                continue
            others = sum(p.reserved_bytes for p in self.passes if p is not pool_pass)
            left = self._budget.n_bytes - others
            # What others have read ahead into the floor of this pass is for them to give back.
            most = left if left >= pool_pass.floor_bytes else 0
            while queue:
                key, admission = queue[0]
                if not self._admit(pool_pass, key, admission, most, work):
                    break
                queue.popleft()

    def _admit(
        self, pool_pass: PoolPass, key: ChunkKey, admission: Admission, most: int, work: PoolWork
    ) -> bool:
        """Lease a chunk for a pass that may hold `most` bytes; False where there is no room."""
        residency = self._residency
        leases = pool_pass.leases
        n_leases = leases.get(key, 0)
        size = residency.arena(key.source).shape.slot_bytes  # type: ignore[arg-type]
        if not n_leases and pool_pass.held_bytes + size > most:
            return False
        resident = residency.find(key)
        if resident is None:
            resident = residency.place(key, self._budget.n_bytes, pool_pass)
            if resident is None:
                return False
            work.fills.setdefault(pool_pass, []).append(resident)
        else:
            self.n_hits += 1
        if not n_leases:
            pool_pass.held_bytes += size
        leases[key] = n_leases + 1
        admission.leased.append(key)
        residency.lease(resident)
        if not resident.is_ready:
            resident.waiters.append((pool_pass, admission))
        elif admission.count_down():
            work.woken.append(admission)
        return True

    def _unadmit(self, pool_pass: PoolPass, admission: Admission, key: ChunkKey) -> None:
        """Put a chunk that was admitted back to the head of the queue."""
        admission.leased.remove(key)
        resident = self._residency[key]
        if (pool_pass, admission) in resident.waiters:
            resident.waiters.remove((pool_pass, admission))
        else:
            admission.n_left += 1
        pool_pass.queue.appendleft((key, admission))
        self._drop_lease(pool_pass, key)

    def _put_waiters_back(self, resident: Resident) -> None:
        """Let who waits for a chunk ask for it again."""
        for pool_pass, admission in list(resident.waiters):
            self._unadmit(pool_pass, admission, resident.key)

    def _drop_lease(self, pool_pass: PoolPass, key: ChunkKey) -> None:
        resident = self._residency[key]
        n_left = pool_pass.leases[key] - 1
        if n_left > 0:
            pool_pass.leases[key] = n_left
        else:
            del pool_pass.leases[key]
            pool_pass.held_bytes -= resident.arena.shape.slot_bytes
        self._residency.unlease(resident)
