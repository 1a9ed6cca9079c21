"""What all stores of this package have in common that wrap another one."""

import copy
from collections.abc import AsyncGenerator, Iterable
from typing import Self

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore


class SharedCopiesStore(WrapperStore[Store]):
    """Wraps a store; copies that Zarr makes, such as a read-only one, share what it counts."""

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        # A wrapper would hand it to the wrapped store; this comes back to `get`.
        async for item in Store._get_many(self, requests):  # noqa: SLF001
            yield item

    def _with_store(self, store: Store) -> Self:
        other = copy.copy(self)
        other._store = store  # noqa: SLF001
        return other
