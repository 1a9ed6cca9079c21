"""A store that takes its time, as one on the network does."""

import asyncio
import hashlib
import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from statistics import NormalDist

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from torchdata_insitu.testing.chunk_keys import Match, is_chunk, matcher
from torchdata_insitu.testing.intercepting_store import InterceptingStore


class LatencyStore(InterceptingStore):
    """Wraps a store; each read waits, and the bytes of all reads share one line.

    Waits are on Zarr's event loop, so that any number of reads waits at the same time and a wait
    can be cancelled.

    Args:
        store: The store to wrap.
        latency_s: Seconds from the question to the first byte: one number, or median and sigma of
            a log-normal distribution. The number drawn for a key depends on `seed` and the key
            only, whatever is read before it and however often.
        bandwidth: Bytes per second over all reads together. None for no limit.
        seed: Of the log-normal latencies.
        match: The keys that wait, as one key, several, or a function of the key; all chunks and no
            metadata unless given.

    Raises:
        ValueError: A negative time, or a bandwidth that is not positive.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.testing import make_store
        >>> inner = make_store({"t": (6, 2)}, chunks=(2, 2), codec="none")
        >>> store = LatencyStore(inner, latency_s=0.001)
        >>> _ = zarr.open_array(store, path="t")[...]
        >>> store.gets["t/c/0/0"], store.most_inflight, store.bytes
        (1, 3, 48)
        >>> slow_tail = LatencyStore(inner, latency_s=(0.03, 0.5))
        >>> round(slow_tail.latency_of("t/c/0/0"), 4), round(slow_tail.latency_of("t/c/1/0"), 4)
        (0.0603, 0.0353)
    """

    def __init__(
        self,
        store: Store,
        latency_s: float | tuple[float, float],
        *,
        bandwidth: float | None = None,
        seed: int = 0,
        match: Match = is_chunk,
    ) -> None:
        super().__init__(store)
        self._median_s, self._sigma = (
            latency_s if isinstance(latency_s, tuple) else (latency_s, 0.0)
        )
        if not (self._median_s >= 0 and self._sigma >= 0):
            raise ValueError(f"latency_s is {latency_s!r}: give seconds of at least 0")
        if bandwidth is not None and not bandwidth > 0:
            raise ValueError(f"bandwidth is {bandwidth!r}: give bytes per second above 0, or None")
        self._bandwidth = bandwidth
        self._seed = seed
        self._match = matcher(match)
        self._traffic = _Traffic()

    @property
    def gets(self) -> Counter[str]:
        """Reads of the matching keys, by key; those that wait and those that failed included."""
        return self._traffic.gets

    @property
    def inflight(self) -> int:
        """Reads of matching keys that wait now."""
        return self._traffic.inflight

    @property
    def most_inflight(self) -> int:
        """Reads of matching keys that waited at the same time, at most."""
        return self._traffic.most_inflight

    @property
    def bytes(self) -> int:
        """Bytes of matching keys that came."""
        return self._traffic.n_bytes

    def reset(self) -> None:
        """Count from zero again; reads that wait now stay in flight.

        Example:
            >>> import zarr
            >>> store = LatencyStore(zarr.storage.MemoryStore(), 0.0)
            >>> store.gets["t/c/0"] += 1
            >>> store.reset()
            >>> store.gets
            Counter()
        """
        traffic = self._traffic
        with traffic.lock:
            traffic.gets.clear()
            traffic.most_inflight = traffic.inflight
            traffic.n_bytes = 0

    def latency_of(self, key: str) -> float:
        """Seconds that a read of a key waits for its first byte, if the key matches.

        Example:
            >>> import zarr
            >>> LatencyStore(zarr.storage.MemoryStore(), 0.25).latency_of("t/c/0")
            0.25
        """
        if not self._sigma:
            return self._median_s
        digest = hashlib.blake2b(f"{self._seed}/{key}".encode(), digest_size=8).digest()
        share = (int.from_bytes(digest) + 0.5) / 2**64
        # The last hashes round to 1, of which the distribution has no value.
        return self._median_s * math.exp(self._sigma * NormalDist().inv_cdf(min(share, 1 - 1e-12)))

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As the wrapped store, later."""
        if not self._match(key):
            return await super().get(key, prototype, byte_range)
        traffic = self._traffic
        with traffic.lock:
            traffic.gets[key] += 1
            traffic.inflight += 1
            traffic.most_inflight = max(traffic.most_inflight, traffic.inflight)
        try:
            latency_s = self.latency_of(key)
            if latency_s:
                await asyncio.sleep(latency_s)
            buffer = await super().get(key, prototype, byte_range)
            if buffer is not None:
                await self._transfer(len(buffer))
            return buffer
        finally:
            with traffic.lock:
                traffic.inflight -= 1

    async def _transfer(self, n_bytes: int) -> None:
        traffic = self._traffic
        if self._bandwidth is not None:
            now = asyncio.get_running_loop().time()
            # Answers follow each other on the line, in the order in which they were ready.
            traffic.line_is_free_at = max(now, traffic.line_is_free_at) + n_bytes / self._bandwidth
            await asyncio.sleep(traffic.line_is_free_at - now)
        with traffic.lock:
            traffic.n_bytes += n_bytes


@dataclass
class _Traffic:
    """What the copies of a store share."""

    gets: Counter[str] = field(default_factory=Counter)
    inflight: int = 0
    most_inflight: int = 0
    n_bytes: int = 0
    line_is_free_at: float = -math.inf
    lock: threading.Lock = field(default_factory=threading.Lock)
