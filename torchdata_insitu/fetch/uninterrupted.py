"""Work that an interrupt of the main thread does not leave half done."""

import threading
from collections.abc import Callable


def uninterrupted(work: Callable[[], None]) -> None:
    """Run short work to its end, and return after it.

    Python raises an interrupt in the main thread only, between any two steps of it. There the work
    gets a thread of its own, and what an interrupt ends is the wait for it.

    Args:
        work: Called once, or not at all where an interrupt comes before its thread has started.
            Whatever it raises on a thread of its own goes to `threading.excepthook`.
    """
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    # A plain lock: unlike an `Event` or a `join`, one that is interrupted is as it was before.
    is_over = threading.Lock()
    is_over.acquire()

    def run() -> None:
        try:
            work()
        finally:
            is_over.release()

    thread = threading.Thread(target=run, name="insitu-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # No thread can be started any more: the process is on its way out.
        work()
    else:
        is_over.acquire()
