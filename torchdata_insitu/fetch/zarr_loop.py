"""Zarr's event loop, which every store of the process is read on."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from zarr.core.sync import _get_loop


def zarr_loop() -> asyncio.AbstractEventLoop:
    """The loop, started if it is not running yet. It belongs to Zarr: nobody else stops it."""
    return _get_loop()


def call_on_zarr_loop(function: Callable[..., None], *arguments: Any) -> None:
    """Call a short function later, on the thread of the loop; returns at once.

    For finalizers. The garbage collector runs them in any thread at any time, also in one that
    holds a lock which they need, so that they must not take it there. The loop's thread holds no
    lock of ours between two callbacks, and to call it takes none.

    Nothing happens where the loop is closed, at the end of the process.
    """
    with contextlib.suppress(RuntimeError):
        zarr_loop().call_soon_threadsafe(lambda: function(*arguments))


def call_later_on_zarr_loop(delay_s: float, function: Callable[[], None]) -> None:
    """Call a short function on the thread of the loop after so many seconds; returns at once.

    Raises:
        RuntimeError: The loop is closed, at the end of the process.
    """
    loop = zarr_loop()
    loop.call_soon_threadsafe(loop.call_later, delay_s, function)
