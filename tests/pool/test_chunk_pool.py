import threading

import numpy as np
import pytest

from torchdata_insitu.errors import BudgetError, ClosedError
from torchdata_insitu.geometry.chunk_key import ChunkKey
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.pool.live_passes import LivePasses

A = ChunkSource("store", "a", "decode")
B = ChunkSource("store", "b", "decode")


def shape(name="a", rows=2, field=(4,), n_chunks=10):
    return SlotShape(name, rows, field, "<f4", 4, n_chunks)


SLOT = shape().slot_bytes


class Loads:
    """Collects fills; the test plays the decode threads."""

    def __init__(self):
        self.fills = []

    def __call__(self, fills):
        self.fills.extend(fills)

    def land_all(self):
        while self.fills:
            self.land()

    def land(self, error=None):
        fill = self.fills.pop(0)
        fill.out[:] = fill.key.sample_run
        fill.finish(error)


def keys(*runs, source=A):
    return [ChunkKey(source, run, 0) for run in runs]


def open_pass(pool, loads, *, name="train", floor=2, slots=None):
    slots = slots or {A: shape()}
    return pool.open_pass(
        name,
        slots,
        dict.fromkeys(slots, floor),
        loads,
        block_chunks=8,
        fitting_block=lambda n_bytes: n_bytes // (SLOT // 4),
    )


def test_leased_chunks_hold_their_own_rows():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    admission = mine.request(keys(3, 7))
    loads.land_all()
    admission.wait()
    rows = pool.region(A).rows
    first = mine.first_rows(keys(3, 7))
    assert [rows[row].tolist() for row in first] == [[3.0] * 4, [7.0] * 4]


def test_a_chunk_that_is_resident_is_not_loaded_again():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(1))
    loads.land_all()
    again = mine.request(keys(1))
    assert loads.fills == []
    again.wait()


def test_two_passes_share_one_load():
    pool, loads, others = ChunkPool(8 * SLOT), Loads(), Loads()
    mine, theirs = open_pass(pool, loads), open_pass(pool, others, name="val")
    first, second = mine.request(keys(1)), theirs.request(keys(1))
    assert (len(loads.fills), len(others.fills)) == (1, 0)
    loads.land_all()
    first.wait()
    second.wait()


def test_a_chunk_is_in_use_until_its_last_lease_and_then_kept():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(1))
    mine.request(keys(1))
    loads.land_all()
    mine.release(keys(1))
    assert (pool.n_resident, pool.n_in_use) == (1, 1)
    mine.release(keys(1))
    assert (pool.n_resident, pool.n_in_use) == (1, 0)


def test_what_does_not_fit_waits_until_a_release():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    later = mine.request(keys(2))
    loads.land_all()
    assert mine.has_queue
    mine.release(keys(0))
    assert [fill.key.sample_run for fill in loads.fills] == [2]
    loads.land_all()
    later.wait()
    assert pool.charged_bytes == 2 * SLOT


def test_a_floor_is_kept_free_for_the_pass_that_declared_it():
    pool, loads, others = ChunkPool(4 * SLOT), Loads(), Loads()
    mine, theirs = open_pass(pool, loads), open_pass(pool, others, name="val")
    mine.request(keys(0, 1, 2))
    assert len(loads.fills) == 2
    theirs.request(keys(5, 6))
    assert len(others.fills) == 2


def test_floors_that_do_not_fit_are_refused_with_every_term():
    pool = ChunkPool(3 * SLOT)
    open_pass(pool, Loads())
    with pytest.raises(BudgetError) as caught:
        open_pass(pool, Loads(), name="val")
    text = str(caught.value)
    assert "need 128 B but budget_bytes is 96 B" in text
    assert "'val' 64 B (a 2 x 32 B)" in text
    assert "'train' 64 B (a 2 x 32 B)" in text
    assert "close another loader, lower block_chunks from 8 to 4 or raise budget_bytes to" in text
    assert pool.n_passes == 1


def test_passes_of_one_name_are_told_apart():
    pool = ChunkPool(3 * SLOT)
    open_pass(pool, Loads(), floor=1)
    open_pass(pool, Loads(), floor=1, name="val")
    with pytest.raises(BudgetError) as caught:
        open_pass(pool, Loads(), floor=3)
    text = str(caught.value)
    assert "'train' no. 1 32 B (a 1 x 32 B); 'val' 32 B (a 1 x 32 B)" in text
    assert "'train' no. 2 96 B (a 3 x 32 B)" in text


def test_a_budget_that_not_one_unit_fits_is_told():
    pool = ChunkPool(2 * SLOT)
    open_pass(pool, Loads(), floor=2)
    with pytest.raises(BudgetError) as caught:
        open_pass(pool, Loads(), name="val")
    text = str(caught.value)
    assert "not even one unit in each lane of the new one fits; close another loader or" in text
    assert "block_chunks" not in text


def test_a_budget_that_was_asked_for_in_words_is_told_with_its_source():
    pool = ChunkPool("auto")
    pool.budget.limit_bytes = 2 * SLOT - 1
    with pytest.raises(BudgetError) as caught:
        open_pass(pool, Loads())
    assert "need 64 B but budget_bytes is 63 B ('auto': half of the memory free when" in str(
        caught.value
    )


def test_numbers_that_differ_are_not_rounded_to_the_same():
    pool, rows = ChunkPool(10**6), 125_001
    with pytest.raises(BudgetError, match="need 1000008 B but budget_bytes is 1000000 B"):
        open_pass(pool, Loads(), floor=1, slots={A: shape(rows=rows, field=(2,))})


def test_the_advice_of_a_budget_error_fits():
    with pytest.raises(BudgetError, match="lower block_chunks from 8 to 4 or raise budget_bytes"):
        open_pass(ChunkPool(SLOT), Loads(), floor=2)


def test_closing_a_pass_returns_its_leases_and_its_floor():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    loads.land_all()
    mine.close()
    mine.close()
    assert (pool.n_in_use, pool.n_passes) == (0, 0)
    open_pass(pool, loads)


def test_closing_a_pass_ends_its_waits():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    admissions = [mine.request(keys(0, 1)), mine.request(keys(2))]
    mine.close()
    for admission in admissions:
        with pytest.raises(ClosedError):
            admission.wait()


def test_a_slot_being_written_is_not_given_away_by_closing():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    mine.close()
    others = Loads()
    theirs = open_pass(pool, others)
    theirs.request(keys(5, 6))
    assert others.fills == []
    loads.land_all()
    assert [fill.key.sample_run for fill in others.fills] == [5, 6]


def test_releasing_through_a_closed_pass_does_nothing():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    old = open_pass(pool, loads)
    old.request(keys(1))
    old.close()
    new = open_pass(pool, loads)
    new.request(keys(1))
    loads.land_all()
    old.release(keys(1))
    assert pool.n_resident == 1


def test_asking_a_closed_pass_ends_at_once():
    pool = ChunkPool(4 * SLOT)
    mine = open_pass(pool, Loads())
    mine.close()
    with pytest.raises(ClosedError):
        mine.request(keys(1)).wait()


def test_an_error_reaches_every_waiter_and_the_next_ask_loads_again():
    pool, loads, others = ChunkPool(8 * SLOT), Loads(), Loads()
    mine, theirs = open_pass(pool, loads), open_pass(pool, others, name="val")
    waits = [mine.request(keys(1)), theirs.request(keys(1))]
    loads.land(ValueError("broken"))
    for admission in waits:
        with pytest.raises(ValueError, match="broken"):
            admission.wait()
    assert pool.n_resident == 0
    mine.request(keys(1))
    assert len(loads.fills) == 1


def test_an_abandoned_load_goes_to_a_pass_that_still_waits():
    pool, loads, others = ChunkPool(8 * SLOT), Loads(), Loads()
    mine, theirs = open_pass(pool, loads), open_pass(pool, others, name="val")
    mine.request(keys(1))
    admission = theirs.request(keys(1))
    mine.close()
    loads.fills.pop().abandon()
    assert len(others.fills) == 1
    others.land_all()
    admission.wait()


def test_an_abandoned_load_nobody_waits_for_frees_its_slot():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(1))
    mine.close()
    loads.fills.pop().abandon()
    assert pool.n_resident == 0


def test_memory_moves_between_arenas():
    slots = {A: shape("a"), B: shape("b")}
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = pool.open_pass(
        "train", slots, {A: 1, B: 1}, loads, block_chunks=1, fitting_block=lambda _: 0
    )
    mine.request(keys(0, 1, 2, 3))
    loads.land_all()
    mine.release(keys(0, 1, 2))
    mine.request(keys(0, 1, 2, source=B))
    loads.land_all()
    assert pool.charged_bytes == 4 * SLOT
    rows = pool.region(B).rows
    assert [rows[r, 0] for r in mine.first_rows(keys(0, 1, 2, source=B))] == [0, 1, 2]
    assert rows[mine.first_rows(keys(3))[0], 0] == 3


def test_returned_pages_are_not_those_of_a_neighbour():
    big = SlotShape("a", 1, (1000,), "<f4", 4, 8)
    pool, loads = ChunkPool(8 * big.slot_bytes), Loads()
    mine = pool.open_pass(
        "train", {A: big}, {A: 1}, loads, block_chunks=1, fitting_block=lambda _: 0
    )
    mine.request(keys(*range(8)))
    loads.land_all()
    mine.release(keys(1, 3, 6))
    pool.return_memory()
    rows = pool.region(A).rows
    for run in (0, 2, 4, 5, 7):
        assert (rows[mine.first_rows(keys(run))[0]] == run).all()
    assert pool.charged_bytes == 5 * big.slot_bytes


def test_arrays_with_equal_rows_share_a_region():
    slots = {A: shape("a", rows=2), B: shape("b", rows=5)}
    pool, loads = ChunkPool(100 * SLOT), Loads()
    mine = pool.open_pass(
        "train", slots, {A: 1, B: 1}, loads, block_chunks=1, fitting_block=lambda _: 0
    )
    mine.request(keys(1) + keys(2, source=B))
    loads.land_all()
    assert pool.region(A) is pool.region(B)
    first = mine.first_rows(keys(1) + keys(2, source=B))
    assert [float(pool.region(A).rows[row, 0]) for row in first] == [1.0, 2.0]


def test_auto_grows_to_two_blocks_of_each_pass():
    pool = ChunkPool("auto")
    open_pass(pool, Loads(), floor=2)
    assert pool.budget_bytes == 4 * SLOT
    open_pass(pool, Loads(), name="val", floor=1)
    assert pool.budget_bytes == 6 * SLOT


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "half", "0%", "101%", "x%", None])
def test_budgets_that_make_no_sense_are_refused(value):
    with pytest.raises(BudgetError, match="budget_bytes is"):
        ChunkPool(value)


def test_interrupting_wakes_a_waiter_on_another_thread():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    admission = open_pass(pool, loads).request(keys(0))
    caught = []

    def wait():
        try:
            admission.wait()
        except ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    admission.interrupt()
    thread.join()
    assert len(caught) == 1


def test_random_passes_never_get_stuck_and_always_read_their_own_rows():
    rng = np.random.default_rng(0)
    pool = ChunkPool(6 * SLOT)
    loads = Loads()
    passes = [open_pass(pool, loads, name=str(n), floor=2) for n in range(3)]
    for _ in range(2000):
        mine = passes[rng.integers(3)]
        wanted = keys(*rng.choice(10, 2, replace=False).tolist())
        admission = mine.request(wanted)
        loads.land_all()
        admission.wait()
        rows = pool.region(A).rows
        for key, row in zip(wanted, mine.first_rows(wanted), strict=True):
            assert (rows[row : row + 2] == key.sample_run).all()
        mine.release(wanted)
        assert pool.charged_bytes <= 6 * SLOT
    assert pool.n_in_use == 0


def test_a_pass_that_starts_takes_back_what_another_read_ahead():
    pool, loads, others = ChunkPool(4 * SLOT), Loads(), Loads()
    mine = open_pass(pool, loads)
    first, second = mine.request(keys(0, 1)), mine.request(keys(2, 3))
    loads.land_all()
    mine.claim(first)
    theirs = open_pass(pool, others, name="val")
    theirs.request(keys(8, 9))
    assert [fill.key.sample_run for fill in others.fills] == [8, 9]
    assert (second.n_left, [key.sample_run for key, _ in mine.queue]) == (2, [2, 3])
    others.land_all()
    theirs.close()
    assert [fill.key.sample_run for fill in loads.fills] == [2, 3]
    loads.land_all()
    second.wait()
    rows = pool.region(A).rows
    assert [rows[row, 0] for row in mine.first_rows(keys(0, 1, 2, 3))] == [0, 1, 2, 3]


def test_what_is_claimed_is_never_taken_back():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    first, second = mine.request(keys(0, 1)), mine.request(keys(2, 3))
    loads.land_all()
    mine.claim(first)
    open_pass(pool, Loads(), name="val")
    assert list(mine.leases) == keys(0, 1)
    assert (first.n_left, second.n_left) == (0, 2)


def test_a_load_taken_back_on_its_way_frees_its_slot_when_it_lands():
    pool, loads, others = ChunkPool(4 * SLOT), Loads(), Loads()
    mine = open_pass(pool, loads)
    mine.claim(mine.request(keys(0, 1)))
    mine.request(keys(2, 3))
    theirs = open_pass(pool, others, name="val")
    admission = theirs.request(keys(8, 9))
    assert others.fills == []
    loads.land_all()
    others.land_all()
    admission.wait()
    assert pool.charged_bytes == 4 * SLOT


class Interrupted(Loads):
    """A loader in which Ctrl-C comes, before or after the loads were accepted."""

    def __init__(self, *, is_accepted):
        super().__init__()
        self.is_accepted = is_accepted
        self.is_due = True

    def __call__(self, fills):
        if self.is_due:
            self.is_due = False
            if self.is_accepted:
                super().__call__(fills)
            raise KeyboardInterrupt
        super().__call__(fills)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_an_interrupt_while_loads_are_handed_over_leaves_nobody_waiting(is_accepted):
    pool, loads = ChunkPool(2 * SLOT), Interrupted(is_accepted=is_accepted)
    mine = open_pass(pool, loads)
    with pytest.raises(KeyboardInterrupt):
        mine.request(keys(0, 1))
    mine.close()
    again = open_pass(pool, loads)
    admission = again.request(keys(0, 1))
    loads.land_all()
    admission.wait()
    rows = pool.region(A).rows
    assert [rows[row, 0] for row in again.first_rows(keys(0, 1))] == [0, 1]
    again.close()
    pool.return_memory()
    assert (pool.n_resident, pool.charged_bytes) == (0, 0)


def test_an_interrupt_while_a_pass_is_closed_is_made_good_by_closing_it_again(monkeypatch):
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    loads.land_all()
    drop, calls = LivePasses._drop_lease, []

    def interrupted(self, pool_pass, key):
        drop(self, pool_pass, key)
        calls.append(key)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(LivePasses, "_drop_lease", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine.close()
    mine.close()
    again = open_pass(pool, loads)
    admission = again.request(keys(4, 5))
    loads.land_all()
    admission.wait()
    assert pool.charged_bytes == 2 * SLOT


def test_loads_that_were_lost_are_not_waited_for():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    lost = loads.fills[:]
    loads.fills.clear()
    mine.close()
    mine.forget_loads()
    again = open_pass(pool, loads)
    admission = again.request(keys(0, 1))
    loads.land_all()
    admission.wait()
    # They come after all: their slots are used again, and not those of the chunks read since.
    for fill in lost:
        fill.out[:] = -1
        fill.finish(None)
    rows = pool.region(A).rows
    assert [rows[row, 0] for row in again.first_rows(keys(0, 1))] == [0, 1]


def test_a_forked_child_is_refused(monkeypatch):
    pool = ChunkPool(2 * SLOT)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ClosedError, match="spawn"):
        open_pass(pool, Loads())


class Counts(dict):
    """Leases of a pass; an interrupt comes as the first of them is given back."""

    is_armed = True

    def __delitem__(self, key):
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt
        super().__delitem__(key)


def test_an_interrupt_as_a_lease_is_given_back_leaves_no_count_wrong():
    pool, loads = ChunkPool(2 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0, 1))
    loads.land_all()
    mine.leases = Counts(mine.leases)
    with pytest.raises(KeyboardInterrupt):
        mine.release(keys(0, 1))
    mine.close()
    assert (pool.n_in_use, pool.n_passes) == (0, 0)
    again = open_pass(pool, loads)
    again.request(keys(2, 3))
    loads.land_all()
    assert len(again.first_rows(keys(2, 3))) == 2


@pytest.mark.parametrize("step", ["ask", "release", "end", "land"])
def test_an_interrupt_in_a_step_lets_go_of_the_lock(monkeypatch, step):
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    kept = []
    with monkeypatch.context() as patch:
        patch.setattr(LivePasses, step, interrupted)
        calls = {
            "ask": lambda: mine.request(keys(1)),
            "release": lambda: mine.release(keys(0)),
            "end": mine.close,
            "land": loads.land,
        }
        try:
            calls[step]()
        except KeyboardInterrupt as error:
            # Whoever keeps the traceback must not keep the lock with it.
            kept.append(error)
    assert kept
    assert not pool._lock.locked()
    assert pool.n_passes == 1


def test_another_pass_reads_a_load_again_that_an_interrupt_lost():
    pool, lost, loads = ChunkPool(8 * SLOT), Loads(), Loads()
    mine, theirs = open_pass(pool, lost), open_pass(pool, loads, name="val")
    mine.request(keys(0, 1))
    admission = theirs.request(keys(1))
    mine.close()
    mine.forget_loads()
    assert loads.fills == []
    mine.forget_loads(shared=True)
    assert [fill.key for fill in loads.fills] == keys(1)
    loads.land_all()
    admission.wait()
    lost.land_all()
    row = theirs.first_rows(keys(1))[0]
    assert (pool.region(A).rows[row] == 1).all()


def test_an_interrupt_is_the_error_of_nobody():
    # Thread A (this one) gives room back, which lets B's chunk be loaded, and is interrupted.
    pool, loads, others = ChunkPool(2 * SLOT), Loads(), Interrupted(is_accepted=False)
    mine = open_pass(pool, loads, floor=1)
    mine.request(keys(0))
    mine.request(keys(5))
    loads.land_all()
    theirs = open_pass(pool, others, name="val", floor=1)
    others.is_due = False
    first = theirs.request(keys(1))
    others.land_all()
    first.wait()
    waiting = theirs.request(keys(2))
    others.is_due = True
    with pytest.raises(KeyboardInterrupt):
        mine.close()
    others.land_all()
    waiting.wait()
    assert theirs.first_rows(keys(2))


def test_an_error_at_the_hand_over_reaches_who_waits():
    def refuse(_fills):
        raise ClosedError("no threads here")

    pool = ChunkPool(2 * SLOT)
    mine = open_pass(pool, refuse)
    with pytest.raises(ClosedError, match="no threads here"):
        mine.request(keys(0))
    assert (pool.n_resident, len(mine.queue), mine.held_bytes) == (0, 0, 0)
