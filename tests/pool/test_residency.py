import gc
import weakref

import numpy as np

from tests.pool.test_chunk_pool import SLOT, A, B, Loads, keys, open_pass, shape
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.pool.chunk_source import ChunkSource


def visit(pool_pass, loads, *runs, source=A):
    """Ask for chunks, read them, give them back; returns those that had to be loaded."""
    wanted = keys(*runs, source=source)
    admission = pool_pass.request(wanted)
    loaded = [fill.key.sample_run for fill in loads.fills]
    loads.land_all()
    admission.wait()
    pool_pass.release(wanted)
    return loaded


def resident_runs(pool, source=A):
    return sorted(r.key.sample_run for r in pool._residency if r.key.source == source)


def test_what_is_still_resident_is_not_loaded_again():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    assert visit(mine, loads, 0, 1) == [0, 1]
    mine.close()
    again = open_pass(pool, loads)
    assert visit(again, loads, 1, 2) == [2]
    assert (pool.n_hits, pool.n_evicted) == (1, 0)


def test_the_least_recently_used_chunk_goes_first():
    pool, loads = ChunkPool(3 * SLOT), Loads()
    mine = open_pass(pool, loads, floor=1)
    for run in (0, 1, 2, 0, 3):
        visit(mine, loads, run)
    assert resident_runs(pool) == [0, 2, 3]
    assert pool.n_evicted == 1


def test_a_leased_chunk_is_never_evicted():
    pool, loads = ChunkPool(3 * SLOT), Loads()
    mine = open_pass(pool, loads, floor=1)
    mine.request(keys(0))
    loads.land_all()
    for run in range(1, 9):
        visit(mine, loads, run)
    row = mine.first_rows(keys(0))[0]
    assert (pool.region(A).rows[row] == 0).all()
    assert resident_runs(pool) == [0, 7, 8]


def test_a_chunk_whose_pass_was_closed_on_the_way_is_kept_when_it_lands():
    pool, loads = ChunkPool(3 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(5))
    mine.close()
    assert pool.n_in_use == 1
    loads.land_all()
    assert (pool.n_resident, pool.n_in_use) == (1, 0)
    assert visit(open_pass(pool, loads), loads, 5) == []


def test_a_chunk_that_failed_is_not_kept():
    pool, loads = ChunkPool(3 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(5))
    loads.land(OSError("gone"))
    assert pool.n_resident == 0
    assert visit(mine, loads, 5) == [5]


def test_nothing_is_evicted_before_the_budget_is_used():
    pool, loads = ChunkPool(10 * SLOT), Loads()
    mine = open_pass(pool, loads, floor=1)
    for run in range(10):
        visit(mine, loads, run)
    assert (pool.n_resident, pool.n_evicted, pool.charged_bytes) == (10, 0, 10 * SLOT)


def test_memory_of_an_array_nobody_reads_any_more_goes_to_another():
    pool, loads = ChunkPool(6 * SLOT), Loads()
    first = open_pass(pool, loads, floor=1)
    for run in range(6):
        visit(first, loads, run)
    first.close()
    second = open_pass(pool, loads, floor=1, slots={B: shape("b", field=(8,))})
    for run in range(8):
        visit(second, loads, run, source=B)
        assert pool.charged_bytes <= 6 * SLOT
    assert (resident_runs(pool, A), resident_runs(pool, B)) == ([], [5, 6, 7])


def test_arrays_read_side_by_side_use_their_own_slots_again():
    # Exact order would take turns between the arrays and return pages with every chunk.
    pool, loads = ChunkPool(6 * SLOT), Loads()
    slots = {A: shape(), B: shape("b", field=(8,))}
    mine = open_pass(pool, loads, floor=1, slots=slots)
    touched = set()
    for run in range(50):
        wanted = [*keys(run % 10), *keys(run % 10, source=B)]
        mine.request(wanted)
        if run >= 10:
            touched |= {(r.key.source.array, r.slot) for r in pool._residency}
        loads.land_all()
        mine.release(wanted)
    assert {name for name, _ in touched} == {"a", "b"}
    assert len(touched) == 4


def test_random_traffic_over_arrays_of_many_sizes_keeps_to_the_budget():
    rng = np.random.default_rng(5)
    sources = [ChunkSource("store", str(n), "decode") for n in range(4)]
    slots = {s: shape(str(n), field=(4 * n + 1,), n_chunks=30) for n, s in enumerate(sources)}
    budget = 3 * sum(slot.slot_bytes for slot in slots.values())
    pool, loads = ChunkPool(budget), Loads()
    mine = open_pass(pool, loads, floor=1, slots=slots)
    for _ in range(1500):
        source = sources[rng.integers(4)]
        run = int(rng.integers(30))
        visit(mine, loads, run, source=source)
        assert pool.charged_bytes <= budget
        assert pool.n_in_use == 0
    assert pool.n_hits > 100
    assert pool.n_evicted > 100


def test_clearing_lets_go_of_what_nobody_leases():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    visit(mine, loads, 0, 1)
    mine.request(keys(2))
    loads.land_all()
    pool.clear()
    assert resident_runs(pool) == [2]
    assert pool.charged_bytes == 3 * SLOT
    pool.return_memory()
    assert pool.charged_bytes == SLOT
    assert visit(mine, loads, 0, 1, 2) == [0, 1]


def test_a_cache_that_cannot_help_is_not_thrown_away():
    # Chunk 9 is on its way for nobody, so that no two slots can be had; chunk 0 stays.
    pool, loads = ChunkPool(3 * SLOT), Loads()
    mine = open_pass(pool, loads, floor=1)
    visit(mine, loads, 0)
    mine.request(keys(8, 9))
    mine.close()
    big = open_pass(pool, Loads(), floor=1, slots={B: shape("b", field=(8,))})
    admission = big.request(keys(0, source=B))
    assert admission.n_left == 1
    assert resident_runs(pool, A) == [0, 8, 9]
    loads.land_all()
    assert (resident_runs(pool, A), resident_runs(pool, B)) == ([9], [0])


def test_counts_are_right_again_after_an_interrupt(monkeypatch):
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    visit(mine, loads, 0, 1, 2)
    residency = pool._residency
    monkeypatch.setattr(residency, "_kept_bytes", -1)
    residency._kept.clear()
    pool._is_torn = True
    pool.clear()
    assert (pool.n_resident, residency.kept_bytes, pool.charged_bytes) == (0, 0, 3 * SLOT)


def test_slots_of_loads_that_nobody_holds_any_more_are_used_again():
    pool, lost = ChunkPool(2 * SLOT), Loads()
    for _ in range(50):
        mine = open_pass(pool, lost)
        mine.request(keys(0, 1))
        assert len(lost.fills) == 2
        lost.fills.clear()
        mine.close()
        mine.forget_loads()
    loads = Loads()
    assert visit(open_pass(pool, loads), loads, 0, 1) == [0, 1]
    assert (pool.n_in_use, pool.charged_bytes) == (0, 2 * SLOT)


def test_a_load_that_answers_late_writes_into_nobodys_slot():
    pool, late, loads = ChunkPool(2 * SLOT), Loads(), Loads()
    mine = open_pass(pool, late)
    mine.request(keys(0, 1))
    mine.close()
    mine.forget_loads()
    again = open_pass(pool, loads)
    assert visit(again, loads, 0, 1) == [0, 1]
    again.request(keys(0, 1))
    for fill in late.fills:
        fill.out[...] = -1
        fill.finish(None)
    rows = pool.region(A).rows
    assert [rows[row, 0] for row in again.first_rows(keys(0, 1))] == [0, 1]
    assert pool.charged_bytes == 2 * SLOT


def test_what_was_leased_when_the_pool_was_cleared_is_not_kept():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    mine.request(keys(0))
    loads.land_all()
    mine.request(keys(1))
    pool.clear()
    loads.land_all()
    assert pool.n_in_use == 2
    mine.release(keys(0, 1))
    assert pool.n_resident == 0


def test_address_space_of_what_no_pass_reads_goes_with_the_memory():
    pool, loads = ChunkPool(8 * SLOT), Loads()
    first = open_pass(pool, loads)
    visit(first, loads, 0)
    first.close()
    second = open_pass(pool, loads, slots={B: shape("b")})
    pool.return_memory()
    assert list(pool._residency._slots) == [B]
    visit(second, loads, 0, source=B)
    assert visit(open_pass(pool, loads), loads, 0) == [0]


def test_a_kept_chunk_does_not_keep_its_pool_alive():
    pool, loads = ChunkPool(4 * SLOT), Loads()
    mine = open_pass(pool, loads)
    visit(mine, loads, 0, 1)
    mine.close()
    resident = pool._residency.find(keys(0)[0])
    gone = weakref.ref(pool)
    gc.disable()
    try:
        del pool, mine
        assert gone() is None
    finally:
        gc.enable()
    assert resident.is_ready
