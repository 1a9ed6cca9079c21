"""Nodes between planner and gather: one segment in, the same draws out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdata_insitu.errors import PlanError
from torchdata_insitu.gather.row_lookup import RowLookup
from torchdata_insitu.nodes.cursor_node import SourcedNode
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.segments import Segment
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.chunk_source import ChunkSource
from torchdata_insitu.pool.pool_pass import PoolPass

__all__ = ["FetchedSegment", "ResidentSegment", "SegmentNode"]


@dataclass(frozen=True, eq=False)
class _OfSegment:
    """A segment on its way through the chain."""

    segment: Segment
    """What is drawn."""

    @property
    def cursor(self) -> Cursor:
        """The cursor of its first draw."""
        return self.segment.cursor

    @property
    def after(self) -> Cursor:
        """The cursor of the segment that follows it."""
        return self.segment.after


@dataclass(frozen=True, eq=False)
class FetchedSegment(_OfSegment):
    """A segment whose chunks were asked for."""

    admission: Admission
    """What it still waits for."""
    pool_pass: PoolPass
    """Who leases its chunks."""
    sources: tuple[ChunkSource, ...]
    """The chunk source of each array, by its number in the plan."""
    is_last: bool
    """Whether the pass ends with it."""


@dataclass(frozen=True, eq=False)
class ResidentSegment(_OfSegment):
    """A segment whose chunks can be read."""

    lookups: tuple[RowLookup, ...]
    """Where the rows of each array are, by its number in the plan."""
    regions: tuple[np.ndarray, ...]
    """The rows of each array's region, by its number in the plan."""
    fetched: FetchedSegment
    """Where it came from."""

    def release(self) -> None:
        """Give back the chunks that no later segment needs at once; the last one ends the pass."""
        fetched = self.fetched
        if fetched.is_last:
            fetched.pool_pass.close()
        else:
            fetched.pool_pass.release(
                key.of(fetched.sources[key.source])  # type: ignore[call-overload]
                for key in self.segment.release
            )


class SegmentNode(SourcedNode[Any]):
    """A node of one's own between planner and fetcher: sees each segment, keeps its draws.

    Override `map`. Whatever it changes, the draws have to stay: their order is the contract that
    exact resume stands on.

    State:
        The cursor of the next segment.

    Threads:
        None of its own.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> class Ledger(tdi.SegmentNode):
        ...     def map(self, segment):
        ...         print(segment.draws[:, 0].tolist())
        ...         return segment
        >>> t2m = tdi.open_arrays(make_store({"t2m": (4, 2)}, chunks=(2, 2)))["t2m"]
        >>> planner = tdi.ChunkPlanner({"x": t2m}, batch_size=2, shuffle=False, block_chunks=1)
        >>> _ = list(Ledger(planner))
        [0, 1]
        [2, 3]
    """

    def map(self, segment: Segment) -> Segment:
        """What to hand on in place of a segment; the same draws in the same order."""
        return segment

    def _make(self) -> Segment:
        segment: Segment = next(self.source)
        # Copied, because `map` could write into the draws it is given.
        draws = segment.draws.copy()
        mapped: Any = self.map(segment)
        if not isinstance(mapped, Segment) or not np.array_equal(mapped.draws, draws):
            what = f"a {type(mapped).__name__}"
            if isinstance(mapped, Segment):
                what = f"{len(mapped.draws)} other draws"
            msg = (
                f"{type(self).__name__}.map returned {what} for a segment of {len(draws)} draws at "
                f"position {segment.cursor.position}: return a Segment with the same draws in the "
                "same order, since exact resume stands on them"
            )
            raise PlanError(msg)
        return mapped


def row_lookups(
    arrays: Sequence[Any], keys: Sequence[Any], pool_pass: PoolPass, sources: Sequence[ChunkSource]
) -> tuple[RowLookup, ...]:
    """Where the rows of each array are while the chunks `keys` are leased.

    Args:
        arrays: the arrays of the plan.
        keys: leased chunks, with the number of the array as source.
        pool_pass: who leases them.
        sources: the chunk source of each array.
    """
    rows = pool_pass.first_rows([key.of(sources[key.source]) for key in keys])
    table = np.array(
        [(key.source, key.sample_run, row) for key, row in zip(keys, rows, strict=True)], np.int64
    ).reshape(-1, 3)
    lookups = []
    for number, array in enumerate(arrays):
        mine = table[table[:, 0] == number]
        lookups.append(RowLookup(array.name, array.sample_chunks, mine[:, 1], mine[:, 2]))
    return tuple(lookups)
