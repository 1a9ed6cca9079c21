"""Daemon threads that are started as work needs them and leave together."""

import threading
from collections.abc import Callable


class ThreadCrew:
    """The threads started between two stops.

    Whoever has the crew counts `n_idle` and reads `is_leaving` under its own lock.
    """

    __slots__ = ("is_leaving", "n_idle", "reading", "threads")

    def __init__(self) -> None:
        self.is_leaving = False
        """Whether every thread ends once it is done with what it is at."""
        self.n_idle = 0
        """Threads that wait for work."""
        self.threads: list[threading.Thread] = []
        self.reading: set[threading.Thread] = set()
        """Those that sit in a read that nobody can end."""

    def grow(
        self, n_lacking: int, n_most: int, name: str, work: "Callable[[ThreadCrew], None]"
    ) -> None:
        """Start threads.

        Args:
            n_lacking: How many more there is work for.
            n_most: Most threads of the crew.
            name: What they are called, before a number.
            work: What each runs, with this crew.

        Raises:
            RuntimeError: There is no thread and none could be started.
        """
        for _ in range(min(n_lacking, n_most - len(self.threads))):
            thread = threading.Thread(
                target=work, args=(self,), name=f"{name}-{len(self.threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                if not self.threads:
                    raise
                break
            self.threads.append(thread)
