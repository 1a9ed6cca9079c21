import math

from hypothesis import given
from hypothesis import strategies as st

from tests.planning.fake_space import FakeSpace
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.lane_turns import lane_turns
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.rank_stream import RankStream


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_turns_are_the_positions_of_the_rank(n_lanes, world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))
    plan = Plan(FakeSpace([3, 5, 4, 2, 6]), block_chunks=2, batch_size=2)
    start = data.draw(st.integers(0, plan.n_draws))
    stream = RankStream.of(
        Cursor(0, start, n_lanes),
        n_draws=plan.n_draws,
        batch_size=2,
        rank=rank,
        world_size=world_size,
        tail="exact",
    )
    common = math.gcd(n_lanes, world_size)
    met = {}
    for turns in lane_turns(plan.epoch(0, n_lanes), stream):
        assert turns.lane.number % common == rank % common
        for turn in range(turns.n_turns):
            index = turns.first_index + turn * turns.index_step
            place = turns.place_after(turn) - 1
            met[place] = index * n_lanes + turns.lane.number
            block = turns.block_of_turn(turn)
            first, last = turns.turns_in_block(block)
            assert first <= turn < last
            assert turns.lane.block_at(index) == block
    assert met == {place: stream.position(place) for place in range(stream.n_valid)}


def test_a_rank_goes_through_its_own_lanes_only_if_the_world_size_divides_the_lanes():
    plan = Plan(FakeSpace([10] * 12), block_chunks=2, batch_size=5)
    epoch = plan.epoch(0, 6)
    met = [
        [
            turns.lane.number
            for turns in lane_turns(
                epoch,
                RankStream.of(
                    Cursor(0, 0, 6),
                    n_draws=120,
                    batch_size=5,
                    rank=rank,
                    world_size=3,
                    tail="drop",
                ),
            )
        ]
        for rank in range(3)
    ]
    assert met == [[0, 3], [1, 4], [2, 5]]
