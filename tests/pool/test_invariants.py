import asyncio
import threading

import pytest

from tests.pool.test_chunk_pool import SLOT, A, Loads, keys, open_pass
from torchdata_insitu.pool.admission import Admission
from torchdata_insitu.pool.chunk_pool import ChunkPool


@pytest.fixture(autouse=True)
def debugging(monkeypatch):
    monkeypatch.setenv("TORCHDATA_INSITU_DEBUG", "1")


@pytest.fixture
def used():
    """A pool, a pass that leases chunk 0 and asked for chunk 1, and its loads."""
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    loads.land()
    return pool, mine, loads


def broken(pool, mine, *, match):
    with pytest.raises(AssertionError, match=match):
        mine.request(keys(3))


def test_a_sound_pool_passes(used):
    _, mine, loads = used
    mine.request(keys(2))
    loads.land_all()
    mine.close()


def test_without_debugging_nothing_is_checked(monkeypatch):
    monkeypatch.setenv("TORCHDATA_INSITU_DEBUG", "0")
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.held_bytes += 1
    mine.request(keys(0))
    loads.land_all()


def test_rows_that_leave_memory_are_overwritten(used):
    pool, mine, loads = used
    loads.land_all()
    row = mine.first_rows(keys(1))[0]
    mine.close()
    pool.clear()
    assert (pool.region(A).rows[row].view("u1") == 0xA5).all()


@pytest.mark.parametrize(
    "count,match",
    [("held_bytes", "held bytes are those of leases"), ("floor_bytes", "floors fit the budget")],
)
def test_a_wrong_count_of_a_pass_is_found(used, count, match):
    pool, mine, _ = used
    setattr(mine, count, 100 * SLOT)
    if count == "floor_bytes":
        pool._budget.n_bytes = 5 * SLOT
    broken(pool, mine, match=match)


def test_a_lost_lease_is_found(used):
    pool, mine, _ = used
    pool._residency[keys(0)[0]].leases = 2
    broken(pool, mine, match="leases are those of the passes")


def test_a_lease_of_a_closed_pass_is_found(used):
    pool, mine, loads = used
    other = open_pass(pool, loads, name="val")
    other.closed = True
    broken(pool, mine, match="P5: a closed pass is not live")


def test_a_slot_with_two_chunks_is_found(used):
    pool, mine, _ = used
    first, second = (pool._residency[key] for key in keys(0, 1))
    second.slot = first.slot
    broken(pool, mine, match="P3: a slot has one chunk")


def test_lost_memory_is_found(used):
    pool, mine, _ = used
    pool._residency._slots.charged_bytes -= SLOT
    broken(pool, mine, match="charged bytes are those of slots")


def test_a_chunk_that_lands_twice_is_found(used):
    _, _, loads = used
    fill = loads.fills[0]
    loads.land_all()
    with pytest.raises(AssertionError, match="P2: a chunk is READY once per fill"):
        fill.finish(None)


def test_reading_without_a_lease_is_found(used):
    pool, _, loads = used
    other = open_pass(pool, loads, name="val")
    with pytest.raises(AssertionError, match="P1: a slot is read under a lease"):
        other.first_rows(keys(0))


def test_reading_what_has_not_landed_is_found(used):
    _, mine, _ = used
    with pytest.raises(AssertionError, match="P1: a slot is read when it is READY"):
        mine.first_rows(keys(1))


def test_a_decode_thread_must_not_wait():
    raised = []

    def wait():
        try:
            Admission(1).wait()
        except AssertionError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait, name="insitu-decode-7")
    thread.start()
    thread.join()
    assert "P6: who fills slots waits for none" in raised[0]


def test_an_event_loop_must_not_wait():
    async def wait():
        Admission(1).wait()

    with pytest.raises(AssertionError, match="P6: an event loop waits for no slot"):
        asyncio.run(wait())
