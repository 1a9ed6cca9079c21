"""What a loader has done so far."""

from dataclasses import dataclass

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
    missing: dict[str, int]
    """Stored chunks that were asked for, absent and read as the fill value, by array; what another
    loader on the pool has filled is counted there."""
    retries: dict[str, int]
    """Times that stored chunks were read again after a failure, by array; not in `reads`."""
    bytes_read: int
    """Encoded bytes read."""
    wait_s: float
    """Seconds the chain waited for chunks."""
