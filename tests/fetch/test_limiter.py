"""Requests and bytes under way stay within their limits, and who waits gets its turn."""

import gc
import os
import random
import threading
import weakref

import pytest
from zarr.storage import MemoryStore

from tests.small_loaders import eventually, in_forked_child
from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.limiter import MOST_BYTES, Limiter, limiter_of
from torchdata_insitu.fetch.stores import open_store


class Reader:
    """Keeps the permits that it was granted later."""

    def __init__(self, limiter, max_inflight=2):
        self.account = limiter.account(max_inflight)
        self.account.granted = self.granted
        self.late = []

    def granted(self, permit):
        self.late.append(permit)

    def ask(self, n_bytes=1):
        return self.account.ask(n_bytes)


@pytest.fixture
def limiter():
    return Limiter("a store", most_bytes=100)


def test_requests_stay_within_max_inflight(limiter):
    reader = Reader(limiter, max_inflight=2)
    first, second = reader.ask(), reader.ask()
    assert None not in (first, second)
    assert reader.ask() is None
    assert limiter.n_inflight == 2
    first.end()
    assert len(reader.late) == 1
    assert limiter.n_inflight == 2


def test_all_readers_of_a_store_share_the_limit(limiter):
    one, other = Reader(limiter), Reader(limiter)
    assert one.ask()
    assert other.ask()
    assert one.ask() is None
    assert other.ask() is None


def test_bytes_count_until_they_are_decoded(limiter):
    reader = Reader(limiter, max_inflight=10)
    permit = reader.ask(90)
    permit.landed(90)
    assert (limiter.n_inflight, limiter.n_bytes) == (0, 90)
    assert reader.ask(20) is None
    permit.end()
    assert [late.n_bytes for late in reader.late] == [20]
    assert (limiter.n_inflight, limiter.n_bytes) == (1, 20)


def test_what_waits_to_be_decoded_holds_further_reads_back(limiter):
    reader = Reader(limiter, max_inflight=2)
    landed = [reader.ask() for _ in range(2)]
    for permit in landed:
        permit.landed(1)
    more = [reader.ask() for _ in range(2)]
    for permit in more:
        permit.landed(1)
    # Nothing is in the air, but four encoded chunks are in memory.
    assert (limiter.n_inflight, reader.ask()) == (0, None)
    landed[0].end()
    assert len(reader.late) == 1


def test_what_was_expected_is_corrected_when_the_bytes_are_there(limiter):
    reader = Reader(limiter, max_inflight=10)
    permit = reader.ask(90)
    assert reader.ask(60) is None
    permit.landed(30)
    assert limiter.n_bytes == 30 + 60
    assert len(reader.late) == 1


def test_a_request_larger_than_the_limit_runs_alone(limiter):
    reader = Reader(limiter, max_inflight=10)
    small = reader.ask(1)
    assert reader.ask(1000) is None
    assert reader.late == []
    small.end()
    (large,) = reader.late
    assert limiter.n_bytes == 1000
    assert reader.ask(1) is None
    large.end()
    assert limiter.n_bytes == 1


def test_a_large_request_is_not_overtaken_for_ever(limiter):
    large, small = Reader(limiter, 10), Reader(limiter, 10)
    permit = small.ask(50)
    assert large.ask(100) is None
    assert small.ask(50) is None
    permit.end()
    assert len(large.late) == 1
    assert small.late == []


def test_those_who_wait_take_turns(limiter):
    readers = [Reader(limiter, max_inflight=1) for _ in range(3)]
    permit = readers[0].ask()
    for reader in readers:
        assert reader.ask() is None
    turns = []
    for _ in range(9):
        permit.end()
        (number,) = [n for n, reader in enumerate(readers) if reader.late]
        permit = readers[number].late.pop()
        assert readers[number].ask() is None
        turns.append(number)
    assert turns == [0, 1, 2] * 3


def test_asking_again_while_waiting_gives_one_permit(limiter):
    reader = Reader(limiter, max_inflight=1)
    permit = reader.ask(5)
    assert reader.ask(7) is None
    assert reader.ask(9) is None
    permit.end()
    assert [late.n_bytes for late in reader.late] == [9]
    assert limiter.n_inflight == 1


def test_ending_twice_gives_back_once(limiter):
    reader = Reader(limiter)
    permit, other = reader.ask(10), reader.ask(10)
    permit.end()
    permit.end()
    permit.landed(99)
    assert (limiter.n_inflight, limiter.n_bytes) == (1, 10)
    other.landed(20)
    other.landed(30)
    assert (limiter.n_inflight, limiter.n_bytes) == (0, 20)


def test_withdrawing_ends_what_nobody_works_for_and_lets_others_go_on(limiter):
    leaves, stays = Reader(limiter, 3), Reader(limiter, 3)
    in_air, landed, decoding = leaves.ask(10), leaves.ask(10), leaves.ask(60)
    for permit in (landed, decoding):
        permit.landed(permit.n_bytes)
    decoding.is_idle = False
    assert leaves.ask(50) is None
    assert stays.ask(30) is None
    leaves.account.withdraw()
    # From Zarr's loop, and only to who still waits.
    eventually(lambda: stays.late)
    assert leaves.late == []
    assert limiter.n_bytes == in_air.n_bytes + decoding.n_bytes + 30
    assert limiter.n_inflight == 2
    for permit in (in_air, decoding, landed, *stays.late):
        permit.end()
    assert (limiter.n_inflight, limiter.n_bytes) == (0, 0)


def test_withdrawing_mends_counts_that_an_interrupt_left(limiter):
    reader = Reader(limiter)
    permit = reader.ask(10)
    limiter.n_inflight, limiter.n_bytes = 7, 77
    reader.account.withdraw()
    assert (limiter.n_inflight, limiter.n_bytes) == (1, 10)
    permit.end()


def test_the_parts_of_a_read_end_one_by_one(limiter):
    reader = Reader(limiter, max_inflight=1)
    permit = reader.ask(90)
    permit.landed(80)
    parts = permit.split([30, 20, 10])
    assert [part.n_bytes for part in parts] == [30, 20, 10]
    assert (limiter.n_inflight, limiter.n_bytes, limiter._n_begun) == (0, 60, 1)
    # It was one read, whatever is left of it.
    others = [reader.ask(1)]
    others[0].landed(1)
    assert reader.ask(1) is None
    permit.end()
    assert limiter.n_bytes == 60 + 1
    for part, left in zip(parts, (31, 11, 1), strict=True):
        assert part.is_idle
        part.end()
        part.end()
        assert limiter.n_bytes - sum(late.n_bytes for late in reader.late) == left
    assert len(reader.late) == 1
    for late in (*others, *reader.late):
        late.end()
    assert (limiter.n_inflight, limiter.n_bytes, limiter._n_begun) == (0, 0, 0)
    assert not limiter._permits


@pytest.mark.parametrize("is_landed", [True, False])
def test_a_read_of_no_parts_ends(limiter, is_landed):
    permit = Reader(limiter).ask(50)
    if is_landed:
        permit.landed(40)
    assert permit.split([]) == []
    assert (limiter.n_inflight, limiter.n_bytes, limiter._n_begun) == (0, 0, 0)
    assert not limiter._permits


@pytest.mark.parametrize("sizes", [[], [10], [10, 10]])
def test_what_a_split_frees_goes_to_who_waits(limiter, sizes):
    reader, waits = Reader(limiter, 10), Reader(limiter, 10)
    permit = reader.ask(90)
    permit.landed(90)
    assert waits.ask(60) is None
    parts = permit.split(sizes)
    assert [late.n_bytes for late in waits.late] == [60]
    for each in (*parts, *waits.late):
        each.end()
    assert (limiter.n_inflight, limiter.n_bytes, limiter._n_begun) == (0, 0, 0)


def test_the_parts_of_what_was_withdrawn_count_for_nothing(limiter):
    reader = Reader(limiter)
    permit = reader.ask(50)
    permit.landed(50)
    reader.account.withdraw()
    for part in permit.split([20, 30]):
        assert limiter.n_bytes == 0
        part.end()
    assert (limiter.n_inflight, limiter.n_bytes, limiter._n_begun) == (0, 0, 0)


def test_withdrawing_ends_the_parts_that_wait(limiter):
    reader = Reader(limiter)
    permit = reader.ask(50)
    permit.landed(50)
    first, second = permit.split([20, 30])
    first.is_idle = False
    reader.account.withdraw()
    assert (limiter.n_bytes, limiter._n_begun, limiter._permits) == (20, 1, {first})
    second.end()
    first.end()
    assert (limiter.n_bytes, limiter._n_begun, limiter._permits) == (0, 0, set())


def always():
    return True


def test_passes_that_are_live_need_equal_limits(limiter):
    train, val = limiter.account(32), limiter.account(64)
    train.start("train", always)
    with pytest.raises(PlanError) as raised:
        val.start("val", always)
    for fact in ("'train'", "'val'", "a store", "32", "64", "close"):
        assert fact in str(raised.value)
    train.stop()
    val.start("val", always)
    with pytest.raises(PlanError):
        train.start("train", always)
    limiter.account(64).start("another", always)


def test_a_pass_that_has_ended_is_in_nobodys_way(limiter):
    is_live = True
    limiter.account(32).start("train", lambda: is_live)
    is_live = False
    limiter.account(64).start("val", always)


def test_starting_again_is_the_same_pass(limiter):
    account = limiter.account(32)
    account.start("train", always)
    account.start("train", always)
    account.stop()
    account.stop()
    limiter.account(64).start("val", always)


def test_a_store_has_one_limiter_in_the_process():
    store, other = MemoryStore(), MemoryStore()
    limiter = limiter_of(store)
    assert limiter_of(store) is limiter
    assert limiter_of(other) is not limiter
    assert MOST_BYTES == 256_000_000


def test_stores_of_one_dataset_share_a_limiter(tmp_path):
    stores = [open_store(tmp_path, dataset_id="era5") for _ in range(2)]
    assert limiter_of(stores[0]) is limiter_of(stores[1])


def test_a_limiter_goes_with_those_who_use_it():
    gone = weakref.ref(limiter_of(MemoryStore()))
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_begins_with_nothing_under_way():
    store = MemoryStore()
    limiter = limiter_of(store)
    limiter.account(1).ask(1)

    def child():
        assert limiter_of(store).n_inflight == 0

    assert in_forked_child(child) == ""


def test_limits_hold_whoever_asks_and_ends():
    limiter = Limiter("a store", most_bytes=100)
    lock, most = threading.Lock(), []

    def uses(seed):
        draw = random.Random(seed)
        # How many it has to read is what it does not end before.
        left, begun, wake = 200, [], threading.Semaphore(0)
        account = limiter.account(3)

        def granted(permit):
            begun.append(permit)
            wake.release()

        account.granted = granted
        while left:
            permit = account.ask(draw.randint(0, 60))
            if permit is None:
                assert wake.acquire(timeout=20)
                permit = begun.pop()
            with lock:
                most.append((limiter.n_inflight, limiter.n_bytes))
            permit.landed(permit.n_bytes)
            permit.end()
            left -= 1

    users = [threading.Thread(target=uses, args=(seed,)) for seed in range(5)]
    for user in users:
        user.start()
    for user in users:
        user.join(30)
    assert len(most) == 5 * 200
    assert max(n for n, _ in most) <= 3
    assert max(n for _, n in most) <= 100
    assert (limiter.n_inflight, limiter.n_bytes) == (0, 0)


def test_permits_reach_who_waits_without_the_lock(limiter):
    reader = Reader(limiter, max_inflight=1)
    permit = reader.ask()
    asked = []
    reader.account.granted = lambda late: asked.append((late, reader.ask()))
    assert reader.ask() is None
    permit.end()
    ((late, further),) = asked
    assert further is None
    reader.account.granted = reader.granted
    late.end()
    assert len(reader.late) == 1
