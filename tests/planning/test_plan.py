import json
import pickle
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.arrays import make_array
from tests.planning.fake_space import FakeSpace
from torchdata_insitu.errors import PlanError, StateError
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.rank_stream import TAILS


def batches_of(plan, cursor, rank, world_size):
    """Batches of a rank, as (draws, valid), and the global position after each."""
    batches, positions, rows = [], [], []
    for segment in plan.segments(cursor, rank, world_size):
        marked = list(zip(map(tuple, segment.draws.tolist()), segment.valid.tolist(), strict=True))
        start = 0
        for cut in segment.cuts:
            batches.append([*rows, *marked[start : cut.stop]])
            positions.append(cut.position)
            start, rows = cut.stop, []
        rows += marked[start:]
    assert not rows
    return batches, positions


def take(plan, cursor, world_size, n_steps):
    """Valid draws that all ranks hand out in some steps, and where they stand after them."""
    drawn, after = [], set()
    for rank in range(world_size):
        batches, positions = batches_of(plan, cursor, rank, world_size)
        assert len(batches) == plan.steps(cursor.position, world_size)
        drawn += [draw for batch in batches[:n_steps] for draw, valid in batch if valid]
        after.add([cursor.position, *positions][n_steps])
    (position,) = after
    return drawn, position


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=14).filter(any),
    st.integers(1, 6),
    st.booleans(),
    st.data(),
)
def test_each_draw_comes_once_whatever_ranks_and_batches_an_epoch_has(
    lengths, lanes, shuffle, data
):
    space, drawn, position = FakeSpace(lengths, reach=1), [], 0
    for last in (False, False, False, True):
        plan = Plan(
            space,
            seed=5,
            shuffle=shuffle,
            block_chunks=3,
            run_chunks=2,
            batch_size=data.draw(st.integers(1, 5)),
            tail="exact" if last else data.draw(st.sampled_from(TAILS)),
        )
        world_size = data.draw(st.integers(1, 5))
        n_left = plan.steps(position, world_size)
        n_steps = n_left if last else data.draw(st.integers(0, max(0, n_left - 1)))
        rows, after = take(plan, Cursor(0, position, lanes), world_size, n_steps)
        ledger = plan.draws(0, position, after, lanes=lanes).tolist()
        assert sorted(rows) == sorted(map(tuple, ledger))
        drawn, position = drawn + rows, after
    assert position == plan.n_draws
    assert sorted(drawn) == [(unit, k) for unit, n in enumerate(lengths) for k in range(n)]


def test_equal_global_batches_are_the_same_whatever_the_world_size():
    space = FakeSpace([7] * 30)
    batches = []
    for world_size in (1, 2, 3, 4, 6, 12):
        plan = Plan(space, batch_size=12 // world_size, block_chunks=4)
        cursor, steps = Cursor(0, 24, 12), []
        for _ in range(3):
            rows, position = take(plan, cursor, world_size, 1)
            steps.append(frozenset(rows))
            cursor = Cursor(0, position, 12)
        batches.append(steps)
    assert all(steps == batches[0] for steps in batches)


def test_a_cursor_inside_a_batch_of_another_rank_is_refused():
    plan = Plan(FakeSpace([7] * 30), batch_size=12)
    with pytest.raises(StateError, match="between two batches"):
        plan.segments(Cursor(0, 25, 1, origin=24), 0, 2)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"block_chunks": 0}, "block_chunks is 0"),
        ({"block_chunks": 2.0}, "block_chunks is a whole number, not 2.0"),
        ({"run_chunks": -1}, "run_chunks is -1"),
        ({"batch_size": True}, "batch_size is a whole number, not True"),
        ({"seed": "a"}, "seed is a whole number, not 'a'"),
        ({"tail": "last"}, "tail='last' is unknown: choose one of 'short', 'drop'"),
    ],
)
def test_settings_that_are_no_counts_are_refused(settings, named):
    with pytest.raises(PlanError, match=named):
        Plan(FakeSpace([2, 2]), **settings)


def test_settings_are_resolved():
    plain, windows = FakeSpace([4] * 9), FakeSpace([4] * 9, reach=1)
    assert (Plan(plain).run_chunks, Plan(plain).tail) == (1, "short")
    assert (Plan(windows).run_chunks, Plan(windows, shuffle=False).tail) == (4, "exact")
    assert Plan(windows, block_chunks=2).run_chunks == 1
    assert Plan(plain, block_chunks=np.int64(3), seed=np.int32(2)).fingerprint()["seed"] == 2


def test_an_epoch_of_zero_batches_is_refused_with_its_numbers():
    plan = Plan(FakeSpace([2, 1]), batch_size=4, tail="drop")
    with pytest.raises(PlanError) as error:
        plan.check(2)
    for text in ("0 batches", "3 draws", "batches of 4", "2 ranks", "tail='drop'"):
        assert text in str(error.value)
    Plan(FakeSpace([2, 1]), batch_size=4, tail="exact").check(8)


@pytest.mark.parametrize(
    "tail, steps, left_out",
    [
        ("drop", 5, 3),
        ("short", 6, 0),
        ("pad", 6, 0),
        ("exact", 6, 0),
    ],
)
def test_steps_and_draws_left_out_are_counted(tail, steps, left_out):
    plan = Plan(FakeSpace([43]), batch_size=4, tail=tail)
    assert (plan.steps(0, 2), plan.left_out(0, 2)) == (steps, left_out)
    assert (plan.steps(40, 2), plan.steps(43, 2)) == (steps - 5, 0)


OUTSIDE = {
    "behind the end": lambda plan: plan.segments(Cursor(0, 5, 1), 0, 1),
    "before the start": lambda plan: plan.segments(Cursor(0, -1, 1), 0, 1),
    "before its batch": lambda plan: plan.segments(Cursor(0, 1, 1, origin=2), 0, 1),
    "no lanes": lambda plan: plan.segments(Cursor(0, 0, 0), 0, 1),
    "no such rank": lambda plan: plan.segments(Cursor(0, 0, 1), 1, 1),
    "backwards": lambda plan: plan.draws(0, 3, 2),
    "too many draws": lambda plan: plan.draws(0, 0, 5),
    "reads of no rank": lambda plan: plan.reads(2, world_size=2),
    "floor of no lanes": lambda plan: plan.floor_chunks(0, 1, 0),
}


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_places_outside_the_epoch_are_refused_at_once(call):
    with pytest.raises(PlanError):
        call(Plan(FakeSpace([2, 2])))


def test_fingerprint_is_small_plain_and_its_own():
    space = AnchorSpace({"x": make_array("t2m", 1000, 24).window(-1, 0)})
    plan = Plan(space, seed=7, block_chunks=8)
    fingerprint = plan.fingerprint()
    assert list(fingerprint) == [
        "order",
        "seed",
        "shuffle",
        "block_chunks",
        "run_chunks",
        "space",
        "n",
        "units",
        "arrays",
        "offsets",
    ]
    assert (fingerprint["order"], fingerprint["run_chunks"], fingerprint["n"]) == (1, 2, 999)
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert len(json.dumps(fingerprint)) < 400
    fingerprint["seed"] = 8
    assert plan.fingerprint()["seed"] == 7


def test_what_may_change_between_batches_is_not_in_the_fingerprint():
    space = FakeSpace([4] * 9)
    assert (
        Plan(space, batch_size=3, tail="pad").fingerprint()
        == Plan(space, batch_size=8).fingerprint()
    )


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"shuffle": False}, {"block_chunks": 8}, {"run_chunks": 2}],
)
def test_what_decides_the_order_is_in_the_fingerprint(changed):
    space = FakeSpace([4] * 9)
    assert Plan(space, **changed).fingerprint() != Plan(space).fingerprint()


def test_a_pickled_plan_goes_on_alike():
    plan = Plan(AnchorSpace({"x": make_array("a", 100, 7)}), seed=3, batch_size=4)
    before = plan.draws(2)
    copy = pickle.loads(pickle.dumps(plan))
    assert (copy.draws(2) == before).all()
    assert copy.fingerprint() == plan.fingerprint()
    assert len(pickle.dumps(Plan(FakeSpace([1] * 9)))) < 4096


def test_an_empty_space_has_no_batches():
    plan = Plan(FakeSpace([0, 0]))
    assert (plan.n_draws, plan.steps()) == (0, 0)
    assert not list(plan.segments(Cursor(0, 0, 1)))
    with pytest.raises(PlanError, match="0 batches: 0 draws"):
        plan.check()


def test_a_million_units_plan_quickly_in_little_memory():
    tracemalloc.start()
    began = time.perf_counter()
    space = AnchorSpace({"x": make_array("a", 24_000_000, 24).window(0, 1)})
    plan = Plan(space, batch_size=64)
    first = next(plan.segments(Cursor(0, 12_000_000, 8), 3, 8))
    took = time.perf_counter() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(first.draws)
    assert took < 5, f"{took:.2f} s"
    assert peak < 100e6, f"{peak / 1e6:.0f} MB"


def test_a_seek_costs_the_same_anywhere():
    plan = Plan(AnchorSpace({"x": make_array("a", 2_400_000, 24)}), batch_size=64)
    plan.draws(0, 0, 1)
    for position in (0, 1_200_000, 2_390_000):
        tracemalloc.start()
        next(plan.segments(Cursor(0, position, 1)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1e6
