"""Functions of the library that a benchmark puts others in place of, for as long as it measures."""

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "torchdata_insitu"

type Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Patches:
    """What is to be wrapped; nothing is until `installed`.

    A bound method that the library keeps from the construction of an object is the one of that
    time: what is measured is built while the patches are installed.

    Attributes:
        missing: Names that are not there: the library has changed, and the benchmark has not.
    """

    def __init__(self) -> None:
        """Wrap nothing yet."""
        self._wanted: list[tuple[Any, str, Wrap]] = []
        self.missing: list[str] = []

    def add(self, where: str, wrap: Wrap) -> None:
        """Wrap a function of the library.

        Args:
            where: `module:function` or `module:Class.method`, the module below the library. A
                function is wrapped for the module that calls it by that name.
            wrap: Gets the function and returns what stands in its place.
        """
        module, _, path = where.partition(":")
        *classes, name = path.split(".")
        owner: Any = importlib.import_module(f"{LIBRARY}.{module}")
        for class_name in classes:
            owner = getattr(owner, class_name, None)
        if owner is None or not hasattr(owner, name):
            self.missing.append(where)
        else:
            self.add_to(owner, name, wrap)

    def add_to(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Wrap a function of any module or class."""
        self._wanted.append((owner, name, wrap))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Everything wrapped meanwhile."""
        # Of a class, what it has itself: an inherited function goes again by being deleted.
        before = [(owner, name, vars(owner).get(name)) for owner, name, _ in self._wanted]
        try:
            for owner, name, wrap in self._wanted:
                setattr(owner, name, wrap(getattr(owner, name)))
            yield
        finally:
            for owner, name, own in reversed(before):
                if own is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)


def kind_of_thread() -> str:
    """What the calling thread is for: its name without its number."""
    # `current_thread` would enter another thread in place of one that is just starting.
    thread = threading._active.get(threading.get_ident())  # noqa: SLF001
    return "starting" if thread is None else kind_of(thread.name)


def kind_of(name: str) -> str:
    """The name of a thread without the number that tells it from others of its kind."""
    return "consumer" if name == "MainThread" else name.rstrip("0123456789").rstrip("-_")
