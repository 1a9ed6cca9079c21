"""The first node of the chain: which draws, in which order, and which chunks they need."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch.distributed.device_mesh import DeviceMesh

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View, as_views
from torchdata_insitu.nodes.cursor_node import CursorNode
from torchdata_insitu.nodes.ranks import Ranks
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import FORMAT, Cursor
from torchdata_insitu.planning.outgrown_plans import OutgrownPlans
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
        rank: data-parallel rank; None to look it up: of `torch.distributed` if it is initialized,
            else of torchrun's environment, else alone. It may change until the first `next`.
        world_size: number of data-parallel ranks; None to look it up.
        mesh: the data-parallel dimension of a device mesh, such as `mesh["dp"]`, instead of both;
            asked at the first use. A pickled planner takes it along as torch does: it is good in
            a process that has the same process groups.

    State:
        The cursor of the next segment. One that was saved before the data grew is taken too: its
        epoch is finished over the draws that it began with.

    Threads:
        None of its own.

    Raises:
        GeometryError: views that cannot be drawn together.
        PlanError: no sample is left, an epoch of zero batches, a split of another length or
            several splits, or an option of the wrong kind; at the first use, a mesh without this
            process; later, ranks that changed after draws were handed out.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> t2m = tdi.open_arrays(make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3)))["t2m"]
        >>> planner = tdi.ChunkPlanner({"x": t2m}, batch_size=4, shuffle=False, block_chunks=1)
        >>> [segment.draws[:, 0].tolist() for segment in planner][0]
        [0, 1, 2, 3]
    """

    # What was found of ranks belongs to the process: a spawned one may be of another rank.
    _RUNTIME: ClassVar[dict[str, Any]] = {
        "_segments": None,
        "_checked_ranks": None,
        "_early_steps": None,
    }

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
        mesh: DeviceMesh | None = None,
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
        self._ranks = Ranks(rank, world_size, mesh)
        self._asked_lanes = None if lanes is None else int(lanes)
        self._checked_ranks: tuple[int, int] | None = None
        self._early_steps: tuple[Cursor, int] | None = None
        self._told_of_lanes = self._told_of_steps = False
        self._told_of_change: tuple[int, int] | None = None
        self._outgrown = OutgrownPlans(self.plan, self.space)
        self._segments: Iterator[Segment] | None = None
        # Too few draws for one rank are too few for any number of ranks.
        given = self._ranks.lasting
        self.plan.check(given[1] if given else 1)

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
        """Rank and world size; unless they are given, they may change until the first `next`.

        Raises:
            PlanError: they changed later, or no rank would get a batch.
        """
        ranks = self._ranks.find(self._upcoming)
        if ranks != self._checked_ranks:
            self.plan.check(ranks[1])
            self._checked_ranks = ranks
            self._tell_of_steps(ranks[1])
        return ranks

    def use_ranks(self) -> tuple[int, int]:
        """Rank and world size that draws are handed out under from now on.

        Raises:
            PlanError: draws were handed out under other ones, or no rank would get a batch.
        """
        self._ranks.use(self._upcoming)
        return self.ranks

    @property
    def known_ranks(self) -> tuple[int, int] | None:
        """Rank and world size if they are known and stay as they are."""
        return self._ranks.lasting

    def first_cursor(self) -> Cursor:
        """Where the first epoch begins."""
        return self.start_of(0)

    def start_of(self, epoch: int, before: Cursor | None = None) -> Cursor:
        """Where an epoch begins that comes after a cursor of another."""
        return Cursor(epoch, 0, self.lanes_after(None if before is None else before.lanes))

    def start_again(self, cursor: Cursor) -> Cursor:
        """Where the epoch of a cursor began; it keeps its lanes and draws."""
        return cursor.between_batches(0)

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """Where the epoch after a cursor begins."""
        return self.start_of(cursor.epoch + 1, cursor)

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether a cursor stands at position N."""
        return cursor.position >= self.plan_of(cursor).n_draws

    def steps_from(self, cursor: Cursor) -> int:
        """Batches that every rank still gets from a cursor to the end of its epoch."""
        n_steps = self.plan_of(cursor).steps(cursor.position, self.ranks[1])
        if self._ranks.lasting is None:
            self._early_steps = cursor, n_steps
        return n_steps

    def after(self, cursor: Cursor, n_batches: int) -> Cursor:
        """The cursor so many batches later; position N after the last one, whatever the tail."""
        position = self.plan_of(cursor).n_draws
        if n_batches < self.steps_from(cursor):
            position = cursor.position + n_batches * self.plan.batch_size * self.ranks[1]
        return cursor.between_batches(position)

    def lanes_after(self, lanes: int | None) -> int:
        """Lanes of an epoch that follows one with `lanes`; an epoch in progress keeps its."""
        if self._asked_lanes is not None:
            return self._asked_lanes
        world_size = self.ranks[1]
        if lanes is None or lanes % world_size == 0:
            return lanes or world_size
        if self._told_of_change != (lanes, world_size):
            self._told_of_change = lanes, world_size
            _logger.info("lanes change from %d to the world size %d", lanes, world_size)
        return world_size

    def reads_from(self, cursor: Cursor, n_batches: int | None = None) -> dict[str, int]:
        """Stored chunks this rank reads from a cursor on, by array.

        Args:
            cursor: where the pass begins.
            n_batches: those that are wanted; None for all to the end of the epoch.
        """
        rank, world_size = self.ranks
        return self.plan_of(cursor).reads(
            rank,
            world_size=world_size,
            epoch=cursor.epoch,
            lanes=cursor.lanes,
            position=cursor.position,
            n_batches=n_batches,
        )

    def floor_terms(self, lanes: int, n_draws: int | None = None) -> list[tuple[str, int, int]]:
        """What one block in every open lane takes: by array its name, chunks, bytes of a chunk.

        Args:
            lanes: of the epoch.
            n_draws: of the epoch, if it began before the data grew.
        """
        plan = self.plan_of(Cursor(0, 0, lanes, n_draws=n_draws))
        n_chunks = plan.floor_chunks(*self.ranks, lanes)
        sizes = [array.chunk_bytes for array in self.arrays]
        return list(zip(self.space.array_names, n_chunks, sizes, strict=True))

    def floor_bytes(self, lanes: int, n_draws: int | None = None) -> int:
        """The least budget for a pass; arguments as in `floor_terms`."""
        return sum(n_chunks * size for _, n_chunks, size in self.floor_terms(lanes, n_draws))

    def kept_lanes_text(self, lanes: int) -> str:
        """Why an epoch takes more memory than one that is begun now; empty if it does not.

        It does if more ranks began it, or a loader that was given more lanes.
        """
        world_size = self.ranks[1]
        fewer = self._asked_lanes or world_size
        if lanes <= fewer:
            return ""
        n_own = lanes // math.gcd(lanes, world_size)
        stays = self._asked_lanes is None and lanes % world_size == 0
        given = f", if lanes={fewer} is given" if stays else ""
        return (
            f"this epoch keeps its {lanes} lanes and its blocks until it ends, of which this rank "
            f"reads {n_own} lanes at once; from the next epoch on there are {fewer}{given}, with a "
            f"floor of {self.floor_bytes(fewer)} B"
        )

    def read_cursor(self, state: Any, *, format_name: str = FORMAT) -> Cursor:
        """Check a state against the plan.

        Args:
            state: what `write_cursor` gave.
            format_name: the format it has to be of; a loader writes its own.

        Raises:
            StateError: foreign, newer, out of range, of another plan, or inside a batch that this
                rank does not hand out.
        """
        plan = self._outgrown.saved_over(state) or self.plan
        fingerprint, n_draws = plan.fingerprint(), plan.n_draws
        cursor = Cursor.from_state(state, fingerprint, n_draws, format_name=format_name)
        if plan is not self.plan:
            cursor = replace(cursor, n_draws=n_draws)
        if cursor.origin is not None:
            plan.segments(cursor, *self.ranks)
        return cursor

    def write_cursor(self, cursor: Cursor) -> dict[str, Any]:
        """The state that a cursor of this plan stands for."""
        return cursor.to_state(self.plan_of(cursor).fingerprint())

    def plan_of(self, cursor: Cursor) -> Plan:
        """The plan of the epoch of a cursor: of fewer draws if it began before the data grew."""
        return self.plan if cursor.n_draws is None else self._outgrown.of_first(cursor.n_draws)

    def _start(self, cursor: Cursor) -> None:
        del cursor
        # Opened by the first `next`: until then, ranks that are looked up may change.
        self._segments = None

    def _open(self, cursor: Cursor) -> Iterator[Segment]:
        rank, world_size = self.use_ranks()
        self._tell_of_lanes(cursor.lanes, world_size)
        return self.plan_of(cursor).segments(cursor, rank, world_size)

    def _tell_of_lanes(self, lanes: int, world_size: int) -> None:
        factor = world_size // math.gcd(lanes, world_size)
        if factor > 1 and not self._told_of_lanes:
            self._told_of_lanes = True
            msg = (
                f"{lanes} lanes on {world_size} ranks: each chunk is read by up to {factor} ranks; "
                "give lanes that the world size divides, or wait for the next epoch if this one "
                "was resumed"
            )
            warnings.warn(msg, stacklevel=2)

    def _tell_of_steps(self, world_size: int) -> None:
        if self._early_steps is None or self._told_of_steps:
            return
        cursor, before = self._early_steps
        now = self.plan_of(cursor).steps(cursor.position, world_size)
        if now != before:
            self._told_of_steps = True
            msg = (
                f"the number of batches was asked before the ranks were known: from position "
                f"{cursor.position} of epoch {cursor.epoch} it was {before}, and on {world_size} "
                f"ranks it is {now}; ask after init_process_group, or give rank and world_size"
            )
            warnings.warn(msg, stacklevel=2)

    def _make(self) -> Segment:
        if self._segments is None:
            self._segments = self._open(self._cursor or self.first_cursor())
        return next(self._segments)

    def _cursor_after(self, item: Segment) -> Cursor:
        return item.after
