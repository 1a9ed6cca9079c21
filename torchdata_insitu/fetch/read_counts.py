"""What one fetcher asked its store for."""

import threading
from collections import Counter
from collections.abc import Sequence

from torchdata_insitu.geometry.array_geometry import ArrayGeometry


class ArrayCounts:
    """Stored chunks of one array."""

    __slots__ = ("n_found", "n_missing", "n_reads")

    def __init__(self) -> None:
        self.n_reads = 0
        """Asked for."""
        self.n_missing = 0
        """Not in the store, and filled."""
        self.n_found = 0
        """Whose bytes came."""


class ReadCounts:
    """Counters that reading threads and Zarr's loop share.

    Arrays are told apart by identity: one that is opened twice, as it is stored and decoded, has
    one name, and hashing what they are would cost more than counting.
    """

    def __init__(self, arrays: Sequence[ArrayGeometry]) -> None:
        self._arrays = tuple(arrays)
        self._counts = {id(array): ArrayCounts() for array in arrays}
        self.bytes_read = 0
        self._lock = threading.Lock()

    def of(self, array: ArrayGeometry) -> ArrayCounts:
        """The counts of one of the arrays this was made with."""
        return self._counts[id(array)]

    def by_name(self, field: str) -> Counter[str]:
        """One of the counts by the name of the array; arrays of one name together."""
        counter = Counter({array.name: 0 for array in self._arrays})
        for array in self._arrays:
            counter[array.name] += getattr(self.of(array), field)
        return counter

    def asked(self, array: ArrayGeometry) -> None:
        """A stored chunk was asked for."""
        with self._lock:
            self.of(array).n_reads += 1

    def found(self, array: ArrayGeometry, n_bytes: int) -> None:
        """Its bytes came."""
        with self._lock:
            self.of(array).n_found += 1
            self.bytes_read += n_bytes

    def missed(self, array: ArrayGeometry) -> None:
        """The store has no such key."""
        with self._lock:
            self.of(array).n_missing += 1
