import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.arrays import make_array
from tests.planning.fake_space import FakeSpace
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan


def most_held(plan, *, epoch=0, lanes=1, rank=0, world_size=1):
    held, most = set(), [0] * len(plan.space.array_names)
    for segment in plan.segments(Cursor(epoch, 0, lanes), rank, world_size):
        held |= set(segment.admit)
        for array in range(len(most)):
            most[array] = max(most[array], sum(key.source == array for key in held))
        held -= set(segment.release)
    return most


@st.composite
def plans(draw):
    length = draw(st.integers(20, 120))
    views = {
        "x": make_array("a", length, draw(st.integers(1, 12))).window(
            *draw(st.lists(st.integers(-8, 8), min_size=1, max_size=3, unique=True))
        ),
        "y": make_array("b", length, draw(st.integers(1, 30))),
    }
    return Plan(
        AnchorSpace(views),
        seed=draw(st.integers(0, 5)),
        shuffle=draw(st.booleans()),
        block_chunks=draw(st.integers(1, 24)),
        run_chunks=draw(st.integers(1, 12)),
        batch_size=3,
    )


@settings(max_examples=150)
@given(plans(), st.integers(1, 5), st.integers(1, 4), st.data())
def test_no_epoch_ever_holds_more(plan, lanes, world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))
    floor = plan.floor_chunks(rank, world_size, lanes)
    for epoch in range(2):
        most = most_held(plan, epoch=epoch, lanes=lanes, rank=rank, world_size=world_size)
        assert all(held <= bound for held, bound in zip(most, floor, strict=True))


def test_without_offsets_a_block_is_its_chunks():
    plan = Plan(AnchorSpace({"x": make_array("a", 1000, 10)}), block_chunks=8)
    assert plan.floor_chunks() == (8,)
    assert plan.floor_chunks(0, world_size=1, lanes=4) == (32,)
    assert plan.floor_chunks(0, world_size=4) == (8,)


def test_a_split_smaller_than_a_block_bounds_the_floor():
    plan = Plan(AnchorSpace({"x": make_array("a", 30, 10)}), block_chunks=16)
    assert plan.floor_chunks() == (3,)
    assert plan.floor_chunks(0, world_size=4) == (2,)


def test_a_window_costs_one_chunk_a_run_and_not_one_a_unit():
    space = AnchorSpace({"x": make_array("a", 2400, 24).window(0, 1)})
    assert Plan(space, block_chunks=16, run_chunks=1).floor_chunks() == (32,)
    # Sixteen units are at most three whole runs of four and the ends of two more.
    assert Plan(space, block_chunks=16, run_chunks=4).floor_chunks() == (21,)
    assert Plan(space, block_chunks=16, shuffle=False).floor_chunks() == (17,)


def test_a_short_last_run_inside_a_block_is_counted():
    space = AnchorSpace({"x": make_array("a", 24 * 9, 24).window(0, 1)})
    plan = Plan(space, block_chunks=6, run_chunks=4)
    worst = max(
        most_held(Plan(space, seed=seed, block_chunks=6, run_chunks=4))[0] for seed in range(60)
    )
    assert worst <= plan.floor_chunks()[0]


@pytest.mark.parametrize("run_chunks", [1, 3, 20])
def test_empty_units_do_not_lower_the_floor(run_chunks):
    plan = Plan(FakeSpace([2, 0, 0] * 8, reach=1), block_chunks=4, run_chunks=run_chunks)
    assert max(most_held(plan)) <= plan.floor_chunks()[0]
