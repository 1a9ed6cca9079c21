"""What a loader has done so far."""

from dataclasses import dataclass
from typing import Self

from torchdata_insitu.chain import Chain

__all__ = ["LoaderStats"]


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done since it was made.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2)}, chunks=(4, 2))
        >>> views = tdi.open_arrays(store)
        >>> with tdi.build_loader(store, views, batch_size=4, budget_bytes="10%") as loader:
        ...     for batch in loader:
        ...         pass
        ...     stats = loader.stats()
        >>> stats.batches, stats.reads, stats.missing
        (3, {'t2m': 3}, {})
    """

    batches: int
    """Batches handed out."""
    reads: dict[str, int]
    """Stored chunks asked for, by array; those read ahead are among them."""
    requests: dict[str, int]
    """Requests to the store for them, by array: as many as `reads` and `retries`, but for shards
    that are no fast local files: one request can bring several stored chunks or the index."""
    missing: dict[str, int]
    """Stored chunks that were asked for, absent and read as the fill value, by array; what another
    loader on the pool has filled is counted there."""
    retries: dict[str, int]
    """Requests that were made again after a failure, by array; not in `reads`."""
    bytes_read: int
    """Encoded bytes read."""
    wait_s: float
    """Seconds the chain waited for chunks."""

    @classmethod
    def of(cls, chain: Chain, n_batches: int) -> Self:
        """What the nodes of a chain have counted.

        Args:
            chain: The chain of the loader.
            n_batches: Batches that the loader has handed out.
        """
        return cls(
            batches=n_batches,
            reads=chain.by_array(lambda branch: branch.fetcher.n_reads),
            requests=chain.by_array(lambda branch: branch.fetcher.n_requests),
            missing=chain.by_array(lambda branch: branch.fetcher.n_missing),
            retries=chain.by_array(lambda branch: branch.fetcher.n_retries),
            bytes_read=sum(branch.fetcher.bytes_read for branch in chain.branches.values()),
            wait_s=sum(branch.pool_node.wait_s for branch in chain.branches.values()),
        )
