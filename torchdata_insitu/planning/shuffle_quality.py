"""How close a plan's order comes to a random permutation of all draws."""

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.epoch import Epoch
from torchdata_insitu.planning.keyed_random import keyed_permutation
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.run_lengths import RunLengths

# Draws computed in each epoch: a batch needs all draws of the blocks it falls in.
_DRAWS_AT_MOST = 1 << 20
_LEAST_BATCHES = 8


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Four measures of an order, each about 0 for the order of the store and 1 for a random one.

    A batch is what all ranks hand out in one step, or two draws where that is a single one.

    Example:
        >>> ShuffleQuality(order=1.0, mixing=0.4, neighbours=0.9, partners=0.8).overall
        0.4
    """

    order: float
    """Whether early draws are early samples: 1 minus the size of the rank correlation (Spearman's)
    of position and sample, above what chance gives; mean over the epochs."""
    mixing: float
    """From how many units a batch is drawn, on the scale from a batch of consecutive samples to one
    drawn at random."""
    neighbours: float
    """How rarely a batch holds a sample and the next one of the store, on the scale from a batch of
    consecutive samples to one drawn at random."""
    partners: float
    """How far apart two draws of a batch are in the next epoch, as a share of the mean distance in
    a random order: 0 if they meet again. Expected values, over the shuffles inside blocks."""

    @property
    def overall(self) -> float:
        """The smallest of the four: a shuffle is as good as its weakest side."""
        return min(self.order, self.mixing, self.neighbours, self.partners)


def shuffle_quality(
    plan: Plan, *, epochs: int = 2, world_size: int = 1, lanes: int | None = None
) -> ShuffleQuality:
    """Measure how well a plan shuffles, without reading any data.

    Large plans are measured on batches spread evenly over the epoch, so that the work is bounded.

    Args:
        plan: What is drawn; its batch size is that of one rank.
        epochs: Epochs to look at, from 0 on; at least 2, since one measure compares two of them.
        world_size: Number of ranks.
        lanes: Lanes of the epochs; None for one a rank.

    Returns:
        The measures.

    Raises:
        PlanError: Fewer than two epochs, or fewer than two draws.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> from torchdata_insitu.planning.anchor_space import AnchorSpace
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(9600, 2), chunks=(24, 2), dtype="f4")
        >>> space = AnchorSpace(read_arrays(store))
        >>> for shuffle in (False, True):
        ...     plan = Plan(space, shuffle=shuffle, block_chunks=32, batch_size=32)
        ...     print(round(shuffle_quality(plan).overall, 1))
        0.0
        0.6
    """
    if epochs < 2 or plan.n_draws < 2:  # noqa: PLR2004 (two of each are compared)
        msg = (
            f"{epochs} epochs of {plan.n_draws} draws: shuffle_quality compares at least 2 of each"
        )
        raise PlanError(msg)
    firsts = np.zeros(plan.space.n_units + 1, dtype=np.int64)
    np.cumsum(plan.lengths.expand(), out=firsts[1:])
    store = _StoreOrder(firsts)
    # Positions are measured by what order they come in, so of the space only draws are asked for.
    space = cast("DrawSpace", store)
    n_lanes = world_size if lanes is None else lanes
    orders = [replace(plan.epoch(number, n_lanes), space=space) for number in range(epochs)]
    batch = min(max(2, plan.batch_size * world_size), plan.n_draws)
    starts = _batch_starts(orders[0], batch)
    samples = [_samples(order, starts, batch) for order in orders]
    pairs = keyed_permutation(batch, plan.seed, "pairs")[: batch // 2 * 2].reshape(2, -1)
    return ShuffleQuality(
        order=_mean([_order(drawn, starts) for drawn in samples]),
        mixing=_mean([_mixing(drawn, store, plan.lengths) for drawn in samples]),
        neighbours=_mean([_neighbours(drawn, plan.n_draws) for drawn in samples]),
        partners=_mean(
            [
                _partners(drawn[:, pairs[0]].ravel(), drawn[:, pairs[1]].ravel(), store, after)
                for drawn, after in zip(samples, orders[1:], strict=False)
            ]
        ),
    )


class _StoreOrder:
    """Draws named by one number each: their place in the order of the store."""

    n_columns = 1

    def __init__(self, firsts: NDArray[np.int64]) -> None:
        self.firsts = firsts

    def draws(self, unit: int, start: int, stop: int) -> NDArray[np.int64]:
        first = int(self.firsts[unit])
        return np.arange(first + start, first + stop, dtype=np.int64)[:, None]

    def units(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.firsts, places, side="right") - 1


def _batch_starts(order: Epoch, batch: int) -> NDArray[np.int64]:
    """Positions of batches, evenly spread and as many as the bound on the work allows."""
    n_draws = order.order.n_draws
    n_units = len(order.order.units)
    in_blocks = order.n_lanes * min(n_units, order.block_chunks) * n_draws // n_units
    most = max(_LEAST_BATCHES, _DRAWS_AT_MOST // max(batch, in_blocks))
    n_batches = min(n_draws // batch, most)
    return np.linspace(0, n_draws - batch, n_batches, dtype=np.int64)


def _samples(order: Epoch, starts: NDArray[np.int64], batch: int) -> NDArray[np.int64]:
    """Store places of the draws of each batch, `(batches, batch)`."""
    return np.stack([order.draws(start, start + batch)[:, 0] for start in starts.tolist()])


def _order(drawn: NDArray[np.int64], starts: NDArray[np.int64]) -> float:
    positions = (starts[:, None] + np.arange(drawn.shape[1])).ravel()
    places = drawn.ravel()
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (positions, places)]
    correlation = abs(float(np.corrcoef(ranks[0], ranks[1])[0, 1]))
    by_chance = 1 / math.sqrt(len(places))
    return _scaled(correlation, worst=1, best=by_chance)


def _mixing(drawn: NDArray[np.int64], store: _StoreOrder, lengths: RunLengths) -> float:
    n_batches, batch = drawn.shape
    by_batch = np.sort(store.units(drawn), axis=1)
    n_units = 1 + float((by_batch[:, 1:] != by_batch[:, :-1]).sum()) / n_batches
    # A batch of consecutive samples spans the borders of units inside it.
    n_draws, n_drawn_units = lengths.total, int(lengths.counts[lengths.lengths > 0].sum())
    in_a_row = 1 + (batch - 1) * (n_drawn_units - 1) / max(1, n_draws - 1)
    at_random = math.fsum(
        int(count) * (1 - _chance_of_none(int(length), batch, n_draws))
        for length, count in zip(*_distinct_lengths(lengths), strict=True)
    )
    return _scaled(n_units, worst=in_a_row, best=at_random)


def _distinct_lengths(lengths: RunLengths) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    distinct, places = np.unique(lengths.lengths, return_inverse=True)
    counts = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(counts, places, lengths.counts)
    return distinct, counts


def _chance_of_none(length: int, batch: int, n_draws: int) -> float:
    """Probability that a random batch has no draw of a unit: hypergeometric."""
    others = n_draws - length
    if others < batch:
        return 0.0
    logarithm = math.lgamma(others + 1) - math.lgamma(others - batch + 1)
    return math.exp(logarithm - math.lgamma(n_draws + 1) + math.lgamma(n_draws - batch + 1))


def _neighbours(drawn: NDArray[np.int64], n_draws: int) -> float:
    batch = drawn.shape[1]
    by_batch = np.sort(drawn, axis=1)
    adjacent = float((np.diff(by_batch, axis=1) == 1).mean())
    # Each of n - 1 adjacent pairs is in a random batch with probability b (b - 1) / (n (n - 1)).
    return _scaled(adjacent, worst=1, best=batch / n_draws)


def _partners(
    firsts: NDArray[np.int64], seconds: NDArray[np.int64], store: _StoreOrder, after: Epoch
) -> float:
    """Mean distance in the next epoch of draws that were partners, given pairwise."""
    blocks, middles, n_in_block = zip(
        *(_where_next(places, store, after) for places in (firsts, seconds)), strict=True
    )
    distances = np.abs(middles[0] - middles[1]).astype(np.float64)
    if after.shuffle_key is not None:
        together = blocks[0] == blocks[1]
        # Two of n shuffled draws are (n + 1) / 3 places apart, and places of a lane L positions.
        distances[together] = after.n_lanes * (n_in_block[0][together] + 1) / 3
    return _scaled(float(distances.mean()), worst=0, best=(after.order.n_draws + 1) / 3)


def _where_next(
    places: NDArray[np.int64], store: _StoreOrder, after: Epoch
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Block (numbered over all lanes), mean position and draws of the block of each draw."""
    order = after.order
    listed = np.empty(len(store.firsts) - 1, dtype=np.int64)
    listed[order.units] = np.arange(len(order.units))
    units = store.units(places)
    laid_out = order.firsts[listed[units]] + places - store.firsts[units]
    lanes = [after.lane(number) for number in range(after.n_lanes)]
    lane_of = np.searchsorted([lane.start for lane in lanes], laid_out, side="right") - 1
    blocks = np.empty(len(places), dtype=np.int64)
    positions = np.empty(len(places), dtype=np.float64)
    n_in_block = np.empty(len(places), dtype=np.int64)
    for lane in lanes:
        mine = lane_of == lane.number
        indices = laid_out[mine] - lane.start
        numbers = lane.blocks_at(indices)
        firsts, stops = lane.first_draws(numbers), lane.first_draws(numbers + 1)
        if after.shuffle_key is not None:
            indices = (firsts + stops - 1) / 2
        blocks[mine] = numbers * after.n_lanes + lane.number
        positions[mine] = indices * after.n_lanes + lane.number
        n_in_block[mine] = stops - firsts
    return blocks, positions, n_in_block


def _scaled(value: float, *, worst: float, best: float) -> float:
    """Where a value lies between the worst (0) and the best (1)."""
    if math.isclose(worst, best, rel_tol=1e-6):
        return 1.0
    return min(1.0, max(0.0, (value - worst) / (best - worst)))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
