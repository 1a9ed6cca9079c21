"""Arrays, splits and plans written down a second time, sample by sample, in plain Python.

Arrays are lists of the first elements of their chunks; `oracle.OracleOrder` orders what is found.
"""

import bisect
import itertools

from tests.planning.oracle import OracleOrder

LEAST_CELLS, MOST_CHUNKS_A_CELL = 4, 16


class NaiveSpace:
    """Anchors, units and chunks of arrays of one length.

    Attributes:
        anchors: the valid ones, in order.
        units: anchors by unit.
        grid: first samples of the cells.
        common: whether the cells are those of every array.
        reread: by array, chunks read by units that share nothing over distinct chunks.
    """

    def __init__(self, length, starts, offsets, ranges):
        self.length, self.starts, self.offsets = length, starts, offsets
        reached = {0}.union(*offsets)
        inside = [anchor for pair in ranges for anchor in range(*pair)]
        self.anchors = [a for a in inside if all(0 <= a + o < length for o in reached)]
        self.n_dropped = len(inside) - len(self.anchors)
        if not self.anchors:
            return
        self._range_of = {a: number for number, pair in enumerate(ranges) for a in range(*pair)}
        self.grid, self.common = self._cells()
        self.units = self._units(self.grid)
        self.reread = [self._reread(number) for number in range(len(starts))]

    def _cells(self):
        common = sorted(set.intersection(*map(set, self.starts)))
        coarsest = min(self.starts, key=len)
        if len(common) == len(coarsest):
            return common, True
        longest = [_longest(edges, self.length) for edges in (common, coarsest)]
        fits = longest[0] <= MOST_CHUNKS_A_CELL * longest[1]
        if fits and len(self._units(common)) >= LEAST_CELLS:
            return common, True
        return coarsest, False

    def _units(self, grid):
        """Anchors of one range of the split and one cell, one list for each."""
        by_cell = itertools.groupby(
            self.anchors, key=lambda a: (self._range_of[a], bisect.bisect(grid, a))
        )
        return [list(anchors) for _, anchors in by_cell]

    def _reread(self, number):
        read = [{bisect.bisect(self.starts[number], a) for a in anchors} for anchors in self.units]
        return sum(map(len, read)) / len(set().union(*read))

    def chunks(self, anchors):
        """Chunks that anchors read, as (array, chunk)."""
        return {
            (number, bisect.bisect(edges, anchor + offset) - 1)
            for number, (edges, offsets) in enumerate(zip(self.starts, self.offsets, strict=True))
            for anchor in anchors
            for offset in offsets
        }


class NaivePlan:
    """An epoch over a space: its draws in global order, and what is in memory when."""

    def __init__(self, space, **settings):
        self.space = space
        self.order = OracleOrder([len(unit) for unit in space.units], **settings)
        self.draws = [space.units[unit][k] for unit, k in self.order.draws()]
        self._last_block = {}

    def stream(self, position, stop, rank, world_size):
        """Positions of a rank."""
        return [q for q in range(position, stop) if q % world_size == rank]

    def open_chunks(self, position, stop, rank, world_size):
        """Chunks that are held at each place of the stream of a rank, one set a place.

        Of each lane that the rank meets, those of the block of its next draw there, or of its last
        one: all that the units of the block read, or, if the pass begins inside the block, what the
        rank still draws from it.
        """
        stream = self.stream(position, stop, rank, world_size)
        by_lane = {}
        for q in stream:
            by_lane.setdefault(q % self.order.lanes, []).append(q)
        held = []
        for q in stream:
            chunks = set()
            for lane, turns in by_lane.items():
                following = turns[min(bisect.bisect_left(turns, q), len(turns) - 1)]
                chunks |= self._block_chunks(lane, self.order.block(following), turns, position)
            held.append(chunks)
        return held

    def _block_chunks(self, lane, block, turns, position):
        numbers = [number for _, number in self.order.lane_draws[lane]]
        is_begun = lane + self.order.lanes * numbers.index(block) < position
        if is_begun:
            left = [self.draws[q] for q in turns if self.order.block(q) == block]
            return self.space.chunks(left)
        if (lane, block) not in self._last_block:
            units = self.order.blocks[lane][block]
            anchors = [anchor for unit in units for anchor in self.space.units[unit]]
            self._last_block[lane, block] = self.space.chunks(anchors)
        return self._last_block[lane, block]


def n_reads(held):
    """How often a chunk comes into memory, by chunk: it stays while it is held without a break."""
    reads = {}
    for before, now in itertools.pairwise([set(), *held]):
        for chunk in now - before:
            reads[chunk] = reads.get(chunk, 0) + 1
    return reads


def _longest(starts, length):
    return max(stop - start for start, stop in itertools.pairwise([*starts, length]))
