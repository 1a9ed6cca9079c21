"""The most chunks that a rank holds at any time, known before anything runs."""

import math

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.run_lengths import RunLengths

# Longer runs are bounded more coarsely, so that a few chunk bounds are computed and not thousands.
_RUN_CHUNKS_EXACT = 8

type _Bound = NDArray[np.int64]


def floor_chunks(
    space: DrawSpace,
    lengths: RunLengths,
    *,
    block_chunks: int,
    run_chunks: int | None,
    n_lanes: int,
    rank: int,
    world_size: int,
) -> tuple[int, ...]:
    """Bound the chunks that one open block in every lane of a rank needs, in any epoch.

    Args:
        space: Where the draws come from.
        lengths: Draws in each unit.
        block_chunks: Units in a block.
        run_chunks: Units in a run; None if the units keep the order of the store.
        n_lanes: Lanes of the epoch.
        rank: Of the consumer.
        world_size: Number of ranks.

    Returns:
        Chunks by array number; never fewer than a rank holds.
    """
    n_draws = lengths.total
    lanes = range(
        rank % math.gcd(n_lanes, world_size), min(n_lanes, n_draws), math.gcd(n_lanes, world_size)
    )
    pieces = min(block_chunks, _most_pieces(lengths, -(-n_draws // n_lanes)))
    block = _block_bound(space, lengths, pieces, run_chunks)
    everything = _bound(space, space.n_units)
    # A rank without draws of its own still holds the chunk of the draw it copies.
    return tuple(np.minimum(block * max(1, len(lanes)), everything).tolist())


def _most_pieces(lengths: RunLengths, n_draws: int) -> int:
    """Most units that `n_draws` draws laid end to end can touch."""
    drawn = lengths.lengths > 0
    sizes, counts = lengths.lengths[drawn], lengths.counts[drawn]
    room, whole = n_draws - 2, 0
    for place in np.argsort(sizes, kind="stable"):
        fit = min(int(counts[place]), max(0, room) // int(sizes[place]))
        whole += fit
        room -= fit * int(sizes[place])
    return min(int(counts.sum()), whole + min(2, n_draws))


def _block_bound(
    space: DrawSpace, lengths: RunLengths, pieces: int, run_chunks: int | None
) -> _Bound:
    """Most chunks that `pieces` units, consecutive in drawing order, need."""
    apart = pieces * _bound(space, 1)
    if run_chunks == 1 or (lengths.lengths == 0).any():
        return apart
    if run_chunks is None:
        return np.minimum(apart, _bound(space, pieces))
    sizes = _part_sizes(space.n_units, pieces, run_chunks)
    bounds = {size: _bound(space, size) for size in {size for parts in sizes for size in parts}}
    in_runs = np.max(
        [sum(n * bounds[size] for size, n in parts.items()) for parts in sizes], axis=0
    )
    return np.minimum(apart, in_runs)


def _part_sizes(n_units: int, pieces: int, run_chunks: int) -> list[dict[int, int]]:
    """Ways in which a block falls into parts of runs: how many parts of each size."""
    short = n_units % run_chunks
    if run_chunks > _RUN_CHUNKS_EXACT:
        n_runs = (pieces - 2) // run_chunks + 2 + (short > 0) if pieces > 1 else 1
        return [{min(pieces, run_chunks): n_runs}]
    ways = []
    for first in range(1, min(run_chunks, pieces) + 1):
        # The last run of the store may be shorter than the others and lie inside the block.
        for inside in {0, min(short, pieces - first)}:
            full, last = divmod(pieces - first - inside, run_chunks)
            parts: dict[int, int] = {}
            for size, n in ((first, 1), (inside, 1), (run_chunks, full), (last, 1)):
                if size and n:
                    parts[size] = parts.get(size, 0) + n
            ways.append(parts)
    return ways


def _bound(space: DrawSpace, n_units: int) -> _Bound:
    return np.array(space.chunks_bound(n_units), dtype=np.int64)
