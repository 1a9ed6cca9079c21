"""A kept error keeps no slot, and what others still run is left alone."""

import asyncio

import pytest

from tests.contracts.watchdog import promptly
from torchdata_insitu.fetch.fetch_errors import forget_frames


def frames(error):
    trace, found = error.__traceback__, []
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def test_variables_of_functions_are_cleared_also_in_the_causes():
    def fails():
        slot = bytearray(5)
        raise OSError(len(slot))

    def wraps():
        try:
            fails()
        except OSError as cause:
            raise ValueError("outer") from cause

    with pytest.raises(ValueError, match="outer") as caught:
        wraps()
    forget_frames(caught.value)
    assert "slot" not in frames(caught.value.__cause__)[-1].f_locals


def test_errors_that_are_causes_of_each_other_come_to_an_end():
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    forget_frames(first)


def test_a_suspended_coroutine_that_met_the_error_goes_on():
    """One error is raised to all who wait for a connection, and one of them tries again."""
    lost = ConnectionError("the connection is lost")
    again = asyncio.Event()

    async def patient():
        try:
            raise lost
        except ConnectionError:
            await again.wait()
            return "read"

    async def both():
        task = asyncio.create_task(patient())
        await asyncio.sleep(0)
        forget_frames(lost)
        again.set()
        return await task

    with promptly():
        assert asyncio.run(both()) == "read"


def test_a_suspended_generator_that_met_the_error_goes_on():
    lost = ConnectionError("the connection is lost")

    def tries():
        for _ in range(2):
            try:
                raise lost
            except ConnectionError:
                yield "failed"

    attempts = tries()
    next(attempts)
    forget_frames(lost)
    assert next(attempts) == "failed"
