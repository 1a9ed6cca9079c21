from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.fake_space import FakeSpace
from tests.planning.oracle import OracleOrder, batches, open_chunks
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.rank_stream import TAILS


@st.composite
def passes(draw):
    """A plan, the same order by the oracle, and a rank's pass from some position."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=14).filter(any))
    space = FakeSpace(lengths, reach=draw(st.integers(0, 2)))
    settings = {
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
        "block_chunks": draw(st.integers(1, 9)),
        "run_chunks": draw(st.integers(1, 4)),
    }
    plan = Plan(
        space, **settings, batch_size=draw(st.integers(1, 5)), tail=draw(st.sampled_from(TAILS))
    )
    epoch, lanes = draw(st.integers(0, 2)), draw(st.integers(1, 5))
    world = draw(st.integers(1, 6))
    rank = draw(st.integers(0, world - 1))
    position = draw(st.integers(0, plan.n_draws))
    oracle = OracleOrder(lengths, epoch=epoch, lanes=lanes, **settings)
    return plan, oracle, Cursor(epoch, position, lanes), rank, world


def handed_out(segments):
    return [
        (tuple(row), valid)
        for segment in segments
        for row, valid in zip(segment.draws.tolist(), segment.valid.tolist(), strict=True)
    ]


@settings(max_examples=150)
@given(passes())
def test_draws_and_batches_are_those_of_the_ledger(case):
    plan, oracle, cursor, rank, world = case
    segments = list(plan.segments(cursor, rank, world))
    expected, after = batches(
        plan.n_draws,
        cursor.position,
        batch=plan.batch_size,
        world=world,
        rank=rank,
        tail=plan.tail,
    )
    rows = [(oracle.draw(q), valid) for batch in expected for q, valid in batch]
    assert handed_out(segments) == rows
    ends, start = [], 0
    for segment in segments:
        ends += [(start + cut.stop, cut.position) for cut in segment.cuts]
        start += len(segment.draws)
    assert ends == list(zip(np.cumsum([len(batch) for batch in expected]), after, strict=True))
    assert plan.steps(cursor.position, world) == len(expected)


@settings(max_examples=150)
@given(passes())
def test_chunks_held_are_those_of_the_open_blocks(case):
    plan, oracle, cursor, rank, world = case
    stop = plan.n_draws - plan.left_out(cursor.position, world)
    stream, opened = open_chunks(
        plan.space, oracle, cursor.position, rank=rank, world=world, stop=stop
    )
    held, place, reads = set(), 0, Counter()
    bound = plan.floor_chunks(rank, world, cursor.lanes)
    for segment in plan.segments(cursor, rank, world):
        assert not held & set(segment.admit)
        assert len(set(segment.admit)) == len(segment.admit)
        held |= set(segment.admit)
        reads.update(key.source for key in segment.admit)
        for _ in range(int(segment.valid.sum())):
            assert held == opened[place]
            place += 1
        for array, most in enumerate(bound):
            assert sum(key.source == array for key in held) <= most
        assert set(segment.release) <= held
        held -= set(segment.release)
    assert not held
    assert place == len(stream)
    counted = plan.reads(
        rank, world_size=world, epoch=cursor.epoch, lanes=cursor.lanes, position=cursor.position
    )
    assert counted == {"own": 2 * reads[0], "coarse": 5 * reads[1]}


@settings(max_examples=100)
@given(passes())
def test_a_segment_ends_only_where_a_lane_changes_block(case):
    plan, oracle, cursor, rank, world = case
    stop = plan.n_draws - plan.left_out(cursor.position, world)
    stream = [q for q in range(cursor.position, stop) if q % world == rank]
    borders = set()
    for lane in {q % oracle.lanes for q in stream}:
        turns = [q for q in stream if q % oracle.lanes == lane]
        for last, following in pairwise(turns):
            if oracle.block(last) != oracle.block(following):
                borders.add(stream.index(last) + 1)
    segments = list(plan.segments(cursor, rank, world))
    ends = np.cumsum([len(segment.draws) for segment in segments])[:-1].tolist()
    assert ends == sorted(borders)


@settings(max_examples=100)
@given(passes())
def test_a_pass_restored_from_any_segment_is_the_uninterrupted_one(case):
    plan, _, cursor, rank, world = case
    segments = list(plan.segments(cursor, rank, world))
    for number, segment in enumerate(segments):
        assert segment.after == (
            segments[number + 1].cursor
            if number + 1 < len(segments)
            else Cursor(cursor.epoch, plan.n_draws, cursor.lanes)
        )
        restored = list(plan.segments(segment.cursor, rank, world))
        assert handed_out(restored) == handed_out(segments[number:])
        held = set()
        for old, new in zip(segments[number:], restored, strict=True):
            assert (old.cursor, old.after, old.cuts) == (new.cursor, new.after, new.cuts)
            held |= set(new.admit)
            held -= set(new.release)
        assert not held
    assert not list(plan.segments(Cursor(cursor.epoch, plan.n_draws, cursor.lanes), rank, world))
