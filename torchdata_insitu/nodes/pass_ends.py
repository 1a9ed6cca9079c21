"""How a pass over chunks ends, and each of its loads: plain functions, which keep no node alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from torchdata_insitu.fetch.chunk_fetcher import Cancelled, ChunkFetcher
from torchdata_insitu.fetch.chunk_load import ChunkLoad
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.pool.pool_pass import PoolPass, SlotFill

__all__ = ["chunk_load", "end_pass", "liveness"]


def liveness(node: object, pool_pass: PoolPass) -> Callable[[], bool]:
    """Whether a pass goes on: not after its last batch, an error, or the end of its node.

    Told by what ends at once: whatever is collected is shut down a little later.
    """
    owner, lasting = weakref.ref(node), weakref.ref(pool_pass)

    def is_live() -> bool:
        known = lasting()
        return owner() is not None and known is not None and not known.closed

    return is_live


def end_pass(pool_pass: PoolPass, fetchers: Sequence[ChunkFetcher]) -> None:
    """Close a pass, cancel its reads, and let nobody wait for what was lost."""
    # Where an interrupt ended this before, loads can be lost that another pass waits for; otherwise
    # what it waits for is just being written.
    is_again = pool_pass.closed
    pool_pass.close()
    for fetcher in fetchers:
        fetcher.cancel()
    pool_pass.forget_loads(shared=is_again)


def chunk_load(array: ArrayGeometry, fill: SlotFill) -> ChunkLoad:
    """The load that fills a slot of the pool, with what its error is to say of samples."""

    def done(load: ChunkLoad, error: BaseException | None) -> None:
        if isinstance(error, Cancelled):
            fill.abandon()
            return
        if error is not None:
            first, stop = array.sample_chunks.bounds(fill.key.sample_run)
            error.add_note(f"needed for the samples {first} to {stop - 1} of array {array.name!r}")
        fill.finish(error, load.n_missing)

    return ChunkLoad(array, fill.key.sample_run, fill.key.field_tile, fill.out, done)
