"""A store that counts what is read from it."""

import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from torchdata_insitu.testing.chunk_keys import is_chunk
from torchdata_insitu.testing.shared_copies import SharedCopiesStore


class CountingStore(SharedCopiesStore):
    """Wraps a store and counts the reads of every key.

    Loaders read it on Zarr's event loop, also where the wrapped store is a local folder. Copies
    that Zarr makes, such as a read-only one, count into the same numbers.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.testing import make_store
        >>> store = CountingStore(make_store({"t": (6, 2)}, chunks=(2, 2)))
        >>> _ = zarr.open_array(store, path="t")[0:4]
        >>> store.gets["t/c/0/0"], store.reads("t/")
        (1, 2)
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.gets: Counter[str] = Counter()
        """Reads by key, metadata and missing keys included."""
        self._counting = threading.Lock()

    def reads(self, prefix: str = "") -> int:
        """Reads of chunks, present or missing, whose keys begin with `prefix`.

        Example:
            >>> import zarr
            >>> CountingStore(zarr.storage.MemoryStore()).reads()
            0
        """
        return sum(
            n for key, n in list(self.gets.items()) if key.startswith(prefix) and is_chunk(key)
        )

    def reset(self) -> None:
        """Count from zero again.

        Example:
            >>> import zarr
            >>> store = CountingStore(zarr.storage.MemoryStore())
            >>> store.gets["t/c/0"] += 1
            >>> store.reset()
            >>> store.reads()
            0
        """
        with self._counting:
            self.gets.clear()

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As the wrapped store."""
        self._count(key)
        return await super().get(key, prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """As the wrapped store."""
        ranges = list(key_ranges)
        for key, _ in ranges:
            self._count(key)
        return await super().get_partial_values(prototype, ranges)

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], **options: Any
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """As the wrapped store; counts one read per call."""
        self._count(key)
        async for group in super().get_ranges(key, byte_ranges, **options):
            yield group

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """As the wrapped store."""
        self._count(key)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)

    def _count(self, key: str) -> None:
        with self._counting:
            self.gets[key] += 1
