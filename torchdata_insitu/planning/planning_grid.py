"""The cells in which arrays that chunk the sample axis differently are planned together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.chunk_grid import AxisChunks
from torchdata_insitu.planning.sample_ranges import Ranges, as_ranges, cut_on_chunks

_LEAST_UNITS_A_LANE = 4
# A cell is the least that is resident at once. One of 365 x 366 samples, for years of two lengths,
# would be the whole array. The limit is a constant, since the cells are part of the order.
_MOST_CHUNKS_A_CELL = 16
_MOST_CHUNKS = 100_000_000


@dataclass(frozen=True, slots=True)
class PlanningGrid:
    """Cells of the sample axis, and what planning on them costs.

    Example:
        >>> PlanningGrid(AxisChunks.regular(60, 30), common=True, reread=(1.0, 1.0)).edges.n_chunks
        2
    """

    edges: AxisChunks
    """The cells."""
    common: bool
    """Whether every edge is a chunk edge of every array, so that cells share no chunk."""
    reread: tuple[float, ...]
    """Per array, how often its chunks are read in a pass that visits each cell once, without
    offsets and if neighbouring cells are never in memory together: 1.0 on a common grid."""


def planning_edges(
    arrays: Sequence[ArrayGeometry],
    *,
    lanes: int = 1,
    budget_bytes: int | None = None,
    ranges: Ranges | None = None,
) -> PlanningGrid:
    """Find the cells to plan in.

    They are cut at the positions that are chunk edges of every array. If that leaves fewer than
    four cells a lane, or a cell above the budget or of more than 16 chunks of the coarsest array,
    the chunks of that array are the cells, and the others are read again where a cell cuts their
    chunks. A fine grid would be worse: chunks of 1 and of 30 samples planned in cells of 1 read the
    larger ones up to 30 times.

    The cells decide the draw order, so a plan that is to be resumed must not derive `lanes` or
    `budget_bytes` from the machine it runs on.

    Args:
        arrays: Of equal length along the sample axis.
        lanes: Lanes that must have units to shuffle.
        budget_bytes: Most decoded bytes a cell may have over all arrays; None for no limit.
        ranges: Samples that are drawn; None for all.

    Returns:
        The grid.

    Raises:
        PlanError: An array has more chunks than a plan can list.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> for name, chunk in (("hourly", 1), ("daily", 30)):
        ...     _ = zarr.create_array(store, name=name, shape=(600,), chunks=(chunk,), dtype="f4")
        >>> planning_edges(list(read_arrays(store).values())).edges.n_chunks
        20
    """
    _check_countable(arrays)
    length = arrays[0].n_samples
    drawn = as_ranges([(0, length)]) if ranges is None else ranges
    chunks = list(dict.fromkeys(array.sample_chunks for array in arrays))
    common = _common_edges(chunks)
    coarsest = min(chunks, key=lambda axis: axis.n_chunks)
    edges = common
    if common.n_chunks < coarsest.n_chunks:
        too_few = len(cut_on_chunks(common, drawn)) < _LEAST_UNITS_A_LANE * lanes
        cell_bytes = min(common.largest, length) * sum(array.sample_bytes for array in arrays)
        too_large = common.largest > _MOST_CHUNKS_A_CELL * coarsest.largest
        if too_few or too_large or (budget_bytes is not None and cell_bytes > budget_bytes):
            edges = coarsest
    cells = cut_on_chunks(edges, drawn)
    factors = {axis: _reread(axis, cells) for axis in chunks}
    return PlanningGrid(
        edges=edges,
        common=edges is common,
        reread=tuple(factors[array.sample_chunks] for array in arrays),
    )


def _check_countable(arrays: Iterable[ArrayGeometry]) -> None:
    for array in arrays:
        if array.n_chunks > _MOST_CHUNKS:
            raise PlanError(
                f"array {array.name!r} has {array.n_chunks} chunks along its sample axis, "
                f"{array.n_samples} samples in chunks of {array.rows_per_chunk}: a plan lists "
                f"them, up to {_MOST_CHUNKS}; choose another sample_axis"
            )


def _common_edges(chunks: Sequence[AxisChunks]) -> AxisChunks:
    """Positions that are edges on every axis: multiples of every step, in every list of edges."""
    length = chunks[0].length
    # A step beyond the end is as good as the end, and keeps the multiple of all steps small.
    steps = [min(axis.step, max(length, 1)) for axis in chunks if axis.step is not None]
    step = min(math.lcm(*steps), max(length, 1))
    listed = [axis.all_edges() for axis in chunks if axis.step is None]
    if not listed:
        return AxisChunks.regular(length, step)
    edges = listed[0]
    for other in listed[1:]:
        edges = np.intersect1d(edges, other, assume_unique=True)
    return AxisChunks.rectilinear(edges[(edges % step == 0) | (edges == length)].tolist())


def _reread(axis: AxisChunks, cells: Ranges) -> float:
    first, last = axis.chunk_of(cells[:, 0]), axis.chunk_of(cells[:, 1] - 1)
    # In sums of each, since the arrays can be of millions of cells.
    n_read = int(last.sum()) - int(first.sum()) + len(cells)
    # Cells are sorted, so a chunk that two cells read is the last of one and the first of the next.
    n_distinct = n_read - int(np.count_nonzero(first[1:] == last[:-1]))
    return n_read / n_distinct
