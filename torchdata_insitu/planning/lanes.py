"""Lanes and blocks: the second half of the order.

Order version 1. The `N` draws of an epoch, laid end to end, are cut into `L` lanes that are equal
to within one draw. A lane is a list of pieces (whole units, but for the two that a border cuts),
grouped in blocks. The first block of lane `l` has `max(1, ceil(block_chunks * (l + 1) / (8 * L)))`
pieces, each next one twice as many until `block_chunks`: the first batch needs few chunks, and
lanes change block at different steps. The draws of a block are permuted by
`keyed_permutation(n, seed, epoch, "block", lane, block)`. Position `p` is draw `p // L` of lane
`p % L`.
"""

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.draw_order import DrawOrder
from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.keyed_random import keyed_permutation

_RAMP = 8


class Lane:
    """One lane of an epoch: where its draws, pieces and blocks lie.

    Blocks are found by arithmetic and one binary search: the cost does not depend on how many units
    the lane has.

    Example:
        >>> from torchdata_insitu.planning.run_lengths import RunLengths
        >>> lengths = RunLengths.encode([10] * 6)
        >>> order = DrawOrder.of_epoch(lengths, seed=0, epoch=0, shuffle=False, run_chunks=1)
        >>> lane = Lane(order, number=1, n_lanes=2, block_chunks=2)
        >>> lane.n_draws, lane.n_blocks, [lane.block_bounds(block) for block in range(2)]
        (30, 2, [(0, 10), (10, 30)])
    """

    def __init__(self, order: DrawOrder, *, number: int, n_lanes: int, block_chunks: int) -> None:
        share, rest = divmod(order.n_draws, n_lanes)
        self.order = order
        self.number = number
        self.start = number * share + min(number, rest)
        """First draw of the lane in the order laid end to end."""
        self.n_draws = share + (number < rest)
        self.first_piece = 0
        """Place of the lane's first piece among the units of the order."""
        self.n_pieces = 0
        if self.n_draws:
            ends = np.array([self.start, self.start + self.n_draws - 1])
            first, last = np.searchsorted(order.firsts, ends, side="right") - 1
            self.first_piece, self.n_pieces = int(first), int(last - first) + 1
        self._block_chunks = block_chunks
        self._first_block = max(1, -(-block_chunks * (number + 1) // (_RAMP * n_lanes)))
        n_short = 0
        while self._first_block << n_short < block_chunks:
            n_short += 1
        # The blocks that are still growing, and how many pieces they hold.
        self._n_short = n_short
        self._n_ramp = self._first_block * ((1 << n_short) - 1)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self.block_at(self.n_draws - 1) + 1 if self.n_draws else 0

    def block_at(self, index: int) -> int:
        """Block that holds draw `index` of the lane."""
        place = int(self.order.firsts.searchsorted(self.start + index, side="right")) - 1
        piece = place - self.first_piece
        if piece < self._n_ramp:
            # Block j of the ramp begins at piece first_block * (2**j - 1).
            return (piece // self._first_block + 1).bit_length() - 1
        return self._n_short + (piece - self._n_ramp) // self._block_chunks

    def block_pieces(self, block: int) -> tuple[int, int]:
        """Pieces of a block, as places `(start, stop)` among the units of the order."""
        return self._first_place(block), self._first_place(block + 1)

    def block_bounds(self, block: int) -> tuple[int, int]:
        """Draws of a block, as `(start, stop)` counted in the lane."""
        start, stop = (int(self.order.firsts[place]) for place in self.block_pieces(block))
        return max(0, start - self.start), min(self.n_draws, stop - self.start)

    def _first_place(self, block: int) -> int:
        short = min(block, self._n_short)
        piece = self._first_block * ((1 << short) - 1) + (block - short) * self._block_chunks
        return self.first_piece + min(piece, self.n_pieces)

    def blocks_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """`block_at` of many draws."""
        places = np.searchsorted(self.order.firsts, self.start + indices, side="right") - 1
        pieces = places - self.first_piece
        ramp = self._first_block * ((np.int64(1) << np.arange(self._n_short)) - 1)
        growing = np.searchsorted(ramp, pieces, side="right") - 1
        steady = self._n_short + (pieces - self._n_ramp) // self._block_chunks
        return np.where(pieces < self._n_ramp, growing, steady)

    def first_pieces(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """First piece of each block, counted in the lane; their number after the last block."""
        short = np.minimum(blocks, self._n_short)
        pieces: NDArray[np.int64] = self._first_block * ((np.int64(1) << short) - 1)
        pieces += (blocks - short) * self._block_chunks
        return np.minimum(pieces, self.n_pieces, out=pieces)

    def first_draws(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """First draw of each block, counted in the lane; their number after the last block."""
        places = self.first_piece + self.first_pieces(blocks)
        return np.clip(self.order.firsts[places] - self.start, 0, self.n_draws)

    def block_units(self, block: int) -> NDArray[np.int64]:
        """Units of a block, in drawing order."""
        start, stop = self.block_pieces(block)
        return self.order.units[start:stop]

    def block_draws(
        self, space: DrawSpace, block: int, *, shuffle_key: tuple[int, int] | None
    ) -> NDArray[np.int64]:
        """Draws of a block, in the order they are handed out.

        Args:
            space: Where the draws come from.
            block: Number of the block.
            shuffle_key: `(seed, epoch)`, or None to keep the order of the units.

        Returns:
            `(n, n_columns)`.
        """
        first, last = self.block_pieces(block)
        firsts = self.order.firsts[first : last + 1]
        starts = np.maximum(self.start - firsts[:-1], 0).tolist()
        stops = (np.minimum(self.start + self.n_draws, firsts[1:]) - firsts[:-1]).tolist()
        units = self.order.units[first:last].tolist()
        pieces = [space.draws(*piece) for piece in zip(units, starts, stops, strict=True)]
        draws = np.concatenate(pieces)
        if shuffle_key is None:
            return draws
        return draws[keyed_permutation(len(draws), *shuffle_key, "block", self.number, block)]
