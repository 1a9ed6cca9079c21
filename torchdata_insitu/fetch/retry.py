"""Which failed reads are tried again, how often and when."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import re
from dataclasses import dataclass

from obstore import exceptions as obstore_errors

from torchdata_insitu.errors import PlanError
from torchdata_insitu.redaction import http_status

__all__ = ["RetryPolicy"]


@dataclass(frozen=True)
class RetryPolicy:
    """How often a stored chunk is read again that a store did not give, or not whole.

    A try is the read and the decode of one stored chunk. What will not change is not tried again:
    a missing key, a refused permission, an unknown setting. Bytes that do not decode are read
    again once, at once, in case they were cut on the way.

    Raises:
        PlanError: A value that is out of its range.

    Example:
        >>> import torchdata_insitu as tdi
        >>> policy = tdi.RetryPolicy(attempts=3)
        >>> [policy.delay_s(n, 1.0) for n in (1, 2)]
        [0.1, 0.2]
        >>> tdi.RetryPolicy(attempts=0)
        Traceback (most recent call last):
        ...
        torchdata_insitu.errors.PlanError: attempts is 0: it must be a whole number of at least 1
    """

    attempts: int = 5
    """Tries in all; 1 for no second one."""
    budget_s: float = 60.0
    """Seconds since the first try after which no other is started."""
    first_delay_s: float = 0.1
    """Seconds before the second try; doubled before each further one."""
    longest_delay_s: float = 5.0
    """Most seconds between two tries."""

    def __post_init__(self) -> None:
        """Check the values."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise PlanError(f"attempts is a whole number, not {self.attempts!r}")
        if self.attempts < 1:
            msg = f"attempts is {self.attempts}: it must be a whole number of at least 1"
            raise PlanError(msg)
        for name in ("budget_s", "first_delay_s", "longest_delay_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise PlanError(f"{name} is a number of seconds, not {value!r}")
            if not 0 <= value < math.inf:
                raise PlanError(f"{name} is {value}: it must be at least 0 and finite")

    def delay_s(self, n_attempts: int, share: float) -> float:
        """Seconds to wait after so many tries.

        Args:
            n_attempts: Tries so far, at least 1.
            share: Between 0 and 1; many readers that failed together come back at different times.
        """
        # 64 doublings are longer than anything; a larger exponent would overflow.
        longest = min(self.longest_delay_s, self.first_delay_s * 2.0 ** min(n_attempts - 1, 64))
        return longest * (0.5 + share / 2)


class ReadCancelledError(TimeoutError):
    """A store cancelled a read by itself, which nobody had asked for."""


_LASTING_STATUS = {401, 403, 404, 405, 410, 416}
_STATUS = re.compile(r"status code: (\d{3})")
_LASTING: tuple[type[BaseException], ...] = (
    # What the store says will not change.
    PermissionError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    obstore_errors.NotFoundError,
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    obstore_errors.NotSupportedError,
    obstore_errors.InvalidPathError,
    obstore_errors.UnknownConfigurationKeyError,
    # What is wrong with the call, a setting or the program.
    ValueError,
    TypeError,
    AttributeError,
    NameError,
    NotImplementedError,
    AssertionError,
    ReadCancelledError,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
)


def is_temporary(error: BaseException) -> bool:
    """Whether what a store raised may be gone at the next try.

    Everything is, other than what is known to last: stores raise whatever their client library
    does when a line breaks or a server is busy.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    # A library may have made an error the cause of its own cause.
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if not isinstance(cause, Exception) or isinstance(cause, _LASTING):
            return False
        if _status(cause) in _LASTING_STATUS:
            return False
        if isinstance(cause, TimeoutError) and isinstance(cause.__cause__, asyncio.CancelledError):
            # How a deadline of asyncio ends what takes too long.
            return True
        cause = cause.__cause__
    return True


def _status(error: BaseException) -> int | None:
    """The status of an HTTP answer, where the error of a client library tells it."""
    status = http_status(error)
    if status is None and isinstance(error, obstore_errors.BaseError):
        # The first line only: what follows shows the answer, which may say anything.
        found = _STATUS.search(str(error).partition("\n")[0])
        return int(found[1]) if found else None
    return status
