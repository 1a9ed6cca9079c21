"""What one fetcher asked its store for."""

import math
import threading
from collections import Counter
from collections.abc import Sequence

from torchdata_insitu.geometry.array_geometry import ArrayGeometry


class ArrayCounts:
    """Stored chunks of one array."""

    __slots__ = ("expected_bytes", "n_found", "n_missing", "n_reads", "n_requests", "n_retries")

    def __init__(self, decoded_bytes: int) -> None:
        self.n_reads = 0
        """Asked for; one that is read again counts once."""
        self.n_requests = 0
        """Requests for them: as many, but for shards and for what was read again."""
        self.n_retries = 0
        """Requests that were made again."""
        self.n_missing = 0
        """Not in the store, and filled."""
        self.n_found = 0
        """Whose bytes came."""
        self.expected_bytes = decoded_bytes
        """Stored bytes to reckon with: the most that came so far, at first those decoded."""


class ReadCounts:
    """Counters that reading threads and Zarr's loop share.

    Arrays are told apart by identity: one that is opened twice, as it is stored and decoded, has
    one name, and hashing what they are would cost more than counting.
    """

    def __init__(self, arrays: Sequence[ArrayGeometry]) -> None:
        self._arrays = tuple(arrays)
        self._counts = {
            id(array): ArrayCounts(
                math.prod(array.stored_chunk_shape) * array.stored_dtype.itemsize
            )
            for array in arrays
        }
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

    def requested(self, array: ArrayGeometry, n_chunks: int, *, again: bool) -> None:
        """A request was made, for so many stored chunks that were not asked for before."""
        with self._lock:
            counts = self.of(array)
            counts.n_requests += 1
            counts.n_reads += n_chunks
            counts.n_retries += again

    def asked(self, array: ArrayGeometry, n_chunks: int) -> None:
        """Stored chunks were asked for, and it took no request."""
        with self._lock:
            self.of(array).n_reads += n_chunks

    def came(self, n_bytes: int) -> None:
        """Bytes came that count for no stored chunk.

        They are none, or are taken apart into several, or one came another time, for the first
        ones were damaged.
        """
        with self._lock:
            self.bytes_read += n_bytes

    def found(self, array: ArrayGeometry, n_bytes: int, *, came: int | None = None) -> None:
        """The bytes of a stored chunk came.

        Args:
            array: Its array.
            n_bytes: How many.
            came: How many to count as read, where that was done for some of them before.
        """
        with self._lock:
            counts = self.of(array)
            is_first = not counts.n_found
            counts.expected_bytes = n_bytes if is_first else max(n_bytes, counts.expected_bytes)
            counts.n_found += 1
            self.bytes_read += n_bytes if came is None else came

    def missed(self, array: ArrayGeometry) -> None:
        """The store has no such key."""
        with self._lock:
            self.of(array).n_missing += 1
