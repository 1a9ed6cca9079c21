"""Ending what an object started when that object is collected."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["is_exiting", "when_collected"]


class _Exit:
    """Whether the exit handlers run.

    `is_alive` of the main thread errs for ever after an interrupt that came while it was asked.
    """

    is_begun = False


_EXIT = _Exit()
# Threads in which the garbage collector runs at this moment.
_COLLECTING: set[int] = set()
_LIVE: set[weakref.finalize[Any, Any]] = set()


def when_collected(
    owner: object, end: Callable[..., None], *args: Any
) -> weakref.finalize[Any, Any]:
    """Call `end(*args)` once `owner` is collected, or at the exit of the interpreter.

    The garbage collector may run in a thread that holds a lock which `end` takes, or that a
    thread which `end` joins waits for. Then `end` gets a thread of its own.

    Args:
        owner: whose collection is waited for.
        end: must not hold `owner`. A forked child does not call it, for it has neither the
            threads nor the state of the locks.
        args: what to call it with.

    Returns:
        What calls it before, once, when it is called itself.
    """
    if not _LIVE:
        # Last registered, first called: passes end before the readers whose cancelled reads they
        # would ask for again.
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _LIVE.difference_update([known for known in _LIVE.copy() if not known.alive])
    finalizer = weakref.finalize(owner, _end, os.getpid(), end, args)
    finalizer.atexit = False
    _LIVE.add(finalizer)
    return finalizer


def is_exiting() -> bool:
    """Whether the interpreter is on its way out, so that nothing should be waited for at length."""
    return _EXIT.is_begun


def _end(pid: int, end: Callable[..., None], args: tuple[Any, ...]) -> None:
    if os.getpid() != pid:
        return
    if threading.get_ident() in _COLLECTING:
        # Started by yet another thread, because a `threading.Thread` takes locks to start.
        thread = threading.Thread(target=end, args=args, name="insitu-end", daemon=True)
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(_start, (thread,))
    else:
        end(*args)


def _start(thread: threading.Thread) -> None:
    # At the exit of the interpreter there may be no further thread, and nothing is left to end.
    with contextlib.suppress(RuntimeError):
        thread.start()


def _end_all() -> None:
    _EXIT.is_begun = True
    for finalizer in _LIVE.copy():
        finalizer()


def _note_collection(phase: str, info: Mapping[str, int]) -> None:
    del info
    if phase == "start":
        _COLLECTING.add(threading.get_ident())
    else:
        _COLLECTING.discard(threading.get_ident())


gc.callbacks.append(_note_collection)
