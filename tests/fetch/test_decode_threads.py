"""Threads come as jobs need them and leave when they are dismissed."""

import threading

import pytest

from tests.fetch.loads import WAIT_S
from torchdata_insitu.fetch.decode_threads import DecodeThreads


class Gate:
    """Jobs wait in it until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.done = []

    def perform(self, job):
        self.begun.release()
        assert self.opened.wait(WAIT_S)
        self.done.append(job)
        self.ended.release()


@pytest.fixture
def crew():
    gate = Gate()
    threads = DecodeThreads(3, gate.perform)
    yield threads, gate
    gate.opened.set()
    for thread in threads.dismiss():
        thread.join(WAIT_S)


def running():
    return [t for t in threading.enumerate() if t.name.startswith("insitu-decode")]


def test_no_thread_is_there_before_the_first_job(crew):
    assert not running()


def test_as_many_threads_as_jobs_are_started(crew):
    threads, gate = crew
    threads.put([1, 2])
    assert gate.begun.acquire(timeout=WAIT_S)
    assert gate.begun.acquire(timeout=WAIT_S)
    assert len(running()) == 2


def test_threads_stay_within_their_number(crew):
    threads, gate = crew
    threads.put(list(range(10)))
    for _ in range(3):
        assert gate.begun.acquire(timeout=WAIT_S)
    threads.put(list(range(10)))
    assert len(running()) == 3
    assert all(thread.daemon for thread in running())


def test_idle_threads_take_later_jobs(crew):
    threads, gate = crew
    gate.opened.set()
    for job in range(50):
        threads.put([job])
        assert gate.ended.acquire(timeout=WAIT_S)
    assert gate.done == list(range(50))
    assert len(running()) <= 3


def test_queued_jobs_can_be_taken_back(crew):
    threads, gate = crew
    threads.put(list(range(10)))
    for _ in range(3):
        assert gate.begun.acquire(timeout=WAIT_S)
    taken = threads.take()
    gate.opened.set()
    for _ in range(3):
        assert gate.ended.acquire(timeout=WAIT_S)
    assert sorted(taken + gate.done) == list(range(10))
    assert threads.take() == []


def test_dismissed_threads_leave_after_their_job_and_others_come(crew):
    threads, gate = crew
    threads.put([1])
    assert gate.begun.acquire(timeout=WAIT_S)
    (old,) = threads.dismiss()
    threads.put([2])
    assert gate.begun.acquire(timeout=WAIT_S)
    gate.opened.set()
    old.join(WAIT_S)
    assert not old.is_alive()
    for _ in range(2):
        assert gate.ended.acquire(timeout=WAIT_S)
    assert sorted(gate.done) == [1, 2]


def test_threads_that_idle_leave_when_dismissed(crew):
    threads, gate = crew
    gate.opened.set()
    for _ in range(20):
        threads.put([0])
        assert gate.ended.acquire(timeout=WAIT_S)
        for thread in threads.dismiss():
            thread.join(WAIT_S)
        assert not running()
