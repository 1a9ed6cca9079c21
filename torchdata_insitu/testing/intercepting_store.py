"""What stores have in common that meddle with the reads of the store they wrap."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from torchdata_insitu.testing.shared_copies import SharedCopiesStore


class InterceptingStore(SharedCopiesStore):
    """Wraps a store so that every read of it goes through `get`.

    Zarr can read in several ways, some of which a wrapper hands to the wrapped store. Here all of
    them end in `get`, and the one that does not run on Zarr's event loop is refused. Copies that
    Zarr makes, such as a read-only one, share what the store counts.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.testing import make_store
        >>> class Loud(InterceptingStore):
        ...     async def get(self, key, prototype, byte_range=None):
        ...         print(key)
        ...         return await super().get(key, prototype, byte_range)
        >>> store = Loud(make_store({"t": (2, 2)}, chunks=(2, 2), zarr_format=2))
        >>> _ = zarr.open_array(store, path="t", mode="r", zarr_format=2)[...]
        t/.zarray
        t/.zattrs
        t/0.0
    """

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """As the wrapped store, each range a read of its own."""
        reads = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*reads))

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], **options: Any
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """As the wrapped store, neighbouring ranges one read."""
        given = {name: value for name, value in options.items() if value is not None}
        async for group in Store.get_ranges(self, key, byte_ranges, **given):
            yield group

    def get_sync(
        self,
        key: str,  # noqa: ARG002
        *,
        prototype: BufferPrototype | None = None,  # noqa: ARG002
        byte_range: ByteRequest | None = None,  # noqa: ARG002
    ) -> Buffer | None:
        """Refused.

        Raises:
            TypeError: Always: a read that waits belongs on the event loop.
        """
        msg = f"{type(self).__name__} is read on Zarr's event loop only, with `await get`"
        raise TypeError(msg)

    @property
    def _supports_sync_io(self) -> bool:
        return False
