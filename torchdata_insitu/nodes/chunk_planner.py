"""The first node of the chain: which draws, in which order, and which chunks they need."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View, as_views
from torchdata_insitu.nodes.cursor_node import CursorNode
from torchdata_insitu.nodes.ranks import resolve_ranks
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import FORMAT, Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.segments import Segment
from torchdata_insitu.planning.split import Split, Splits
from torchdata_insitu.planning.whole_number import whole_number

__all__ = ["ChunkPlanner"]

_logger = logging.getLogger(__name__)


class ChunkPlanner(CursorNode[Segment]):
    """Yields this rank's segments of an epoch; reads nothing.

    Args:
        views: what a batch holds, by name; views or bare arrays of `open_arrays`.
        batch_size: draws in a batch of one rank.
        split: the samples to draw from; None for all.
        shuffle: permute runs of chunks, and the draws inside each block. False keeps store order.
        seed: keys every permutation; the same seed and epoch give the same order anywhere.
        block_chunks: units whose draws are shuffled among themselves. It sets how far a sample can
            move and how much has to be resident, and nothing else.
        run_chunks: consecutive units permuted as one; None for 1 without offsets and a quarter of
            `block_chunks` with. Where arrays have shards, None is at least the units of a shard, or
            about equal parts of them of at most a quarter of `block_chunks`.
        tail: what happens to a last batch that is not full: `"short"`, `"drop"`, `"pad"` or
            `"exact"`; None for `"short"` when shuffled, else `"exact"`.
        lanes: equal shares of an epoch that are read side by side; None for the world size.
        rank: data-parallel rank; None to look it up at the first `next`.
        world_size: number of data-parallel ranks; None to look it up.

    State:
        The cursor of the next segment.

    Threads:
        None of its own.

    Raises:
        GeometryError: views that cannot be drawn together.
        PlanError: no sample is left, an epoch of zero batches, a split of another length or
            several splits, or an option of the wrong kind.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> t2m = tdi.open_arrays(make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3)))["t2m"]
        >>> planner = tdi.ChunkPlanner({"x": t2m}, batch_size=4, shuffle=False, block_chunks=1)
        >>> [segment.draws[:, 0].tolist() for segment in planner][0]
        [0, 1, 2, 3]
    """

    # Ranks that were looked up belong to the process: a spawned one may be of another rank.
    _RUNTIME: ClassVar[dict[str, Any]] = {"_segments": iter(()), "_ranks": None}

    def __init__(
        self,
        views: Mapping[str, View | ArrayGeometry],
        *,
        batch_size: int,
        split: Split | None = None,
        shuffle: bool = True,
        seed: int = 0,
        block_chunks: int = 16,
        run_chunks: int | None = None,
        tail: str | None = None,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Check the plan; rank and world size are looked up later unless they are given."""
        super().__init__()
        if isinstance(split, Splits):
            msg = f"split is all of the splits {sorted(split)}: choose one of them by its name"
            raise PlanError(msg)
        if split is not None and not isinstance(split, Split):
            msg = (
                f"split is {split!r} of type {type(split).__name__}: give a Split, such as "
                "split_by_range(views, {'train': (0, 100)})['train'], or None for all samples"
            )
            raise PlanError(msg)
        rank, world_size = (
            None if value is None else whole_number(name, value)
            for name, value in (("rank", rank), ("world_size", world_size))
        )
        is_count = isinstance(lanes, int | np.integer) and not isinstance(lanes, bool)
        if lanes is not None and not (is_count and lanes >= 1):
            msg = f"lanes is {lanes!r}, but must be an integer of at least 1, or None"
            raise PlanError(msg)
        self.views = as_views(views)
        self.space = AnchorSpace(self.views, split)
        self.plan = Plan(
            self.space,
            seed=seed,
            shuffle=shuffle,
            block_chunks=block_chunks,
            run_chunks=run_chunks,
            # Checked here, since a plan takes None for its own default.
            batch_size=whole_number("batch_size", batch_size, least=1),
            tail=tail,
        )
        self._asked_ranks = (rank, world_size)
        self._asked_lanes = None if lanes is None else int(lanes)
        self._ranks: tuple[int, int] | None = None
        self._told_of_lanes = False
        self._segments: Iterator[Segment] = iter(())
        if rank is not None or world_size is not None:
            self._ranks = resolve_ranks(rank, world_size)
        # Too few draws for one rank are too few for any number of ranks.
        self.plan.check(self._ranks[1] if self._ranks else 1)

    @property
    def planner(self) -> ChunkPlanner:
        """Itself."""
        return self

    @property
    def arrays(self) -> tuple[ArrayGeometry, ...]:
        """The arrays that are read, numbered as in the chunks of a segment."""
        return self.space.arrays

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and world size, looked up at the first use."""
        if self._ranks is None:
            ranks = resolve_ranks(*self._asked_ranks)
            self.plan.check(ranks[1])
            self._ranks = ranks
        return self._ranks

    @property
    def known_ranks(self) -> tuple[int, int] | None:
        """Rank and world size if they were given or looked up already."""
        return self._ranks

    def first_cursor(self) -> Cursor:
        """Where the first epoch begins."""
        return self.start_of(0)

    def start_of(self, epoch: int, before: Cursor | None = None) -> Cursor:
        """Where an epoch begins that comes after a cursor of another."""
        return Cursor(epoch, 0, self.lanes_after(None if before is None else before.lanes))

    def start_again(self, cursor: Cursor) -> Cursor:
        """Where the epoch of a cursor began; it keeps its lanes."""
        return Cursor(cursor.epoch, 0, cursor.lanes)

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """Where the epoch after a cursor begins."""
        return self.start_of(cursor.epoch + 1, cursor)

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether a cursor stands at position N."""
        return cursor.position >= self.plan.n_draws

    def steps_from(self, cursor: Cursor) -> int:
        """Batches that every rank still gets from a cursor to the end of its epoch."""
        return self.plan.steps(cursor.position, self.ranks[1])

    def after(self, cursor: Cursor, n_batches: int) -> Cursor:
        """The cursor so many batches later; position N after the last one, whatever the tail."""
        position = self.plan.n_draws
        if n_batches < self.steps_from(cursor):
            position = cursor.position + n_batches * self.plan.batch_size * self.ranks[1]
        return Cursor(cursor.epoch, position, cursor.lanes)

    def lanes_after(self, lanes: int | None) -> int:
        """Lanes of an epoch that follows one with `lanes`; an epoch in progress keeps its."""
        if self._asked_lanes is not None:
            return self._asked_lanes
        world_size = self.ranks[1]
        if lanes is None or lanes % world_size == 0:
            return lanes or world_size
        _logger.info("lanes change from %d to the world size %d", lanes, world_size)
        return world_size

    def reads_from(self, cursor: Cursor, n_batches: int | None = None) -> dict[str, int]:
        """Stored chunks this rank reads from a cursor on, by array.

        Args:
            cursor: where the pass begins.
            n_batches: those that are wanted; None for all to the end of the epoch.
        """
        rank, world_size = self.ranks
        return self.plan.reads(
            rank,
            world_size=world_size,
            epoch=cursor.epoch,
            lanes=cursor.lanes,
            position=cursor.position,
            n_batches=n_batches,
        )

    def floor_terms(self, lanes: int) -> list[tuple[str, int, int]]:
        """What one block in every open lane takes: by array its name, chunks, bytes of a chunk."""
        n_chunks = self.plan.floor_chunks(*self.ranks, lanes)
        sizes = [array.chunk_bytes for array in self.arrays]
        return list(zip(self.space.array_names, n_chunks, sizes, strict=True))

    def floor_bytes(self, lanes: int) -> int:
        """The least budget for a pass over so many lanes."""
        return sum(n_chunks * size for _, n_chunks, size in self.floor_terms(lanes))

    def read_cursor(self, state: Any, *, format_name: str = FORMAT) -> Cursor:
        """Check a state against the plan.

        Args:
            state: what `write_cursor` gave.
            format_name: the format it has to be of; a loader writes its own.

        Raises:
            StateError: foreign, newer, out of range, of another plan, or inside a batch that this
                rank does not hand out.
        """
        fingerprint, n_draws = self.plan.fingerprint(), self.plan.n_draws
        cursor = Cursor.from_state(state, fingerprint, n_draws, format_name=format_name)
        if cursor.origin is not None:
            self.plan.segments(cursor, *self.ranks)
        return cursor

    def write_cursor(self, cursor: Cursor) -> dict[str, Any]:
        """The state that a cursor of this plan stands for."""
        return cursor.to_state(self.plan.fingerprint())

    def _start(self, cursor: Cursor) -> None:
        self._tell_of_lanes(cursor.lanes, self.ranks[1])
        self._segments = self.plan.segments(cursor, *self.ranks)

    def _tell_of_lanes(self, lanes: int, world_size: int) -> None:
        factor = world_size // math.gcd(lanes, world_size)
        if factor > 1 and not self._told_of_lanes:
            self._told_of_lanes = True
            _logger.warning(
                "%d lanes on %d ranks: each chunk is read by up to %d ranks; give lanes that the "
                "world size divides, or wait for the next epoch if this one was resumed",
                lanes,
                world_size,
                factor,
            )

    def _make(self) -> Segment:
        return next(self._segments)

    def _cursor_after(self, item: Segment) -> Cursor:
        return item.after
