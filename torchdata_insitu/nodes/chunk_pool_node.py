"""Waits until the chunks of a segment can be read."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any, ClassVar

from torchdata.nodes import BaseNode

from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.nodes.async_chunk_fetcher import AsyncChunkFetcher
from torchdata_insitu.nodes.chunk_sources import check_pool
from torchdata_insitu.nodes.cursor_node import SourcedNode
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.nodes.segment_node import FetchedSegment, ResidentSegment, row_lookups
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["ChunkPoolNode"]


class ChunkPoolNode(SourcedNode[ResidentSegment]):
    """Hands out segments whose chunks are resident, and says where their rows are.

    Args:
        source: an `AsyncChunkFetcher`.
        pool: the pool of that fetcher.

    State:
        The cursor of the next segment.

    Threads:
        None of its own; `next` blocks until the chunks landed, one failed, or `interrupt`.

    Raises:
        PlanError: the fetcher fills another pool.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
        >>> views = {"x": tdi.open_arrays(store)["t2m"]}
        >>> pool = tdi.ChunkPool("10%")
        >>> planner = tdi.ChunkPlanner(views, batch_size=4, shuffle=False, block_chunks=1)
        >>> fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
        >>> segment = next(tdi.ChunkPoolNode(fetcher, pool))
        >>> segment.lookups[0].rows(segment.segment.draws[:, 0]).tolist()
        [0, 1, 2, 3]
        >>> fetcher.shutdown()
    """

    _RUNTIME: ClassVar[dict[str, Any]] = {
        "_open": {},
        "_awaited": None,
        "_interrupted": False,
        "_known": frozenset(),
    }

    def __init__(self, source: BaseNode[FetchedSegment], pool: ChunkPool) -> None:
        """Stand on a fetcher that fills the same pool."""
        super().__init__(source)
        check_pool(pool)
        self.pool = pool
        fetchers = [node for node in walk(source) if isinstance(node, AsyncChunkFetcher)]
        if len(fetchers) != 1 or fetchers[0].pool is not pool:
            msg = (
                f"ChunkPoolNode stands on {len(fetchers)} AsyncChunkFetchers and needs exactly 1 "
                "that fills its own pool: give both nodes the same ChunkPool"
            )
            raise PlanError(msg)
        self._fetcher = fetchers[0]
        self._open: dict[ChunkKey, None] = {}
        self._awaited: Admission | None = None
        self._interrupted = False
        # Arrays of which a chunk was found, or missing ones explained.
        self._known: frozenset[Hashable] = frozenset()
        self.wait_s = 0.0

    def _start(self, cursor: Cursor) -> None:
        super()._start(cursor)
        self._open = {}
        self._awaited = None
        self._interrupted = False

    def _make(self) -> ResidentSegment:
        fetched: FetchedSegment = next(self.source)
        # `interrupt` on another thread either sees the admission, and wakes it, or has set the
        # flag before, which is looked at after the admission is in place.
        self._awaited = fetched.admission
        if self._interrupted:
            msg = "the node was interrupted: reset it before asking again"
            raise ClosedError(msg)
        started = time.perf_counter()
        try:
            fetched.admission.wait()
            self.wait_s += time.perf_counter() - started
            self._awaited = None
            self._check_missing(fetched)
        except BaseException:
            # Leases and floor end with the error, not with whoever keeps it.
            fetched.pool_pass.close()
            raise
        segment = fetched.segment
        self._open.update(dict.fromkeys(segment.admit))
        keys = list(self._open)
        for key in segment.release:
            del self._open[key]
        pool_pass, sources = fetched.pool_pass, fetched.sources
        lookups = row_lookups(self.planner.arrays, keys, pool_pass, sources)
        regions = tuple(self.pool.region(source).rows for source in sources)
        return ResidentSegment(segment, lookups, regions, fetched)

    def _check_missing(self, fetched: FetchedSegment) -> None:
        # A wrong path reads like a store whose every chunk is missing; without this check the first
        # epoch would be all fill values. Chunks that another pass has filled are looked at too.
        admitted = {key.source for key in fetched.segment.admit}
        for number in admitted - self._known:
            if not self.pool.is_found(fetched.sources[number]):  # type: ignore[call-overload]
                self._fetcher.check_missing(self.planner.arrays[number])  # type: ignore[call-overload]
            self._known |= {number}

    def interrupt(self) -> None:
        """Wake a `next` that waits for chunks."""
        self._interrupted = True
        awaited = self._awaited
        if awaited is not None:
            awaited.interrupt()
