"""How much may be read from one store at a time, whoever in the process reads it.

A permit stands for one read. It counts as a request from the moment the read is begun until it has
ended, whatever came of it, and its encoded bytes count until their decode took them.

The lock is a leaf: permits are handed to those who wait for one after it was let go.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from zarr.abc.store import Store

from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.stores import store_id, store_text
from torchdata_insitu.fetch.zarr_loop import call_on_zarr_loop

MOST_BYTES = 256_000_000
# Reads that are begun and not decoded yet, as a multiple of the requests: as much as keeps decode
# threads and store busy, where 256 MB of small chunks would only wait in memory.
_READS_PER_REQUEST = 2


class Permit:
    """One read that is begun, until its bytes are decoded or dropped."""

    __slots__ = ("account", "in_air", "is_idle", "n_bytes", "n_reads")

    def __init__(self, account: Account, n_bytes: int, *, n_reads: int = 1) -> None:
        self.account = account
        """Whose read it is."""
        self.in_air = True
        """Whether the read counts as a request."""
        self.is_idle = False
        """Whether nobody works for it just now, so that `Account.withdraw` may end it."""
        self.n_bytes = n_bytes
        """Encoded bytes that count, expected at first and then those that came."""
        self.n_reads = n_reads
        """Reads that count: 0 for all but the first part of one."""

    def split(self, sizes: Sequence[int]) -> list[Permit]:
        """Permits for the parts of what this one's read has brought, in place of it.

        Parts end one by one, as they are decoded. Where this permit has ended meanwhile, theirs
        have too.
        """
        return self.account.limiter.split(self, sizes)

    def landed(self, n_bytes: int) -> None:
        """The read has ended, and so many bytes wait to be decoded."""
        self.account.limiter.land(self, n_bytes)

    def end(self) -> None:
        """The read has ended and its bytes are gone; may be called again."""
        self.account.limiter.end(self)


class Account:
    """What one fetcher has of a limiter.

    `granted` is called with the permit that was asked for in vain before, without the limiter's
    lock and from any thread but the one of a user; whoever has no read for it any more ends it.
    """

    def __init__(self, limiter: Limiter, max_inflight: int) -> None:
        self.limiter = limiter
        self.max_inflight = max_inflight
        self.granted: Callable[[Permit], None] = Permit.end
        self.wanted_bytes = 0
        self.name = ""
        self.is_live: Callable[[], bool] = _never

    def ask(self, n_bytes: int) -> Permit | None:
        """A permit for a read that is expected to bring `n_bytes`.

        Returns:
            None where it has to wait; `granted` gets one later, however often it was asked for.
        """
        return self.limiter.ask(self, n_bytes)

    def withdraw(self) -> None:
        """Wait for a permit no more, and end those of bytes that nobody will decode.

        What is freed goes to others from Zarr's loop: the thread of a user may be interrupted
        between any two steps, and a permit on its way would be lost.
        """
        self.limiter.withdraw(self)

    def start(self, name: str, is_live: Callable[[], bool]) -> None:
        """Begin to read as a pass.

        Args:
            name: What messages call the pass.
            is_live: Whether the pass goes on; called without a lock.

        Raises:
            PlanError: Another live pass reads the store with another `max_inflight`.
        """
        self.limiter.join(self, name, is_live)

    def stop(self) -> None:
        """End the pass; its reads under way count until they end."""
        self.limiter.leave(self)


class Limiter:
    """The requests and the encoded bytes that one store and process has under way."""

    def __init__(self, text: str, *, most_bytes: int = MOST_BYTES) -> None:
        """Start with nothing under way.

        Args:
            text: What messages call the store.
            most_bytes: Encoded bytes under way at a time; a larger request runs alone.
        """
        self._text = text
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._permits: set[Permit] = set()
        self._waiting: deque[Account] = deque()
        self._live: list[Account] = []
        self._n_begun = 0
        self.n_inflight = 0
        self.n_bytes = 0

    def account(self, max_inflight: int) -> Account:
        """A part in the limiter for one fetcher, which may have `max_inflight` requests."""
        return Account(self, max_inflight)

    def ask(self, account: Account, n_bytes: int) -> Permit | None:
        """See `Account.ask`. Nobody overtakes who waits already."""
        with self._lock:
            if account in self._waiting:
                account.wanted_bytes = n_bytes
            elif self._waiting or not self._fits(account, n_bytes):
                account.wanted_bytes = n_bytes
                self._waiting.append(account)
            else:
                return self._begin(account, n_bytes)
        return None

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for a permit; without the lock, so that it may change at once."""
        return bool(self._waiting)

    def land(self, permit: Permit, n_bytes: int) -> None:
        """See `Permit.landed`."""
        with self._lock:
            if not permit.in_air:
                return
            permit.in_air, permit.is_idle = False, True
            self.n_inflight -= 1
            self.n_bytes += n_bytes - permit.n_bytes
            permit.n_bytes = n_bytes
            granted = self._grant()
        _hand_out(granted)

    def split(self, permit: Permit, sizes: Sequence[int]) -> list[Permit]:
        """See `Permit.split`."""
        parts = [
            Permit(permit.account, size, n_reads=permit.n_reads if number == 0 else 0)
            for number, size in enumerate(sizes)
        ]
        with self._lock:
            for part in parts:
                part.in_air, part.is_idle = False, True
            if permit in self._permits:
                self._permits.discard(permit)
                self._permits.update(parts)
                self.n_inflight -= permit.in_air
                self.n_bytes += sum(sizes) - permit.n_bytes
                permit.in_air = False
                if not parts:
                    self._n_begun -= permit.n_reads
            granted = self._grant()
        _hand_out(granted)
        return parts

    def end(self, permit: Permit) -> None:
        """See `Permit.end`."""
        with self._lock:
            if permit not in self._permits:
                return
            self._permits.discard(permit)
            self._n_begun -= permit.n_reads
            self.n_inflight -= permit.in_air
            self.n_bytes -= permit.n_bytes
            permit.in_air = False
            if not self._waiting:
                return
            granted = self._grant()
        _hand_out(granted)

    def withdraw(self, account: Account) -> None:
        """See `Account.withdraw`."""
        with self._lock:
            if account in self._waiting:
                self._waiting.remove(account)
            self._permits = {p for p in self._permits if p.account is not account or not p.is_idle}
            # Counted anew, which also mends what an interrupt left half done.
            self.n_inflight = sum(permit.in_air for permit in self._permits)
            self.n_bytes = sum(permit.n_bytes for permit in self._permits)
            self._n_begun = sum(permit.n_reads for permit in self._permits)
            others_wait = bool(self._waiting)
        if others_wait:
            call_on_zarr_loop(self._settle)

    def join(self, account: Account, name: str, is_live: Callable[[], bool]) -> None:
        """See `Account.start`."""
        with self._lock:
            account.name, account.is_live = name, is_live
            others = [other for other in self._live if other is not account]
            self._live = [*others, account]
        # Asked without the lock, for the answer may be the end of the last reference to a pass.
        ended = [other for other in others if not other.is_live()]
        with self._lock:
            self._live = [other for other in self._live if other not in ended]
        others = [other for other in others if other not in ended]
        clash = next((o for o in others if o.max_inflight != account.max_inflight), None)
        if clash is not None:
            self.leave(account)
            msg = (
                f"pass {name!r} reads {self._text} with max_inflight {account.max_inflight}, but "
                f"pass {clash.name!r}, which is live, reads it with {clash.max_inflight}: a store "
                "has one limit, so give both the same, or close the other loader first"
            )
            raise PlanError(msg)

    def leave(self, account: Account) -> None:
        """See `Account.stop`."""
        with self._lock:
            account.is_live = _never
            self._live = [other for other in self._live if other is not account]

    def _settle(self) -> None:
        with self._lock:
            granted = self._grant()
        _hand_out(granted)

    def _fits(self, account: Account, n_bytes: int) -> bool:
        most = account.max_inflight
        if self.n_inflight >= most or self._n_begun >= _READS_PER_REQUEST * most:
            return False
        return self.n_bytes + n_bytes <= self._most_bytes or self.n_bytes == 0

    def _begin(self, account: Account, n_bytes: int) -> Permit:
        permit = Permit(account, n_bytes)
        self._permits.add(permit)
        self._n_begun += 1
        self.n_inflight += 1
        self.n_bytes += n_bytes
        return permit

    def _grant(self) -> list[tuple[Account, Permit]]:
        """One permit to each who waits, in turn, as far as there is room."""
        granted = []
        while self._waiting and self._fits(self._waiting[0], self._waiting[0].wanted_bytes):
            account = self._waiting.popleft()
            granted.append((account, self._begin(account, account.wanted_bytes)))
        return granted


def limiter_of(store: Store) -> Limiter:
    """The limiter of a store, which all its fetchers in this process share."""
    key = store_id(store)
    with _REGISTRY_LOCK:
        limiter = _REGISTRY.get(key)
        if limiter is None:
            limiter = _REGISTRY[key] = Limiter(store_text(store))
    return limiter


def _hand_out(granted: list[tuple[Account, Permit]]) -> None:
    for account, permit in granted:
        account.granted(permit)


def _never() -> bool:
    return False


_REGISTRY_LOCK = threading.Lock()
_REGISTRY: weakref.WeakValueDictionary[str, Limiter] = weakref.WeakValueDictionary()


def _forget_limiters() -> None:
    # The reads of the parent do not go on in its forked child, where locks may be held for ever.
    global _REGISTRY_LOCK, _REGISTRY
    _REGISTRY_LOCK, _REGISTRY = threading.Lock(), weakref.WeakValueDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_limiters)
