"""Finalizers hand their work to the loop."""

import threading

from zarr.core.sync import _get_loop

from tests.fetch.loads import WAIT_S
from torchdata_insitu.fetch.zarr_loop import call_on_zarr_loop, zarr_loop


def test_loop_is_that_of_zarr():
    assert zarr_loop() is _get_loop()


def test_function_runs_on_the_thread_of_the_loop_with_its_arguments():
    called = threading.Event()
    seen = []

    def notes(*arguments):
        seen.append((arguments, threading.current_thread().name))
        called.set()

    call_on_zarr_loop(notes, 1, "two")
    assert called.wait(WAIT_S)
    assert seen == [((1, "two"), "zarr_io")]


def test_call_returns_while_the_caller_holds_what_the_function_needs():
    lock = threading.Lock()
    called = threading.Event()

    def needs_the_lock():
        with lock:
            called.set()

    with lock:
        call_on_zarr_loop(needs_the_lock)
    assert called.wait(WAIT_S)
