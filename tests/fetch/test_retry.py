import asyncio
import concurrent.futures
import errno
import pickle
from types import SimpleNamespace

import pytest
from obstore import exceptions as obstore_errors

from tests.each_case import each_case
from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.retry import ReadCancelledError, RetryPolicy, is_temporary


class AnswerError(Exception):
    """As HTTP clients raise them."""

    def __init__(self, status):
        super().__init__(f"answer {status}")
        self.status = status


class Responded(Exception):  # noqa: N818
    """As client libraries raise them that keep the answer."""

    def __init__(self, response):
        super().__init__(str(response))
        self.response = response


def generic(status):
    first = (
        f"Error performing GET http://x/y in 1ms - Server returned non-2xx status code: {status}"
    )
    return obstore_errors.GenericError(f"Generic HTTP error: {first} Gone: body\n\nDebug 410 Gone")


@each_case(
    "error",
    [
        OSError(errno.EIO, "input/output error"),
        OSError(errno.ESTALE, "stale file handle"),
        OSError(errno.EMFILE, "too many open files"),
        ConnectionResetError("by peer"),
        TimeoutError("no answer"),
        RuntimeError("session is closed"),
        generic("503 Service Unavailable"),
        generic("429 Too Many Requests"),
        generic("408 Request Timeout"),
        obstore_errors.GenericError("HTTP error: request or response body error"),
        obstore_errors.JoinError("task failed"),
        AnswerError(500),
        AnswerError(429),
        Responded({"ResponseMetadata": {"HTTPStatusCode": 503}}),
        Responded(SimpleNamespace(status_code=503)),
        Responded(None),
        Responded({}),
    ],
)
def test_what_may_be_gone_at_the_next_try_is_temporary(error):
    assert is_temporary(error)


def caused(error, cause):
    error.__cause__ = cause
    return error


@each_case(
    "error",
    [
        FileNotFoundError("no such key"),
        PermissionError(errno.EACCES, "denied"),
        IsADirectoryError("a folder"),
        NotADirectoryError("a file"),
        obstore_errors.NotFoundError("no such key"),
        obstore_errors.PermissionDeniedError("403"),
        obstore_errors.UnauthenticatedError("401"),
        obstore_errors.NotSupportedError("no"),
        obstore_errors.InvalidPathError("a//b"),
        obstore_errors.UnknownConfigurationKeyError("regoin"),
        generic("410"),
        generic("416 Range Not Satisfiable"),
        AnswerError(416),
        AnswerError(401),
        AnswerError(403),
        AnswerError(410),
        ValueError("could not parse path"),
        TypeError("not a store"),
        AttributeError("no such thing"),
        NotImplementedError("cannot"),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError("of a future"),
        KeyboardInterrupt(),
        SystemExit(),
        caused(RuntimeError("the store raised KeyboardInterrupt"), KeyboardInterrupt()),
        caused(ReadCancelledError("the store cancelled the read"), asyncio.CancelledError()),
        Responded({"ResponseMetadata": {"HTTPStatusCode": 403}}),
        Responded(SimpleNamespace(status_code=403)),
        caused(OSError("no"), PermissionError("denied")),
    ],
)
def test_what_lasts_is_not_temporary(error):
    assert not is_temporary(error)


async def expires():
    async with asyncio.timeout(0):
        await asyncio.Event().wait()


async def waits_for():
    await asyncio.wait_for(asyncio.Event().wait(), 0.001)


@pytest.mark.parametrize("late", [expires, waits_for])
def test_a_deadline_of_asyncio_is_temporary(late):
    """It ends what takes too long by cancelling it."""
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(late())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert is_temporary(caught.value)
    assert is_temporary(caused(OSError("no answer"), caught.value))


def test_delays_double_up_to_the_longest():
    policy = RetryPolicy(first_delay_s=0.1, longest_delay_s=0.5)
    assert [policy.delay_s(n, 1.0) for n in (1, 2, 3, 4, 5000)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_delays_are_spread_over_their_second_half():
    policy = RetryPolicy(first_delay_s=1.0)
    assert [policy.delay_s(1, share) for share in (0.0, 0.5, 1.0)] == [0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"attempts": 0}, "attempts is 0: it must be"),
        ({"attempts": 1.5}, "attempts is a whole number, not 1.5"),
        ({"attempts": True}, "attempts is a whole number, not True"),
        ({"budget_s": -1}, "budget_s is -1: it must be at least 0"),
        ({"budget_s": float("inf")}, "budget_s is inf: .* finite"),
        ({"first_delay_s": "1"}, "first_delay_s is a number of seconds, not '1'"),
        ({"longest_delay_s": float("nan")}, "longest_delay_s is nan"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(options, said):
    with pytest.raises(PlanError, match=said):
        RetryPolicy(**options)


def test_a_policy_survives_pickling():
    policy = RetryPolicy(attempts=2, budget_s=3)
    assert pickle.loads(pickle.dumps(policy)) == policy
