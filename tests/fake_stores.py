"""Stores that fail in one way each; they wrap any store, also each other."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from torchdata_insitu.testing import FaultStore, is_chunk


class NeverAnswers(WrapperStore[Store]):
    """`get` of the matching keys waits for ever; it can be cancelled.

    `n_waiting` says how many reads wait now, `most_waiting` how many waited at the same time, and
    `n_cancelled` how many were cancelled. `answer()` lets those that wait go on to the wrapped
    store, and every later one too.
    """

    def __init__(self, store: Store, match: Callable[[str], bool] = is_chunk) -> None:
        super().__init__(store)
        self._match = match
        self._answers: asyncio.Event | None = None
        self._is_open_for_all = False
        self.n_waiting = 0
        self.most_waiting = 0
        self.n_cancelled = 0

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if self._match(key) and not self._is_open_for_all:
            if self._answers is None:
                self._answers = asyncio.Event()
            self.n_waiting += 1
            self.most_waiting = max(self.most_waiting, self.n_waiting)
            try:
                await self._answers.wait()
            except asyncio.CancelledError:
                self.n_cancelled += 1
                raise
            finally:
                self.n_waiting -= 1
        return await super().get(key, prototype, byte_range)

    async def answer(self) -> None:
        """Run this on Zarr's loop, with `zarr.core.sync.sync`."""
        self._is_open_for_all = True
        if self._answers is not None:
            self._answers.set()


class Raises(FaultStore):
    """`get` of the matching keys raises; the others are read."""

    def __init__(self, store, error, match=is_chunk) -> None:
        super().__init__(store, error, match=match)


class Changes(FaultStore):
    """`get` of the matching keys returns other bytes than are stored: cut, garbage, anything."""

    def __init__(self, store, change, match=is_chunk) -> None:
        super().__init__(store, change, match=match)


class Lacks(FaultStore):
    """The matching keys do not exist, for `get` and for listing."""

    def __init__(self, store, match=is_chunk) -> None:
        super().__init__(store, "missing", match=match)


class RefusesListing(WrapperStore[Store]):
    """Keys cannot be listed, as in a bucket without that right; they can be read."""

    async def list_prefix(self, prefix: str):
        raise PermissionError(f"listing {prefix!r} is forbidden")
        yield ""


def only(*keys: str) -> Callable[[str], bool]:
    """Match these keys."""
    return frozenset(keys).__contains__


def with_bytes(store: Store, replaced: Mapping[str, bytes]) -> Store:
    """A store in which these keys hold these bytes."""
    for key, payload in replaced.items():
        store = Changes(store, lambda _, payload=payload: payload, only(key))
    return store


def without(store: Store, keys: Iterable[str]) -> Store:
    """A store in which these keys are missing."""
    return Lacks(store, only(*keys))
