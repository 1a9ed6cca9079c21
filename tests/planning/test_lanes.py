import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.fake_space import FakeSpace
from torchdata_insitu.planning.draw_order import DrawOrder
from torchdata_insitu.planning.lanes import Lane
from torchdata_insitu.planning.run_lengths import RunLengths


def lanes_of(lengths, n_lanes, block_chunks):
    order = DrawOrder.of_epoch(
        RunLengths.encode(lengths), seed=1, epoch=0, shuffle=True, run_chunks=1
    )
    return [
        Lane(order, number=number, n_lanes=n_lanes, block_chunks=block_chunks)
        for number in range(n_lanes)
    ]


def block_sizes(lane):
    return [np.diff(lane.block_pieces(block)).item() for block in range(lane.n_blocks)]


def test_blocks_of_one_lane_double_up_to_block_chunks():
    (lane,) = lanes_of([10] * 100, 1, 16)
    assert block_sizes(lane) == [2, 4, 8, 16, 16, 16, 16, 16, 6]


def test_later_lanes_begin_with_larger_blocks():
    lanes = lanes_of([10] * 400, 4, 32)
    assert [block_sizes(lane)[:4] for lane in lanes] == [
        [1, 2, 4, 8],
        [2, 4, 8, 16],
        [3, 6, 12, 24],
        [4, 8, 16, 32],
    ]


@pytest.mark.parametrize("block_chunks", [1, 2, 3, 7, 8, 9, 1000])
def test_no_block_is_larger_than_block_chunks(block_chunks):
    for lane in lanes_of([2] * 60, 2, block_chunks):
        sizes = block_sizes(lane)
        assert max(sizes) <= block_chunks
        assert sum(sizes) == lane.n_pieces


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.integers(1, 7),
    st.integers(1, 12),
)
def test_lanes_and_blocks_cover_the_order_once(lengths, n_lanes, block_chunks):
    lanes = lanes_of(lengths, n_lanes, block_chunks)
    n_draws = [lane.n_draws for lane in lanes]
    assert sum(n_draws) == sum(lengths)
    assert max(n_draws) - min(n_draws) <= 1
    assert sorted(n_draws, reverse=True) == n_draws
    space = FakeSpace(lengths)
    drawn = []
    for lane in lanes:
        bounds = [lane.block_bounds(block) for block in range(lane.n_blocks)]
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][: len(bounds)]
        assert sum(stop - start for start, stop in bounds) == lane.n_draws
        for block, (start, stop) in enumerate(bounds):
            assert start < stop
            rows = lane.block_draws(space, block, shuffle_key=(0, 0))
            assert len(rows) == stop - start
            assert set(rows[:, 0].tolist()) == set(lane.block_units(block).tolist())
            drawn += map(tuple, rows.tolist())
    assert sorted(drawn) == [(unit, k) for unit, n in enumerate(lengths) for k in range(n)]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_many_blocks_at_once_are_those_one_by_one(lengths, n_lanes, block_chunks):
    for lane in lanes_of(lengths, n_lanes, block_chunks):
        blocks = np.arange(lane.n_blocks)
        bounds = [lane.block_bounds(block) for block in blocks.tolist()]
        assert lane.first_draws(blocks).tolist() == [start for start, _ in bounds]
        assert lane.first_draws(blocks + 1).tolist() == [stop for _, stop in bounds]
        indices = np.arange(lane.n_draws)
        expected = [block for block, (start, stop) in enumerate(bounds) for _ in range(start, stop)]
        assert lane.blocks_at(indices).tolist() == expected
        assert [lane.block_at(index) for index in indices.tolist()] == expected


def test_draws_keep_their_order_without_a_key():
    (lane,) = lanes_of([3, 3], 1, 8)
    rows = lane.block_draws(FakeSpace([3, 3]), 0, shuffle_key=None)
    assert rows[:, 1].tolist() == [0, 1, 2]


def test_more_lanes_than_draws_leaves_lanes_empty():
    lanes = lanes_of([2, 1], 5, 4)
    assert [lane.n_draws for lane in lanes] == [1, 1, 1, 0, 0]
    assert [lane.n_blocks for lane in lanes] == [1, 1, 1, 0, 0]
