import threading

import pytest

from tests.contracts.watchdog import promptly
from tests.each_case import each_case
from torchdata_insitu.gate import Gate

N_ROUNDS = 10_000
JOIN_S = 20


def side_by_side(*functions):
    """Run functions on a thread each, until all have ended; the first error is raised."""
    errors = []

    def caught(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert not any(thread.is_alive() for thread in threads), "a wake-up was lost"
    if errors:
        raise errors[0]


@each_case("n_opened", [0, 1, 2, 100])
def test_what_is_opened_before_lets_one_wait_pass(n_opened):
    gate = Gate()
    for _ in range(n_opened):
        gate.open()
    assert gate.wait(timeout_s=0.0) == (n_opened > 0)
    assert not gate.wait(timeout_s=0.0)


def test_it_can_be_used_again_and_again():
    gate = Gate()
    for _ in range(100):
        gate.open()
        assert gate.wait(timeout_s=0.0)
        assert not gate.wait(timeout_s=0.0)


def test_a_wait_that_is_under_way_passes():
    gate, entered, passed = Gate(), threading.Event(), []

    def wait():
        entered.set()
        passed.append(gate.wait())

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert entered.wait(JOIN_S)
    gate.open()
    thread.join(JOIN_S)
    assert passed == [True]
    assert not gate.wait(timeout_s=0.0)


def test_a_wait_of_no_avail_ends_after_its_time():
    gate = Gate()
    with promptly():
        assert not gate.wait(timeout_s=0.001)
    gate.open()
    assert gate.wait(timeout_s=JOIN_S)


def test_each_of_two_threads_wakes_the_other():
    """Neither looks but when it was woken, so that a wake-up that is lost stops both."""
    ping, pong = Gate(), Gate()
    seen = []

    def first():
        for number in range(N_ROUNDS):
            seen.append(number)
            ping.open()
            assert pong.wait()

    def second():
        for number in range(N_ROUNDS):
            assert ping.wait()
            assert len(seen) == number + 1
            pong.open()

    side_by_side(first, second)
    assert not ping.wait(timeout_s=0.0)
    assert not pong.wait(timeout_s=0.0)


@pytest.mark.parametrize("n_threads", [2, 4])
def test_what_is_said_before_any_of_many_opens_at_once_is_seen(n_threads):
    """A waiter that looks whenever it is let pass sees the last of what many threads say."""
    gate = Gate()
    n_each = 2_000
    said = [0] * n_threads

    def say(place):
        for _ in range(n_each):
            said[place] += 1
            gate.open()

    def look():
        while sum(said) < n_threads * n_each:
            assert gate.wait()

    side_by_side(look, *(lambda place=place: say(place) for place in range(n_threads)))


def test_threads_that_open_it_in_the_same_moment_open_it_once():
    """Between the look and the release of one, another opens it."""
    gate = Gate()
    lock = gate._lock

    class OpenedMeanwhile:
        def locked(self):
            if lock.locked():
                lock.release()
            return True

        def release(self):
            lock.release()

    gate._lock = OpenedMeanwhile()
    gate.open()
    gate._lock = lock
    assert gate.wait(timeout_s=0.0)
    assert not gate.wait(timeout_s=0.0)


def test_one_wake_up_lets_one_of_many_waits_pass():
    gate, passed = Gate(), threading.Semaphore(0)

    def wait():
        gate.wait()
        passed.release()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        gate.open()
        assert passed.acquire(timeout=JOIN_S)
        assert not passed.acquire(blocking=False)
    for thread in threads:
        thread.join(JOIN_S)
    assert not gate.wait(timeout_s=0.0)
