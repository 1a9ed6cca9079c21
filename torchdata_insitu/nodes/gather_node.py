"""Turns resident segments into batches: the cut where draws become samples."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.gather.batch_buffers import BatchBuffers
from torchdata_insitu.gather.drawn_rows import DrawnRows
from torchdata_insitu.gather.row_copy import RowCopy
from torchdata_insitu.nodes.batch_memory import BatchMemory, page_locked
from torchdata_insitu.nodes.batch_transforms import BatchTransforms, TransformPlace
from torchdata_insitu.nodes.cursor_node import SourcedNode
from torchdata_insitu.nodes.segment_node import ResidentSegment
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.pool.pool_pass import PoolPass

Batch = dict[str, Tensor]

__all__ = ["GatherNode"]

VALID = "valid"

# A copy gives the interpreter away and has to wait for it afterwards, which takes longer than the
# copy of a small batch: so many bytes of small batches are copied at once.
_BYTES_AT_ONCE = 1 << 22
_MOST_AT_ONCE = 16


class _MadeBatch(NamedTuple):
    """A batch as it was stored, that is to be handed out."""

    batch: Batch
    after: Cursor
    """The cursor of the batch that follows it."""
    samples: np.ndarray
    """The sample of each row."""
    pool_pass: PoolPass
    """Who leases its chunks."""


class GatherNode(SourcedNode["Batch"]):
    """Copies drawn rows out of slots into batches.

    A batch is a plain dictionary of tensors in native byte order, C-contiguous, writable, that
    never alias a slot: the views by name, `sample_index` (int64, `(B,)`) and, with tail
    `"pad"` or `"exact"`, `valid` (bool, `(B,)`), which is False for copies.

    Args:
        source: a `ChunkPoolNode`.
        batch_transforms: functions `f(batch) -> batch` or `f(batch, rng) -> batch`, applied in
            order, in the thread that makes batches; what they return is never kept. `rng` is a
            `SampleRandom`, and goes to those with a second parameter that has no default, or one
            of that name.
        sample_index: the name under which the anchors come; None leaves them out.
        pin_memory: gather into page-locked memory where there is an accelerator, and into pageable
            memory where there is none. Pageable memory is recycled once nothing refers to it,
            page-locked memory by torch.

    State:
        The cursor of the next batch.

    Threads:
        None of its own.

    Raises:
        PlanError: `sample_index` is no name; a view has its name or is called `valid`; a
            transform that cannot be called with a batch, or with a batch and `rng`; at a batch, a
            transform that did not return a dictionary.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
        >>> views = {"x": tdi.open_arrays(store)["t2m"].window(-1, 0)}
        >>> pool = tdi.ChunkPool("10%")
        >>> planner = tdi.ChunkPlanner(views, batch_size=4, shuffle=False)
        >>> fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
        >>> gather = tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))
        >>> batch = next(gather)
        >>> tuple(batch["x"].shape), batch["sample_index"].tolist()
        ((4, 2, 2, 3), [1, 2, 3, 4])
        >>> fetcher.shutdown()
    """

    _RUNTIME: ClassVar[dict[str, Any]] = {
        "_segment": None,
        "_made": None,
        "_buffers": None,
        "_n_at_once": 1,
        "_after": None,
        "_is_locked": None,
    }

    def __init__(
        self,
        source: BaseNode[ResidentSegment],
        *,
        batch_transforms: Sequence[Callable[..., Batch]] = (),
        sample_index: str | None = "sample_index",
        pin_memory: bool = False,
    ) -> None:
        """Stand on a node of resident segments."""
        super().__init__(source)
        self._transforms = BatchTransforms(batch_transforms)
        if sample_index == "" or not isinstance(sample_index, str | None):
            msg = (
                f"sample_index is {sample_index!r} of type {type(sample_index).__name__}: give the "
                "name under which the anchors come, or None"
            )
            raise PlanError(msg)
        self.sample_index = sample_index
        if not isinstance(pin_memory, bool):
            msg = f"pin_memory is {pin_memory!r}: a GatherNode takes True or False"
            raise PlanError(msg)
        self.pin_memory = pin_memory
        plan = self.planner.plan
        self._names_valid = plan.tail in {"pad", "exact"}
        if self._names_valid and sample_index == VALID:
            msg = (
                f"sample_index is {VALID!r}, the name of what says which draws are copies (tail "
                f"{plan.tail!r}): give it another name"
            )
            raise PlanError(msg)
        taken = [n for n in (sample_index, VALID if self._names_valid else None) if n is not None]
        for name in taken:
            if name in self.planner.views:
                msg = (
                    f"a view is named {name!r}, which every batch has beside the views: rename the "
                    f"view, or give sample_index another name (now {sample_index!r})"
                )
                raise PlanError(msg)
        numbers = {array: number for number, array in enumerate(self.planner.arrays)}
        self._parts = {
            name: (
                tuple(numbers[array] for array in view.arrays),
                np.array(view.offsets, np.int64),
            )
            for name, view in self.planner.views.items()
        }
        self._copies = {name: RowCopy() for name in self._parts}
        self._buffers: BatchBuffers | None = None
        # Whether memory is page-locked, known from the first batch on.
        self._is_locked: bool | None = None
        self._segment: tuple[ResidentSegment, DrawnRows] | None = None
        self._made: deque[_MadeBatch] | None = None
        self._n_at_once = 1
        self._drawn = 0
        self._n_cut = 0
        self._after: Cursor | None = None

    @property
    def batch_transforms(self) -> tuple[Callable[..., Batch], ...]:
        """What a batch goes through, in order."""
        return self._transforms.transforms

    @property
    def most_at_once(self) -> int:
        """Batches that are gathered together at most, into one array for each name."""
        is_locked = self.pin_memory if self._is_locked is None else self._is_locked
        if is_locked:
            return 1
        n_at_once = _BYTES_AT_ONCE // max(1, self.planner.plan.batch_size * self.draw_bytes)
        return max(1, min(n_at_once, _MOST_AT_ONCE))

    @property
    def n_ready(self) -> int:
        """Batches that were gathered together with an earlier one and await no transform."""
        made = self._made
        return 0 if made is None or self.batch_transforms else len(made)

    def _start(self, cursor: Cursor) -> None:
        self._segment = None
        self._made = None
        self._after = cursor
        super()._start(cursor)

    def _cursor_after(self, item: Batch) -> Cursor:
        return self._after or super()._cursor_after(item)

    def _make(self) -> Batch:
        ahead = self._made = self._made or self._gathered()
        made = ahead.popleft()
        self._after = made.after
        if not self.batch_transforms:
            return made.batch
        cursor = self.cursor
        where = TransformPlace(self.planner.plan.seed, cursor.epoch, cursor.position)
        try:
            return self._transforms.apply(made.batch, where, made.samples)
        except BaseException:
            # Leases and floor end with the error, not with whoever keeps it.
            made.pool_pass.close()
            raise

    def _gathered(self) -> deque[_MadeBatch]:
        """The next batches as they were stored; of small ones several that end in one segment."""
        memory: BatchMemory | None = None
        drawn: list[np.ndarray] = []
        filled = 0
        while True:
            if self._segment is None:
                # Chunks of closing blocks were given back before this wait, so that a slot is
                # always free or on its way to be.
                resident = next(self.source)
                anchors = resident.segment.draws[:, 0]
                self._segment = resident, DrawnRows(anchors, resident.lookups, self._parts)
                self._drawn = self._n_cut = 0
            resident, rows = self._segment
            if memory is None:
                memory = self._batch_memory()
            segment = resident.segment
            cuts = segment.cuts[self._n_cut : self._n_cut + self._n_at_once]
            stop = cuts[-1].stop if cuts else len(segment.draws)
            self._copy(resident, rows, slice(self._drawn, stop), memory.arrays, filled)
            drawn.append(segment.draws[self._drawn : stop, 0])
            if resident.fetched.pool_pass.closed:
                # Another thread closed the pass, and the slots may have been used again meanwhile.
                msg = "the chunks of a batch were given back while it was made: reset the node"
                raise ClosedError(msg)
            ends = [(filled + cut.stop - self._drawn, cut.position) for cut in cuts]
            filled += stop - self._drawn
            self._drawn = stop
            self._n_cut += len(cuts)
            if stop == len(segment.draws):
                self._segment = None
                resident.release()
            if cuts:
                break
        samples = drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
        made: deque[_MadeBatch] = deque()
        start = 0
        for end, position in ends:
            if end - start > self.planner.plan.batch_size:
                batch_size = self.planner.plan.batch_size
                msg = f"a batch of {end - start} draws was cut, but batch_size is {batch_size}"
                raise PlanError(msg)
            after = segment.cursor.between_batches(position)
            batch, anchors = memory.batch(start, end), samples[start:end]
            made.append(_MadeBatch(batch, after, anchors, resident.fetched.pool_pass))
            start = end
        return made

    def _shapes(self, n_draws: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        shapes: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            name: ((n_draws, *view.sample_shape), view.dtype)
            for name, view in self.planner.views.items()
        }
        if self.sample_index is not None:
            shapes[self.sample_index] = ((n_draws,), np.dtype(np.int64))
        if self._names_valid:
            shapes[VALID] = ((n_draws,), np.dtype(np.bool_))
        return shapes

    @property
    def draw_bytes(self) -> int:
        """Bytes of one draw in a batch, before the batch transforms."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._shapes(1).values())

    def _batch_memory(self) -> BatchMemory:
        if self._is_locked is None:
            # Asked for at the first batch: before, nothing of the accelerator is started.
            self._is_locked = self.pin_memory and torch.accelerator.is_available()
        batch_size = self.planner.plan.batch_size
        if self._is_locked:
            return page_locked(self._shapes(batch_size))
        buffers = self._buffers
        if buffers is None:
            self._n_at_once = self.most_at_once
            buffers = BatchBuffers(self._shapes(batch_size * self._n_at_once))
            self._buffers = buffers
        return BatchMemory(buffers.take())

    def _copy(
        self,
        resident: ResidentSegment,
        drawn: DrawnRows,
        draws: slice,
        arrays: dict[str, np.ndarray],
        filled: int,
    ) -> None:
        segment = resident.segment
        place = slice(filled, filled + draws.stop - draws.start)
        for name, (numbers, _) in self._parts.items():
            rows = drawn.of(name, draws.start, draws.stop)
            out = arrays[name][place]
            field = resident.regions[numbers[0]].shape[1:]
            self._copies[name].copy(
                [resident.regions[n] for n in numbers], rows, out.reshape(*rows.shape, *field)
            )
        if self.sample_index is not None:
            arrays[self.sample_index][place] = segment.draws[draws, 0]
        if self._names_valid:
            arrays[VALID][place] = segment.valid[draws]

    def _stop(self) -> None:
        # The leases of the segment end with the pass.
        self._segment = None
        self._made = None
        self._buffers = None
