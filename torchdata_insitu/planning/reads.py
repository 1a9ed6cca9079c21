"""How often a pass reads each chunk, without walking it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.epoch import Epoch
from torchdata_insitu.planning.lane_turns import LaneTurns, lane_turns
from torchdata_insitu.planning.rank_stream import RankStream

# Chunks looked at in one go: a bound on the memory, at some 100 bytes for each.
_CHUNKS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False, slots=True)
class _Needs:
    """Chunks of one array, each with the stretch of the stream in which an open block needs it."""

    codes: NDArray[np.int64]
    opens: NDArray[np.int64]
    closes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.codes)

    def where(self, mask: NDArray[np.bool_]) -> "_Needs":
        return _Needs(self.codes[mask], self.opens[mask], self.closes[mask])

    def joined(self, other: "_Needs") -> "_Needs":
        """Both, with the stretches of a chunk that overlap or touch made one."""
        codes = np.concatenate([self.codes, other.codes])
        opens = np.concatenate([self.opens, other.opens])
        closes = np.concatenate([self.closes, other.closes])
        if (codes[1:] > codes[:-1]).all():
            return _Needs(codes, opens, closes)
        order = np.lexsort((opens, codes))
        codes, opens, closes = codes[order], opens[order], closes[order]
        same = codes[1:] == codes[:-1]
        # One running maximum over all chunks: each starts above all that the one before can reach.
        lift = np.zeros(len(codes), dtype=np.int64)
        np.cumsum(~same, out=lift[1:])
        lift *= closes.max() + 1
        reach = np.maximum.accumulate(closes + lift) - lift
        first = np.ones(len(codes), dtype=np.bool_)
        first[1:] = ~same | (opens[1:] > reach[:-1])
        return _Needs(codes[first], opens[first], reach[np.append(first[1:], np.True_)])


@dataclass(frozen=True, eq=False, slots=True)
class _OpenUnits:
    """The units of a rank, in store order, with the blocks that open them."""

    units: NDArray[np.int64]
    blocks: NDArray[np.int32]
    opens: NDArray[np.int64]
    """Place in the stream where each block opens."""
    closes: NDArray[np.int64]
    """Place in the stream where each block is left."""


def count_reads(epoch: Epoch, stream: RankStream) -> list[int]:
    """Count the chunks that the segments of a pass admit.

    A chunk is read once for every stretch of the pass during which open blocks need it without a
    break. A block is open from the place where the one before it in its lane is left to the place
    where it is left itself.

    Args:
        epoch: Order of the epoch.
        stream: What the rank hands out, and from where.

    Returns:
        Chunks by array number.
    """
    space = epoch.space
    n_arrays = len(space.array_names)
    all_turns = list(lane_turns(epoch, stream))
    if not all_turns:
        if stream.begin >= stream.n_total:
            return [0] * n_arrays
        position = stream.copied_position
        chunks = space.chunks_of_draws(epoch.draws(position, position + 1))
        return np.bincount(chunks[:, 0], minlength=n_arrays).tolist()

    trimmed = [_trimmed_block(epoch, turns, stream.n_total) for turns in all_turns if turns.trimmed]
    opened = _open_units(all_turns, stream)
    slices = _slices(space, len(opened.units))
    n_tiles, later = _code_bounds(space, opened, slices, [chunks for chunks, _ in trimmed])

    counts = [0] * n_arrays
    unfinished = []
    for array in range(n_arrays):
        needs = _Needs(*(np.empty(0, dtype=np.int64) for _ in range(3)))
        for chunks, close in trimmed:
            codes = _codes(chunks, array, n_tiles)
            opens = np.full(len(codes), stream.begin, dtype=np.int64)
            needs = needs.joined(_Needs(codes, opens, np.full(len(codes), close, dtype=np.int64)))
        unfinished.append(needs)
    for number, piece in enumerate(slices):
        owner, chunks = space.unit_chunks(opened.units[piece])
        blocks = opened.blocks[piece][owner]
        for array in range(n_arrays):
            mine = chunks[:, 0] == array
            fresh = _Needs(
                _codes(chunks, array, n_tiles),
                opened.opens[blocks[mine]],
                opened.closes[blocks[mine]],
            )
            needs = unfinished[array].joined(fresh)
            # Units come in store order, so most chunks are not needed by any later slice.
            open_ended = needs.codes >= later[number, array]
            counts[array] += len(needs) - int(open_ended.sum())
            unfinished[array] = needs.where(open_ended)
    return [count + len(needs) for count, needs in zip(counts, unfinished, strict=True)]


def _trimmed_block(epoch: Epoch, turns: LaneTurns, n_total: int) -> tuple[NDArray[np.int64], int]:
    """Chunks of what is left of a block that began before the pass, and where it is left."""
    block = turns.block_of_turn(0)
    draws = turns.draws_in_block(block, epoch.block_draws(turns.lane, block))
    stop = turns.turns_in_block(block)[1]
    close = n_total if stop == turns.n_turns else turns.place_after(stop - 1)
    return epoch.space.chunks_of_draws(draws), close


def _open_units(all_turns: list[LaneTurns], stream: RankStream) -> _OpenUnits:
    units, blocks, opens, closes = [], [], [], []
    n_blocks = 0
    for turns in all_turns:
        lane = turns.lane
        numbers = np.arange(turns.block_of_turn(0), turns.block_of_turn(turns.n_turns - 1) + 1)
        start, stop = turns.turns_in_blocks(numbers)
        visited = start < stop
        left = turns.first_place + (stop[visited] - 1) * turns.stride + 1
        left[-1] = stream.n_total
        opens.append(np.append(np.int64(stream.begin), left[:-1]))
        closes.append(left)
        in_pieces = visited.copy()
        in_pieces[0] &= not turns.trimmed
        ordinals = n_blocks + np.cumsum(visited) - 1
        n_blocks += len(left)
        firsts = lane.first_pieces(np.append(numbers, numbers[-1] + 1))
        sizes = np.diff(firsts)
        listed = lane.order.units[lane.first_piece :][firsts[0] : firsts[-1]]
        units.append(listed[np.repeat(in_pieces, sizes)])
        blocks.append(np.repeat(ordinals.astype(np.int32)[in_pieces], sizes[in_pieces]))
    all_units, all_blocks = np.concatenate(units), np.concatenate(blocks)
    if (all_units[1:] < all_units[:-1]).any():
        by_unit = np.argsort(all_units, kind="stable")
        all_units, all_blocks = all_units[by_unit], all_blocks[by_unit]
    return _OpenUnits(all_units, all_blocks, np.concatenate(opens), np.concatenate(closes))


def _slices(space: DrawSpace, n_units: int) -> list[slice]:
    step = max(1, _CHUNKS_AT_ONCE // max(1, sum(space.chunks_bound(1))))
    return [slice(start, min(start + step, n_units)) for start in range(0, n_units, step)]


def _code_bounds(
    space: DrawSpace, opened: _OpenUnits, slices: list[slice], trimmed: list[NDArray[np.int64]]
) -> tuple[int, NDArray[np.int64]]:
    """Field tiles a code must tell apart, and the lowest code after each slice and array."""
    n_tiles = 1 + max((int(chunks[:, 2].max(initial=0)) for chunks in trimmed), default=0)
    lowest = np.full((len(slices) + 1, len(space.array_names)), np.iinfo(np.int64).max)
    for number, piece in enumerate(slices):
        _, chunks = space.unit_chunks(opened.units[piece])
        n_tiles = max(n_tiles, 1 + int(chunks[:, 2].max(initial=0)))
        np.minimum.at(lowest[number], chunks[:, 0], chunks[:, 1])
    later = np.minimum.accumulate(lowest[::-1], axis=0)[::-1][1:]
    never = later == np.iinfo(np.int64).max
    return n_tiles, np.where(never, later, np.where(never, 0, later) * n_tiles)


def _codes(chunks: NDArray[np.int64], array: int, n_tiles: int) -> NDArray[np.int64]:
    mine = chunks[chunks[:, 0] == array]
    codes: NDArray[np.int64] = mine[:, 1] * n_tiles + mine[:, 2]
    return codes
