import gc
import subprocess
import sys
import threading

from tests.small_loaders import in_forked_child
from torchdata_insitu.nodes.collection import is_exiting, when_collected

JOIN_S = 20


class Owner:
    pass


def test_the_end_comes_with_the_last_reference_on_the_same_thread():
    ended = []
    owner = Owner()
    when_collected(owner, lambda text: ended.append((text, threading.get_ident())), "gone")
    assert ended == []
    del owner
    assert ended == [("gone", threading.get_ident())]


def test_the_end_comes_once():
    ended = []
    owner = Owner()
    end = when_collected(owner, ended.append, "called")
    end()
    end()
    del owner
    assert ended == ["called"]


def test_a_garbage_collection_does_not_wait_for_locks():
    """It may happen in a thread that holds the very lock that the end takes."""
    lock, ended = threading.Lock(), threading.Event()

    def end():
        with lock:
            ended.set()

    owner = Owner()
    owner.itself = owner
    when_collected(owner, end)
    del owner
    with lock:
        gc.collect()
        assert not ended.is_set()
    assert ended.wait(JOIN_S)


def test_a_forked_child_ends_nothing():
    ended = []
    owner = Owner()
    end = when_collected(owner, ended.append, "called")

    def use_in_child():
        end()
        assert ended == []

    assert in_forked_child(use_in_child) == ""
    end()
    assert ended == ["called"]


def test_a_running_interpreter_does_not_exit():
    assert not is_exiting()


def test_the_exit_says_nothing_of_threads_that_cannot_be_started_any_more():
    """A process that ends right after a collection of many."""
    script = """
import _thread, gc
from torchdata_insitu.nodes import collection

class Owner:
    pass

def no_thread(*args):
    raise RuntimeError("can't create new thread at interpreter shutdown")

gc.disable()
owner = Owner()
owner.itself = owner
collection.when_collected(owner, print, "ended")
del owner
collection.threading.Thread.start = no_thread
gc.collect()
collection.threading.Event().wait(0.2)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stderr.decode() == ""
