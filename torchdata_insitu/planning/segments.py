"""Segments: what a rank hands out between two changes of its open blocks.

A rank has one block open in every lane it meets. The next block of a lane opens at the place where
the last draw of the old one was handed out; a lane that has no more keeps its last block until the
pass ends, so that copies find their chunk. The places where a block changes cut the stream into
segments.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.epoch import Epoch
from torchdata_insitu.planning.lane_turns import LaneTurns, lane_turns
from torchdata_insitu.planning.rank_stream import RankStream


@dataclass(frozen=True, slots=True)
class BatchCut:
    """Where a batch ends inside a segment."""

    stop: int
    """Index into the draws of the segment, after the last draw of the batch."""
    position: int
    """Global position after the batch; the number of draws in the epoch after its last batch."""


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """The longest stretch of a rank's draws during which the same blocks are open."""

    cursor: Cursor
    """Where the segment begins."""
    after: Cursor
    """Where the next one begins; the end of the epoch after the last one."""
    draws: NDArray[np.int64]
    """`(n, n_columns)`, in the order they are handed out."""
    valid: NDArray[np.bool_]
    """`(n,)`, False for copies that fill up the tail."""
    cuts: tuple[BatchCut, ...]
    """Batches that end in the segment; draws before the first cut may continue an earlier batch."""
    admit: tuple[ChunkKey, ...]
    """Chunks to lease before the segment that the segment before it does not hold."""
    release: tuple[ChunkKey, ...]
    """Chunks that are held in the segment and not needed by the next one."""


def walk_segments(epoch: Epoch, stream: RankStream) -> Iterator[Segment]:
    """Go through the pass of one rank, segment by segment.

    Args:
        epoch: Order of the epoch.
        stream: What the rank hands out, and from where.

    Yields:
        Segments, computed one at a time; one block a lane is held.
    """
    if stream.begin >= stream.n_total:
        return
    walks = [_LaneWalk(epoch, turns) for turns in lane_turns(epoch, stream)]
    copied = None
    if not walks:
        position = stream.copied_position
        copied = epoch.draws(position, position + 1)
    leases = _Leases()
    if copied is not None:
        admit = leases.open(chunk_keys(epoch.space.chunks_of_draws(copied)))
    else:
        admit = leases.open([key for walk in walks for key in walk.keys])
    start = stream.begin
    while True:
        leaves = [walk.leaves for walk in walks if walk.leaves is not None]
        stop = min(leaves, default=stream.n_total)
        draws = np.empty((stop - start, epoch.space.n_columns), dtype=np.int64)
        for walk in walks:
            walk.copy_draws(draws, start, stop)
        n_valid = max(0, min(stop, stream.n_valid) - start)
        if n_valid < len(draws):
            draws[n_valid:] = draws[n_valid - 1] if copied is None else copied
        changing = [walk for walk in walks if walk.leaves == stop]
        old = [key for walk in changing for key in walk.keys]
        for walk in changing:
            walk.enter_next_block()
        new = [key for walk in changing for key in walk.keys]
        next_admit = leases.open(new)
        release = leases.close(old if leaves else leases.held())
        yield Segment(
            cursor=stream.cursor_at(start),
            after=stream.cursor_at(stop),
            draws=draws,
            valid=np.arange(len(draws)) < n_valid,
            cuts=tuple(
                BatchCut(stop=end - start, position=position)
                for end, position in stream.batch_ends(start, stop)
            ),
            admit=admit,
            release=release,
        )
        if not leaves:
            return
        start, admit = stop, next_admit


def chunk_keys(chunks: NDArray[np.int64]) -> list[ChunkKey]:
    """Name chunks, given as rows `(array, sample_run, field_tile)`."""
    return [ChunkKey(*row) for row in chunks.tolist()]


class _Leases:
    """How many open blocks need each chunk."""

    def __init__(self) -> None:
        self._needed: Counter[ChunkKey] = Counter()

    def open(self, keys: list[ChunkKey]) -> tuple[ChunkKey, ...]:
        """Count blocks that open; the chunks that no open block has needed before."""
        fresh = dict.fromkeys(key for key in keys if key not in self._needed)
        self._needed.update(keys)
        return tuple(fresh)

    def close(self, keys: list[ChunkKey]) -> tuple[ChunkKey, ...]:
        """Count blocks that close; the chunks that no open block needs any longer."""
        self._needed.subtract(keys)
        idle = [key for key in dict.fromkeys(keys) if self._needed[key] == 0]
        for key in idle:
            del self._needed[key]
        return tuple(idle)

    def held(self) -> list[ChunkKey]:
        """Every chunk, as often as it is needed."""
        return list(self._needed.elements())


class _LaneWalk:
    """One lane while a rank goes through it, with its open block."""

    def __init__(self, epoch: Epoch, turns: LaneTurns) -> None:
        self._epoch = epoch
        self._turns = turns
        self._draws: NDArray[np.int64] | None = None
        self._enter(turns.block_of_turn(0))
        space = epoch.space
        if turns.trimmed:
            chunks = space.chunks_of_draws(self._open_draws())
        else:
            chunks = space.chunks(turns.lane.block_units(self._block))
        self.keys = chunk_keys(chunks)
        """Chunks of the open block."""

    def _enter(self, block: int) -> None:
        self._block = block
        self._first_turn, self._last_turn = self._turns.turns_in_block(block)
        self.leaves: int | None = None
        """Place in the stream where the next block opens; None in the last block."""
        if self._last_turn < self._turns.n_turns:
            self.leaves = self._turns.place_after(self._last_turn - 1)

    def enter_next_block(self) -> None:
        """Open the next block that holds a draw of the rank."""
        self._draws = None
        self._enter(self._turns.block_of_turn(self._last_turn))
        units = self._turns.lane.block_units(self._block)
        self.keys = chunk_keys(self._epoch.space.chunks(units))

    def _open_draws(self) -> NDArray[np.int64]:
        if self._draws is None:
            block_draws = self._epoch.block_draws(self._turns.lane, self._block)
            self._draws = self._turns.draws_in_block(self._block, block_draws)
        return self._draws

    def copy_draws(self, out: NDArray[np.int64], start: int, stop: int) -> None:
        """Copy the draws that the lane gives to the places `start ... stop - 1` of the stream."""
        turns = self._turns
        behind = [-((turns.first_place - place) // turns.stride) for place in (start, stop)]
        first = max(behind[0], self._first_turn)
        last = min(behind[1], self._last_turn)
        if first < last:
            place = turns.first_place + first * turns.stride - start
            rows = self._open_draws()[first - self._first_turn : last - self._first_turn]
            out[place :: turns.stride][: len(rows)] = rows
