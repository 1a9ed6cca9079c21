"""The end of engines that are still there when the interpreter exits."""

import atexit
import weakref

from torchdata_insitu.fetch.fetch_engine import FetchEngine

_EXIT_TIMEOUT_S = 5.0


def note_engine(engine: FetchEngine) -> None:
    """Shut an engine down at the exit of the interpreter, if it is still there."""
    _LIVE.add(engine)


_LIVE: weakref.WeakSet[FetchEngine] = weakref.WeakSet()


@atexit.register
def _shut_down_all() -> None:
    # Registered after Zarr's own hook and therefore run before it: the loop still takes the
    # cancellations, and no task is destroyed while it is pending.
    for engine in list(_LIVE):
        engine.shut_down(join=True, timeout_s=_EXIT_TIMEOUT_S)
        engine.settle(_EXIT_TIMEOUT_S)
