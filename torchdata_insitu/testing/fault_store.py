"""A store that fails on purpose."""

import asyncio
import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from torchdata_insitu.testing.chunk_keys import Match, is_chunk, matcher
from torchdata_insitu.testing.intercepting_store import InterceptingStore

type Fault = (
    str
    | BaseException
    | type[BaseException]
    | Callable[[], BaseException]
    | Callable[[bytes], bytes]
)
"""What a `FaultStore` does to a read."""

_KINDS = ("missing", "cut", "garbage", "stall", "raise")


class FaultStore(InterceptingStore):
    """Wraps a store and lets reads of some keys fail in one way.

    Args:
        store: The store to wrap, which may be a `FaultStore` again.
        fault: What happens to a read: `"missing"`: there is no such key, for listings neither
            while `times` is None; `"cut"`: the first half of the bytes; `"garbage"`: as many bytes,
            all of them others; `"stall"`: no answer before `release` or a cancellation; `"raise"`:
            a `ConnectionError`; an exception, its class, or a function without arguments that
            makes one: this is raised; a function of the bytes: what it returns.
        match: The keys that fail, as one key, several, or a function of the key; all chunks and no
            metadata unless given.
        times: How many reads of each key fail before it is read as it is. None for all.

    Raises:
        ValueError: A kind of fault that is none of these, or `times` below 1.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.testing import make_store
        >>> inner = make_store({"t": (6, 2)}, chunks=(2, 2), codec="none")
        >>> store = FaultStore(inner, "missing", match=["t/c/1/0"], times=1)
        >>> array = zarr.open_array(store, path="t")
        >>> array[:, 0].tolist(), array[:, 0].tolist(), store.n_faults
        ([0.0, 2.0, 0.0, 0.0, 8.0, 10.0], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0], 1)
        >>> array = zarr.open_array(FaultStore(inner, PermissionError("not yours")), path="t")
        >>> array[0]
        Traceback (most recent call last):
        PermissionError: not yours
    """

    def __init__(
        self,
        store: Store,
        fault: Fault,
        *,
        match: Match = is_chunk,
        times: int | None = None,
    ) -> None:
        super().__init__(store)
        if isinstance(fault, str) and fault not in _KINDS:
            raise ValueError(f"fault is {fault!r}: choose one of {_KINDS}, an error or a function")
        if times is not None and times < 1:
            raise ValueError(f"times is {times}: give at least 1, or None for every read")
        self._fault = fault
        self._make_error = _error_maker(fault)
        self._change: Callable[[bytes], bytes] = (
            _CHANGES.get(fault, _cut) if isinstance(fault, str) else fault  # type: ignore[assignment]
        )
        self._match = matcher(match)
        self._times = times
        self._record = _Record()

    @property
    def faults(self) -> Counter[str]:
        """Reads that failed, by key."""
        return self._record.faults

    @property
    def n_faults(self) -> int:
        """Reads that failed."""
        return self._record.faults.total()

    @property
    def n_stalled(self) -> int:
        """Reads that are stalled now."""
        return len(self._record.stalled)

    @property
    def most_stalled(self) -> int:
        """Reads that were stalled at the same time, at most."""
        return self._record.most_stalled

    @property
    def n_cancelled(self) -> int:
        """Stalled reads that were cancelled."""
        return self._record.n_cancelled

    def release(self) -> None:
        """Let stalled reads, and all that would stall later, go on; from any thread.

        Example:
            >>> import asyncio, zarr
            >>> from torchdata_insitu.testing import make_store
            >>> store = FaultStore(make_store({"t": (2, 2)}, chunks=(2, 2)), "stall")
            >>> store.release()
            >>> zarr.open_array(store, path="t")[0].tolist()
            [0.0, 1.0]
        """
        record = self._record
        with record.lock:
            record.is_released = True
            stalled = list(record.stalled)
        for answer in stalled:
            # The loop may be closed already, with the read.
            with contextlib.suppress(RuntimeError):
                answer.get_loop().call_soon_threadsafe(_go_on, answer)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As the wrapped store, or as the fault wants it."""
        if not self._strikes(key):
            return await super().get(key, prototype, byte_range)
        if self._fault == "missing":
            return None
        if self._fault == "stall":
            await self._stall()
            return await super().get(key, prototype, byte_range)
        if self._make_error is not None:
            raise self._make_error(key)
        buffer = await super().get(key, prototype, byte_range)
        if buffer is None:
            return None
        return prototype.buffer.from_bytes(self._change(buffer.to_bytes()))

    async def exists(self, key: str) -> bool:
        """As the wrapped store, but for missing keys."""
        return not self._is_gone(key) and await super().exists(key)

    async def list(self) -> AsyncIterator[str]:
        """As the wrapped store, without missing keys."""
        async for key in super().list():
            if not self._is_gone(key):
                yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """As the wrapped store, without missing keys."""
        async for key in super().list_prefix(prefix):
            if not self._is_gone(key):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """As the wrapped store, without missing keys; a folder of such keys stays."""
        folder = prefix.rstrip("/")
        async for name in super().list_dir(prefix):
            key = f"{folder}/{name}" if folder else name
            if not (self._is_gone(key) and await super().exists(key)):
                yield name

    def _is_gone(self, key: str) -> bool:
        return self._fault == "missing" and self._times is None and self._match(key)

    def _strikes(self, key: str) -> bool:
        if not self._match(key):
            return False
        record = self._record
        with record.lock:
            is_over = self._times is not None and record.faults[key] >= self._times
            if is_over or record.is_released:
                return False
            record.faults[key] += 1
        return True

    async def _stall(self) -> None:
        record = self._record
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with record.lock:
            if record.is_released:
                return
            record.stalled.add(answer)
            record.most_stalled = max(record.most_stalled, len(record.stalled))
        try:
            await answer
        except asyncio.CancelledError:
            with record.lock:
                record.n_cancelled += 1
            raise
        finally:
            with record.lock:
                record.stalled.discard(answer)


@dataclass
class _Record:
    """What the copies of a store share."""

    faults: Counter[str] = field(default_factory=Counter)
    stalled: set[asyncio.Future[None]] = field(default_factory=set)
    most_stalled: int = 0
    n_cancelled: int = 0
    is_released: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def _go_on(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)


def _error_maker(fault: Fault) -> Callable[[str], BaseException] | None:
    """Makes what is raised at the read of a key; None where nothing is raised."""
    if fault == "raise":
        return _line_error
    if isinstance(fault, BaseException):
        # One that was raised before would show the frames of all its reads.
        return lambda _: fault.with_traceback(None)
    if isinstance(fault, type):
        return lambda key: fault(_text(key))
    if callable(fault) and not _takes_bytes(fault):
        return lambda _: fault()  # type: ignore[call-arg, return-value]
    return None


def _takes_bytes(function: Callable[..., object]) -> bool:
    try:
        return bool(inspect.signature(function).parameters)
    except ValueError:  # some that are built in, none of which makes an error
        return True


def _line_error(key: str) -> BaseException:
    return ConnectionError(_text(key))


def _text(key: str) -> str:
    return f"the read of {key!r} fails on purpose"


def _cut(payload: bytes) -> bytes:
    return payload[: len(payload) // 2]


def _garbage(payload: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in payload)


_CHANGES = {"cut": _cut, "garbage": _garbage}
