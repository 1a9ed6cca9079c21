"""What each thread is at, looked up every millisecond."""

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.stages.patches import LIBRARY, kind_of

_PERIOD_S = 0.001


class ThreadSamples:
    """Counts of the functions that threads were found in.

    Wall time, waits included. A sample is taken when the interpreter's lock is free, so that code
    which holds it for long is found less often than it runs: the stages tell how long.

    Attributes:
        n_samples: Looks.
        at: By kind of thread, how often in a function of the library, with the line.
        inside: By kind of thread, how often in a function or in what it calls.
    """

    def __init__(self) -> None:
        """Look nowhere yet."""
        self.n_samples = 0
        self.at: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.inside: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._is_over = threading.Event()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Look meanwhile."""
        self._is_over.clear()
        thread = threading.Thread(target=self._look, name="sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _look(self) -> None:
        own = threading.get_ident()
        while not self._is_over.is_set():
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            self.n_samples += 1
            for ident, frame in sys._current_frames().items():  # noqa: SLF001 - for debuggers
                if ident != own and ident in names:
                    self._count(kind_of(names[ident]), frame)
            # A wait for the event would take locks that are looked at.
            time.sleep(_PERIOD_S)

    def _count(self, kind: str, frame: FrameType) -> None:
        leaf, found, walked = _text(frame), None, set()
        at: FrameType | None = frame
        while at is not None:
            if at.f_globals.get("__name__", "").startswith(LIBRARY):
                found = found or f"{_text(at)}:{at.f_lineno}"
                walked.add(_text(at))
            at = at.f_back
        if found is None:
            self.at[kind][f"outside: {leaf}"] += 1
            return
        self.at[kind][found if leaf in found else f"{found} > {leaf}"] += 1
        self.inside[kind].update(walked)


def _text(frame: FrameType) -> str:
    module = frame.f_globals.get("__name__", Path(frame.f_code.co_filename).stem)
    return f"{module.removeprefix(f'{LIBRARY}.')}.{frame.f_code.co_qualname}"
