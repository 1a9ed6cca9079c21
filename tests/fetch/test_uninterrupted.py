import signal
import threading

import pytest

from torchdata_insitu.fetch.uninterrupted import uninterrupted

JOIN_S = 20


def test_another_thread_does_the_work_itself():
    names = []

    def ask():
        uninterrupted(lambda: names.append(threading.current_thread().name))

    thread = threading.Thread(target=ask, name="asking")
    thread.start()
    thread.join()
    assert names == ["asking"]


def test_the_main_thread_returns_after_the_work():
    names = []
    uninterrupted(lambda: names.append(threading.current_thread().name))
    assert names == ["insitu-end"]


def test_an_interrupt_ends_the_wait_and_not_the_work():
    is_over = threading.Event()

    def work():
        signal.raise_signal(signal.SIGINT)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        is_over.set()

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert is_over.wait(JOIN_S)


def test_where_no_thread_can_be_started_the_main_thread_does_the_work(monkeypatch):
    def cannot_start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    done = []
    uninterrupted(lambda: done.append(threading.current_thread()))
    assert done == [threading.main_thread()]
