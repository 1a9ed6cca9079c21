"""The chunks in memory: admission, leases and the byte budget of every live pass.

Slot life: FREE -> FILLING -> READY -> FREE, or FILLING -> FREE when the load fails. Bytes of a slot
are written only while it is FILLING and read only while it is READY under a lease. A slot leaves
FILLING only when its last writer has left, which `finish` and `abandon` announce: cancelling a
load never frees its slot. A READY chunk that nobody leases is kept until its slot is needed, the
least recently used first; asked for again before that, it costs no read.

The lock is a leaf: under it there is no I/O, no user code and no wait. What has to be loaded or
woken is collected under the lock and acted upon after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from torchdata_insitu.errors import ClosedError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.arena import ArenaRegion
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.debug_mode import is_debugging
from torchdata_insitu.pool.invariants import check_invariants, check_landing, check_readable
from torchdata_insitu.pool.live_passes import LivePasses
from torchdata_insitu.pool.memory_budget import PoolBudget, text_of_bytes
from torchdata_insitu.pool.pool_pass import PoolPass, SlotFill, budget_error
from torchdata_insitu.pool.pool_work import PoolWork
from torchdata_insitu.pool.residency import Residency
from torchdata_insitu.pool.resident import Resident
from torchdata_insitu.process_check import check_process

__all__ = ["ChunkPool"]

T = TypeVar("T")


class ChunkPool:
    """Resident chunks within a byte budget, shared by every chain that is given the pool.

    Chunks stay in memory after their last use until the budget needs their slots: with room for a
    whole split, a second epoch reads nothing. Whoever changes a store in place calls `clear`.

    With `TORCHDATA_INSITU_DEBUG=1` in the environment it checks its invariants at every step.

    Args:
        budget_bytes: bytes that slots may take; `"50%"` for a share of the memory free now;
            `"auto"` for two blocks of the most passes that were live at once, at most half of the
            memory free now. Batches are outside the budget.

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
        self._live = LivePasses(self._budget, self._residency)
        self._is_torn = False

    def __repr__(self) -> str:
        """What was asked for and what is in use."""
        return (
            f"ChunkPool({self._budget.asked!r}: {text_of_bytes(self.charged_bytes)} charged, "
            f"{self.n_resident} chunks resident, {self.n_passes} live passes)"
        )

    def __reduce__(self) -> tuple[type[ChunkPool], tuple[int | str]]:
        """A pickled or copied pool is an empty one with the same budget."""
        return ChunkPool, (self._budget.asked,)

    @property
    def budget(self) -> PoolBudget:
        """What the pool may charge, and how that came about."""
        return self._budget

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
        return len(self._live.passes)

    @property
    def n_hits(self) -> int:
        """How often a chunk that was asked for was resident or on its way."""
        return self._live.n_hits

    def open_pass(
        self,
        name: str,
        slots: Mapping[ChunkSource, SlotShape],
        floor: Mapping[ChunkSource, int],
        load: Callable[[Sequence[SlotFill]], None],
        *,
        block_chunks: int,
        fitting_block: Callable[[int], int],
        kept_lanes: str = "",
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
            kept_lanes: why neither lanes nor `block_chunks` can be lowered in this epoch, if so.

        Raises:
            BudgetError: the floors of all live passes do not fit the budget.
            ClosedError: in a forked child.
        """
        check_process(self, self._pid)
        new = PoolPass(self, name, slots, floor, load)
        arenas = self._residency.reserve(slots, self._budget.limit_bytes)
        try:
            others, left = self._do(
                lambda _: (list(self._live.passes), self._live.start(new, arenas))
            )
        except BaseException:
            # Nobody else knows the pass yet.
            self.close_pass(new)
            raise
        if new.floor_bytes <= left:
            return new
        raise budget_error(
            new,
            others,
            self._budget,
            block_chunks=block_chunks,
            fitting=fitting_block(left),
            kept_lanes=kept_lanes,
        )

    def _do(self, step: Callable[[PoolWork], T]) -> T:
        """Take a step under the lock, and do afterwards what came up.

        The lock itself is what is held: an interrupt inside the methods of a context manager in
        Python would leave it taken for ever.
        """
        work = PoolWork()
        try:
            with self._lock:
                try:
                    if self._is_torn:
                        self._live.mend()
                        self._is_torn = False
                    result = step(work)
                    if self._is_checked:
                        check_invariants(self._live.passes, self._residency, self._budget.n_bytes)
                except BaseException:
                    self._is_torn = True
                    raise
        finally:
            # Nobody else would wake a waiter or load a chunk that is left undone. Written out here,
            # since an interrupt comes as a function is entered, where it could not be caught.
            left = True
            fault: BaseException | None = None
            while left:
                try:
                    work.run(self._disown)
                    left = False
                except BaseException as error:  # noqa: BLE001 - raised below
                    fault = fault or error
                    work.lost.append((work.handed_over, error))
                    work.handed_over = []
            if fault is not None:
                raise fault
        return result

    def _disown(self, fills: Sequence[Resident], error: BaseException) -> None:
        self._do(lambda work: self._live.disown(work, fills, error))

    def request(self, pool_pass: PoolPass, keys: Sequence[ChunkKey]) -> Admission:
        """Queue chunks for a pass and start what there is room for."""
        return self.request_all(pool_pass, [keys])[0]

    def request_all(
        self, pool_pass: PoolPass, wanted: Sequence[Sequence[ChunkKey]]
    ) -> list[Admission]:
        """The same for several segments, whose loads are begun together."""
        admissions = [Admission(len(keys)) for keys in wanted]
        self._do(lambda work: self._live.ask(work, pool_pass, wanted, admissions))
        return admissions

    def claim(self, pool_pass: PoolPass, admission: Admission) -> None:
        """Take nothing back any more of what `admission` leases."""
        with self._lock:
            admission.is_claimed = True
            while pool_pass.ahead and pool_pass.ahead[0].is_claimed:
                pool_pass.ahead.popleft()

    def release(self, pool_pass: PoolPass, keys: Iterable[ChunkKey]) -> None:
        """Give back one lease of each chunk; what nobody leases is kept until room is needed."""
        self._do(lambda work: self._live.release(work, pool_pass, keys))

    def close_pass(self, pool_pass: PoolPass) -> None:
        """End a pass: its queue, leases and floor go; loads under way end by themselves.

        May be called again, and goes on where an interrupt left it.
        """
        self._do(lambda work: self._live.end(work, pool_pass))

    def forget_loads(self, pool_pass: PoolPass, *, shared: bool) -> None:
        """Forget what the readers of a closed pass have not answered for after they were cancelled.

        These are loads that a thread is just writing, and any that an interrupt lost.

        Args:
            pool_pass: the pass.
            shared: also those that another pass waits for, which then reads them itself.
        """
        self._do(lambda work: self._live.forget_loads(work, pool_pass, shared=shared))

    def landed(
        self, resident: Resident, error: BaseException | None, *, is_cancelled: bool
    ) -> None:
        """The last writer of a slot has left it; called once for each fill, from any thread."""
        if self._is_checked:
            with self._lock:
                check_landing(resident, self._residency)
        self._do(lambda work: self._live.land(work, resident, error, is_cancelled=is_cancelled))

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
        self._do(lambda _: self._residency.clear())

    def return_memory(self) -> None:
        """`clear`, and give the memory of slots without a chunk back to the system."""
        self._do(lambda _: self._residency.return_memory(self._live.passes))

    def is_found(self, source: ChunkSource) -> bool:
        """Whether a stored chunk was there, of all that are resident of a source."""
        with self._lock:
            return any(
                resident.is_ready and resident.n_missing < resident.arena.shape.n_stored
                for resident in self._residency
                if resident.key.source == source
            )
