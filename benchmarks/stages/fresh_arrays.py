"""Memory that is made anew: large arrays by who makes them, and the peak that Python traces."""

import functools
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.stages.patches import LIBRARY, Patches

LARGE_BYTES = 64_000
# The functions of NumPy that make an array and are called by name. What expressions, methods and
# indexing make is not seen here, but in the peak.
_MAKERS = (
    *("array", "ascontiguousarray", "concatenate", "copy", "empty", "empty_like", "full", "ones"),
    *("repeat", "stack", "take", "where", "zeros", "zeros_like"),
)


class FreshArrays:
    """Arrays of `LARGE_BYTES` and more that the library makes, and the traced peak of memory.

    Attributes:
        made: How often, by module and function.
        peak_bytes: The most traced memory beyond what there was at the beginning, transient or
            not: of Python and of NumPy, but not of torch and of obstore.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.patches = Patches()
        self.made: Counter[str] = Counter()
        self.peak_bytes = 0
        self._lock = threading.Lock()
        for name in _MAKERS:
            self.patches.add_to(np, name, functools.partial(self._counted, name))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count and trace meanwhile."""
        self.made.clear()
        tracemalloc.start()
        try:
            began, _ = tracemalloc.get_traced_memory()
            with self.patches.installed():
                yield
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.peak_bytes = most - began

    def _counted(self, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def counted(*args: Any, **options: Any) -> Any:
            made = make(*args, **options)
            is_fresh = isinstance(made, np.ndarray) and options.get("out") is None
            if is_fresh and made.nbytes >= LARGE_BYTES and made.flags.owndata:
                caller = sys._getframe(1)  # noqa: SLF001 - the documented way to ask who calls
                module = caller.f_globals.get("__name__", "")
                if module.startswith(LIBRARY):
                    where = module.removeprefix(f"{LIBRARY}.")
                    with self._lock:
                        self.made[f"{where}.{caller.f_code.co_qualname} np.{name}"] += 1
            return made

        return counted
