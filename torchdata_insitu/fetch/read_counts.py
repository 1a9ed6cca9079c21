"""What one fetcher asked its store for."""

import threading
from collections import Counter
from collections.abc import Iterable


class ReadCounts:
    """Counters that reading threads and Zarr's loop share."""

    def __init__(self, names: Iterable[str]) -> None:
        zeros = dict.fromkeys(names, 0)
        self.n_reads = Counter(zeros)
        self.n_missing = Counter(zeros)
        self.n_found = Counter(zeros)
        self.bytes_read = 0
        self._lock = threading.Lock()

    def asked(self, name: str) -> None:
        """A stored chunk was asked for."""
        with self._lock:
            self.n_reads[name] += 1

    def found(self, name: str, n_bytes: int) -> None:
        """Its bytes came."""
        with self._lock:
            self.n_found[name] += 1
            self.bytes_read += n_bytes

    def missed(self, name: str) -> None:
        """The store has no such key."""
        with self._lock:
            self.n_missing[name] += 1
