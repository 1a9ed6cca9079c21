"""A wait of one thread that any other thread can end."""

from __future__ import annotations

import threading

__all__ = ["Gate"]


class Gate:
    """Closed at first; a wait passes once it is open, and closes it.

    It says that something may have changed, and not what: whoever waits looks before and after.
    What is opened several times before a wait lets it pass once, and a wait may pass for nothing.

    A bare lock: an `Event` or a `Condition` is plain Python, which an interrupt can leave in a bad
    state, and lets go of a lock only to take it again, so that who wakes another thread is waited
    for by it.

    Example:
        >>> gate = Gate()
        >>> gate.wait(timeout_s=0.0)
        False
        >>> gate.open()
        >>> gate.wait(), gate.wait(timeout_s=0.0)
        (True, False)
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Begin closed."""
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let one wait pass, a present or a later one; never blocks."""
        # Where it is open already, whoever waits next looks at what has changed before this call.
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:
                # Somebody else has just opened it.
                return

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until it is open, and close it.

        Args:
            timeout_s: the most seconds; below 0 for ever.

        Returns:
            Whether it was open.
        """
        return self._lock.acquire(timeout=timeout_s)
