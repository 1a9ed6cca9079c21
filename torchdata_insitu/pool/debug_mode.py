"""Checks that `TORCHDATA_INSITU_DEBUG=1` turns on."""

from __future__ import annotations

import asyncio
import os
import threading

import numpy as np

__all__ = ["check_may_wait", "holds", "is_debugging", "overwrite"]

DEBUG_VARIABLE = "TORCHDATA_INSITU_DEBUG"
_FILLING_THREADS = ("insitu-decode", "insitu-read")
_NOBODYS_BYTE = 0xA5


def is_debugging() -> bool:
    """Whether the environment asks for checks."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in {"", "0"}


def holds(invariant: str, is_true: object, *facts: object) -> None:
    """Raise unless something is so.

    Args:
        invariant: what must be true, in words.
        is_true: whether it is.
        facts: what shows that it is not.

    Raises:
        AssertionError: it is not.
    """
    if not is_true:
        msg = f"this does not hold: {invariant} ({', '.join(map(repr, facts))})"
        raise AssertionError(msg)


def check_may_wait() -> None:
    """Check that this thread may wait for the pool (P6 of the design).

    Raises:
        AssertionError: it fills slots, or runs an event loop.
    """
    name = threading.current_thread().name
    holds("P6: who fills slots waits for none", not name.startswith(_FILLING_THREADS), name)
    holds("P6: an event loop waits for no slot", asyncio._get_running_loop() is None, name)  # noqa: SLF001


def overwrite(memory: np.ndarray) -> None:
    """Make the rows of a slot that was given back wrong for everybody who still reads them."""
    memory.reshape(-1).view(np.uint8)[...] = _NOBODYS_BYTE
