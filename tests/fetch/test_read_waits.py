"""Slow reads are told from fast ones by a clock of the thread."""

import threading
import time

import pytest

from torchdata_insitu.fetch.read_waits import ReadWaits, ThreadTime, thread_time

# One read in four is measured, and 16 of these make a window.
N_READS = 4 * 16


class Clock:
    """The time of a thread as a test sets it."""

    def __init__(self):
        self.waited_s = 0.0
        self.n_blocked = 0

    def __call__(self):
        return ThreadTime(self.waited_s, self.n_blocked)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def waits(clock):
    return ReadWaits(clock)


def read(waits, clock, wait_s, *, n_bytes=0, n_blocked=1):
    began = waits.begin()
    clock.waited_s += wait_s
    clock.n_blocked += n_blocked
    waits.end(began, n_bytes)


def test_reads_below_a_millisecond_are_fast(waits, clock):
    for _ in range(10 * N_READS):
        read(waits, clock, 0.0009)
    assert not waits.is_slow


def test_reads_of_a_millisecond_are_slow_once_two_windows_are_full(waits, clock):
    for _ in range(2 * N_READS - 1):
        read(waits, clock, 0.0011)
    assert not waits.is_slow
    read(waits, clock, 0.0011)
    assert waits.is_slow


def test_a_window_of_slow_reads_now_and_then_does_not_count(waits, clock):
    for _ in range(10):
        for _ in range(N_READS):
            read(waits, clock, 0.1)
        for _ in range(N_READS):
            read(waits, clock, 0.0)
        assert not waits.is_slow


def test_slow_reads_are_fast_again_once_most_of_them_wait_no_more(waits, clock):
    for _ in range(2 * N_READS):
        read(waits, clock, 0.005)
    # What is neither changes nothing: reads do not go to and fro.
    for _ in range(10 * N_READS):
        read(waits, clock, 0.0003)
    # And what was read ahead is no sign.
    for number in range(10 * N_READS):
        read(waits, clock, 0.005 if number // 4 % 16 < 4 else 0.0)
    assert waits.is_slow
    for _ in range(N_READS):
        read(waits, clock, 0.0002)
    assert not waits.is_slow
    for _ in range(2 * N_READS):
        read(waits, clock, 0.005)
    assert waits.is_slow


def test_fewer_than_half_of_the_reads_do_not_count(waits, clock):
    for number in range(10 * N_READS):
        read(waits, clock, 1.0 if number // 4 % 16 < 7 else 0.0)
    assert not waits.is_slow


def test_time_for_many_bytes_is_no_wait(waits, clock):
    for _ in range(N_READS):
        read(waits, clock, 0.010, n_bytes=10_000_000)
    assert not waits.is_slow
    for _ in range(2 * N_READS):
        read(waits, clock, 0.012, n_bytes=10_000_000)
    assert waits.is_slow


def test_a_thread_that_had_to_let_others_run_did_not_wait_for_its_read(waits, clock):
    for _ in range(N_READS):
        read(waits, clock, 0.005, n_blocked=0)
    assert not waits.is_slow


def test_the_clock_of_a_thread_stands_still_while_it_computes():
    began = thread_time()
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    computed = time.perf_counter() - (end - 0.05)
    assert thread_time().waited_s - began.waited_s < computed
    began = thread_time()
    threading.Event().wait(0.02)
    now = thread_time()
    assert now.waited_s - began.waited_s > 0.015
    assert now.n_blocked > began.n_blocked
