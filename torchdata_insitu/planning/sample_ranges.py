"""Arithmetic on sorted half-open ranges of samples, as `(n, 2)` int64."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.geometry.chunk_grid import AxisChunks

type Ranges = NDArray[np.int64]


def as_ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Pairs `(start, stop)` as an array."""
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2)


def n_samples(ranges: Ranges) -> int:
    """Samples in disjoint ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def clip(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The part of each range inside `[start, stop)`; empty ones are left out."""
    cut = np.clip(ranges, start, stop)
    return cut[cut[:, 0] < cut[:, 1]]


def first_samples(ranges: Ranges, n: int) -> Ranges:
    """The first `n` samples of sorted, disjoint ranges."""
    lengths = ranges[:, 1] - ranges[:, 0]
    kept = np.clip(n - (np.cumsum(lengths) - lengths), 0, lengths)
    cut = ranges.copy()
    cut[:, 1] = ranges[:, 0] + kept
    return cut[cut[:, 0] < cut[:, 1]]


def union(ranges: Ranges) -> Ranges:
    """The same samples in disjoint ranges that do not touch."""
    if len(ranges) == 0:
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.append(np.True_, ranges[1:, 0] > reach[:-1])
    return np.stack([ranges[first, 0], reach[np.append(first[1:], np.True_)]], axis=1)


def n_common(ranges: Ranges, others: Ranges) -> int:
    """Samples that lie in both of two disjoint sets of ranges."""
    return (
        n_samples(ranges) + n_samples(others) - n_samples(union(np.concatenate([ranges, others])))
    )


def cut_on_chunks(chunks: AxisChunks, ranges: Ranges) -> Ranges:
    """The ranges, cut at every chunk edge inside them.

    Args:
        chunks: Cells that the axis falls into.
        ranges: Sorted and disjoint.

    Returns:
        One row per piece, in order.
    """
    first = chunks.chunk_of(ranges[:, 0])
    n_cells = chunks.chunk_of(ranges[:, 1] - 1) - first + 1
    before = np.cumsum(n_cells) - n_cells
    cells = np.repeat(first - before, n_cells)
    cells += np.arange(len(cells))
    # Column by column, for whoever wants all starts and all stops: there can be millions.
    pieces = np.empty((2, len(cells)), dtype=np.int64).T
    pieces[:, 0] = chunks.starts(cells)
    cells += 1
    pieces[:, 1] = chunks.starts(cells)
    pieces[before, 0] = ranges[:, 0]
    pieces[before + n_cells - 1, 1] = ranges[:, 1]
    return pieces
