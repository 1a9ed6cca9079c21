"""Slow reads are told from fast ones by a clock of the thread."""

import threading
import time

import pytest

from torchdata_insitu.fetch.read_waits import ReadWaits, ThreadTime, thread_time

# The first eight reads are measured, and then one in four; eight of these make a window.
N_FIRST = 8
N_READS = 4 * 8


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


def test_the_first_reads_are_slow_once_the_window_is_full(waits, clock):
    for _ in range(N_FIRST - 1):
        read(waits, clock, 0.0011)
    assert not waits.is_slow
    read(waits, clock, 0.0011)
    assert waits.is_slow


@pytest.mark.parametrize("n_fast, is_slow", [(0, True), (1, True), (2, False), (8, False)])
def test_all_but_one_of_a_window_have_to_wait(waits, clock, n_fast, is_slow):
    for _ in range(N_FIRST):
        read(waits, clock, 0.0)
    for number in range(N_READS):
        # The second and the third of four are not measured.
        read(waits, clock, 0.0 if number // 4 < n_fast else 0.0011)
    assert waits.is_slow == is_slow


def test_what_is_not_measured_does_not_count(waits, clock):
    for number in range(N_FIRST + 10 * N_READS):
        read(waits, clock, 0.0 if number < N_FIRST or number % 4 == 3 else 1.0)
    assert not waits.is_slow


@pytest.mark.parametrize("n_fast, is_slow", [(0, True), (3, True), (4, False), (8, False)])
def test_slow_reads_are_fast_again_once_half_of_them_wait_no_more(waits, clock, n_fast, is_slow):
    for _ in range(N_FIRST):
        read(waits, clock, 0.005)
    assert waits.is_slow
    for number in range(N_READS):
        read(waits, clock, 0.0002 if number // 4 < n_fast else 0.0003)
    assert waits.is_slow == is_slow
    for _ in range(N_READS):
        read(waits, clock, 0.005)
    assert waits.is_slow


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
