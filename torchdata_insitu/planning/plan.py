"""The plan of a training: every epoch's draws, segments and reads, as functions of a cursor."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.draw_order import ORDER_VERSION, DrawOrder
from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.epoch import Epoch
from torchdata_insitu.planning.floor import floor_chunks
from torchdata_insitu.planning.rank_stream import TAILS, RankStream, steps_left, stop_position
from torchdata_insitu.planning.reads import count_reads
from torchdata_insitu.planning.run_lengths import RunLengths
from torchdata_insitu.planning.segments import Segment, walk_segments
from torchdata_insitu.planning.whole_number import whole_number


@dataclass(frozen=True, eq=False)
class Plan:
    """What is drawn, in which order and in which batches: pure, and the same on every rank.

    The order is that of version 1, written down in `draw_order` and `lanes`; which positions a rank
    takes and what happens to the tail, in `rank_stream`.

    Raises:
        PlanError: A number that is no count, or an unknown tail.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> from torchdata_insitu.planning.anchor_space import AnchorSpace
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(9, 4), chunks=(2, 4), dtype="f4")
        >>> space = AnchorSpace(read_arrays(store))
        >>> plan = Plan(space, seed=0, shuffle=True, block_chunks=2, batch_size=4)
        >>> plan.n_draws, plan.steps(0, world_size=1), plan.reads()
        (9, 3, {'t2m': 5})
        >>> sorted(plan.draws(epoch=0)[:, 0].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    space: DrawSpace
    """The draws of an epoch and the chunks they read."""
    seed: int = 0
    """Key of every permutation."""
    shuffle: bool = True
    """Whether runs and the draws of blocks are permuted."""
    block_chunks: int = 16
    """Units whose draws are shuffled among themselves."""
    run_chunks: int | None = None
    """Consecutive units permuted as one. None: 1 if draws read no sample but their own, else a
    quarter of a block, so that windows find most of their neighbours in memory; and at least the
    units of a shard, or about equal parts of them that are no more than a quarter of a block."""
    batch_size: int = 1
    """Draws in a batch of one rank."""
    tail: str | None = None
    """What happens to the last, incomplete batch: "short", "drop", "pad" or "exact". None: "short"
    if shuffled, else "exact"."""
    lengths: RunLengths = field(init=False, repr=False)
    """Draws in each unit of the space."""
    n_draws: int = field(init=False)
    """Draws in an epoch."""

    def __post_init__(self) -> None:
        """Resolve what was left open."""
        for name in ("block_chunks", "run_chunks", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, least=1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed))
        object.__setattr__(self, "shuffle", bool(self.shuffle))
        if self.run_chunks is None:
            quarter = max(1, self.block_chunks // 4)
            in_shard = self.space.shard_units
            # About equal parts mostly begin where shards do, and blocks still mix several of them.
            part = -(-in_shard // -(-in_shard // quarter))
            run_chunks = max(part, quarter if self.space.has_offsets else 1)
            object.__setattr__(self, "run_chunks", run_chunks)
        if self.tail is None:
            object.__setattr__(self, "tail", "short" if self.shuffle else "exact")
        if self.tail not in TAILS:
            msg = f"tail={self.tail!r} is unknown: choose one of {', '.join(map(repr, TAILS))}"
            raise PlanError(msg)
        lengths = self.space.unit_lengths()
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "n_draws", lengths.total)

    def fingerprint(self) -> dict[str, Any]:
        """Name everything that decides the order or what a draw is, as plain JSON.

        Batch size, tail, ranks and lanes are not in it: they may change between two batches.
        """
        # Kept, since a state is saved every few steps and the digests run over all units.
        kept: dict[str, Any] | None = self.__dict__.get("_kept_fingerprint")
        if kept is None:
            kept = {
                "order": ORDER_VERSION,
                "seed": self.seed,
                "shuffle": self.shuffle,
                "block_chunks": self.block_chunks,
                "run_chunks": self.run_chunks,
                "space": self.space.kind,
                "n": self.n_draws,
                "units": self.lengths.digest(),
                **self.space.digest(),
            }
            self.__dict__["_kept_fingerprint"] = kept
        return dict(kept)

    def steps(self, position: int = 0, world_size: int = 1) -> int:
        """Batches that every rank still gets, from a position where a batch begins."""
        return steps_left(self.n_draws, position, self.batch_size, world_size, self._tail)

    def left_out(self, position: int = 0, world_size: int = 1) -> int:
        """Draws from a position on that the tail does not deliver to any rank."""
        return self.n_draws - stop_position(
            self.n_draws, position, self.batch_size, world_size, self._tail
        )

    def check(self, world_size: int = 1) -> None:
        """Refuse an epoch of zero batches.

        Raises:
            PlanError: No rank would get a batch.
        """
        if self.steps(0, world_size) > 0:
            return
        advice = "give the split samples" if self.n_draws == 0 else 'choose tail="exact" or "pad"'
        msg = (
            f"an epoch would have 0 batches: {self.n_draws} draws for batches of "
            f"{self.batch_size} on {world_size} ranks with tail={self.tail!r}; lower batch_size, "
            f"use fewer ranks, or {advice}"
        )
        raise PlanError(msg)

    def segments(self, cursor: Cursor, rank: int = 0, world_size: int = 1) -> Iterator[Segment]:
        """Yield what a rank hands out from a cursor to the end of the epoch.

        Args:
            cursor: Where to begin.
            rank: Of the consumer, among those that share the epoch.
            world_size: Number of ranks.

        Returns:
            Segments, each computed when it is asked for. The first one after a seek admits only the
            chunks of draws that are left.

        Raises:
            PlanError: No such rank, or a cursor outside the epoch.
            StateError: A cursor inside a batch of another rank or world size.
        """
        stream = self._stream(cursor, rank, world_size)
        return walk_segments(self.epoch(cursor.epoch, cursor.lanes), stream)

    def epoch(self, number: int, lanes: int = 1) -> Epoch:
        """Order the draws of an epoch.

        Raises:
            PlanError: Numbers that are no epoch or no lanes.
        """
        return Epoch(
            space=self.space,
            order=self._order(whole_number("epoch", number)),
            shuffle_key=(self.seed, number) if self.shuffle else None,
            n_lanes=whole_number("lanes", lanes, least=1),
            block_chunks=self.block_chunks,
        )

    def draws(
        self, epoch: int = 0, start: int = 0, stop: int | None = None, *, lanes: int = 1
    ) -> NDArray[np.int64]:
        """Read the ledger: the draws of an epoch in global order.

        Args:
            epoch: Number of the epoch.
            start: First position.
            stop: Position after the last one; None for the end of the epoch.
            lanes: Lanes of the epoch.

        Returns:
            `(stop - start, n_columns)`.

        Raises:
            PlanError: Positions outside the epoch.
        """
        stop = self.n_draws if stop is None else stop
        if not 0 <= start <= stop <= self.n_draws:
            msg = f"positions {start} to {stop} are not within the {self.n_draws} draws of an epoch"
            raise PlanError(msg)
        return self.epoch(epoch, lanes).draws(start, stop)

    def reads(
        self,
        rank: int = 0,
        *,
        world_size: int = 1,
        epoch: int = 0,
        lanes: int | None = None,
        position: int = 0,
        n_batches: int | None = None,
    ) -> dict[str, int]:
        """Count the stored chunks that a rank reads, before anything is read.

        Exactly what the segments of the pass admit, if nothing is kept from an earlier one.
        With `n_batches`, what these batches need at least; more is read ahead of them.

        Args:
            rank: Of the consumer.
            world_size: Number of ranks.
            epoch: Number of the epoch.
            lanes: Lanes of the epoch; None for one a rank.
            position: Where the pass begins, between two batches.
            n_batches: Batches after which the rank stops; None for the end of the epoch.

        Returns:
            Stored chunks by array.
        """
        lanes = world_size if lanes is None else lanes
        stream = self._stream(Cursor(epoch, position, lanes), rank, world_size)
        if n_batches is not None:
            stream = stream.first_batches(n_batches)
        counts = count_reads(self.epoch(epoch, lanes), stream)
        names, stored = self.space.array_names, self.space.stored_per_chunk
        return {
            name: count * per_chunk
            for name, count, per_chunk in zip(names, counts, stored, strict=True)
        }

    def floor_chunks(
        self, rank: int = 0, world_size: int = 1, lanes: int | None = None
    ) -> tuple[int, ...]:
        """Bound the chunks of each array that a rank holds at any time, in any epoch."""
        lanes = world_size if lanes is None else lanes
        _check_rank(rank, world_size)
        return floor_chunks(
            self.space,
            self.lengths,
            block_chunks=self.block_chunks,
            run_chunks=self._run_chunks if self.shuffle else None,
            n_lanes=whole_number("lanes", lanes, least=1),
            rank=rank,
            world_size=world_size,
        )

    @property
    def _tail(self) -> str:
        return self.tail or ""

    @property
    def _run_chunks(self) -> int:
        return self.run_chunks or 1

    def _stream(self, cursor: Cursor, rank: int, world_size: int) -> RankStream:
        _check_rank(rank, world_size)
        origin = cursor.position if cursor.origin is None else cursor.origin
        if not 0 <= origin <= cursor.position <= self.n_draws:
            msg = f"{cursor} is not within the {self.n_draws} draws of an epoch"
            raise PlanError(msg)
        return RankStream.of(
            cursor,
            n_draws=self.n_draws,
            batch_size=self.batch_size,
            rank=rank,
            world_size=world_size,
            tail=self._tail,
        )

    def _order(self, epoch: int) -> DrawOrder:
        # The units of the epoch in use stay in memory: a seek within it must not sort them again.
        # Several threads may build the same order at once; the last one is kept.
        key = epoch if self.shuffle else None
        kept: tuple[int | None, DrawOrder] | None = self.__dict__.get("_kept_order")
        if kept is not None and kept[0] == key:
            return kept[1]
        order = DrawOrder.of_epoch(
            self.lengths,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            run_chunks=self._run_chunks,
        )
        self.__dict__["_kept_order"] = (key, order)
        return order

    def __getstate__(self) -> dict[str, Any]:
        """Leave the order out: it is a function of the rest."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept_order"}


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        msg = f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1"
        raise PlanError(msg)
