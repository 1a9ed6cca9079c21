"""The turns of one rank in one lane.

The positions of a rank are `W` apart and the lanes take turns every `L` positions, so a rank meets
the lanes `l` with `l % gcd(L, W) == r % gcd(L, W)`, `L / gcd(L, W)` of them, each at every
`L / gcd(L, W)`-th place of its stream; from such a lane it takes every `W / gcd(L, W)`-th draw. If
`W` divides `L` that is all of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.epoch import Epoch
from torchdata_insitu.planning.lanes import Lane
from torchdata_insitu.planning.rank_stream import RankStream


@dataclass(frozen=True, eq=False, slots=True)
class LaneTurns:
    """Which draws of a lane a rank hands out in a pass, and when.

    Turn `t` is draw `first_index + t * index_step` of the lane, at place `first_place + t * stride`
    of the stream of the rank.
    """

    lane: Lane
    n_turns: int
    """At least 1."""
    first_index: int
    index_step: int
    first_place: int
    stride: int
    trimmed: bool
    """Whether the first block began before the pass: only what is left of it is read."""

    def turns_in_block(self, block: int) -> tuple[int, int]:
        """Turns `(start, stop)` that fall in a block."""
        start, stop = (
            min(max(0, -((self.first_index - edge) // self.index_step)), self.n_turns)
            for edge in self.lane.block_bounds(block)
        )
        return start, stop

    def turns_in_blocks(
        self, blocks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`turns_in_block` of many blocks; `start == stop` where none does."""
        start, stop = (
            np.clip(-((self.first_index - edges) // self.index_step), 0, self.n_turns)
            for edges in (self.lane.first_draws(blocks), self.lane.first_draws(blocks + 1))
        )
        return start, stop

    def block_of_turn(self, turn: int) -> int:
        """Block of a turn."""
        return self.lane.block_at(self.first_index + turn * self.index_step)

    def place_after(self, turn: int) -> int:
        """Place in the stream behind a turn."""
        return self.first_place + turn * self.stride + 1

    def draws_in_block(self, block: int, block_draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the rank hands out of a block, `(turns, n_columns)`, a view of `block_draws`."""
        start, stop = self.turns_in_block(block)
        first = self.first_index + start * self.index_step - self.lane.block_bounds(block)[0]
        return block_draws[first :: self.index_step][: stop - start]


def lane_turns(epoch: Epoch, stream: RankStream) -> Iterator[LaneTurns]:
    """Find the lanes that a rank meets in a pass, in the order of first use."""
    n_lanes, world_size = epoch.n_lanes, stream.world_size
    common = math.gcd(n_lanes, world_size)
    stride = n_lanes // common
    for place in range(stream.begin, min(stream.begin + stride, stream.n_valid)):
        index, number = divmod(stream.position(place), n_lanes)
        lane = epoch.lane(number)
        block_start = lane.block_bounds(lane.block_at(index))[0]
        yield LaneTurns(
            lane=lane,
            n_turns=-((place - stream.n_valid) // stride),
            first_index=index,
            index_step=world_size // common,
            first_place=place,
            stride=stride,
            trimmed=block_start * n_lanes + number < stream.cursor.position,
        )
