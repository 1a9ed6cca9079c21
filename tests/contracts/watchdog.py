"""A bound on how long a call may take, that shows where it hangs."""

import contextlib
import faulthandler
import pathlib
import signal
import tempfile

import pytest


@contextlib.contextmanager
def promptly(seconds=10.0):
    """Fail with the stacks of all threads if the block takes longer; on the main thread only.

    A signal interrupts a wait for a lock or for a thread, which no other thread could.
    """

    def fail(*_):
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            stacks = pathlib.Path(file.name).read_text(encoding="utf-8")
        pytest.fail(f"still running after {seconds} s:\n{stacks}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
