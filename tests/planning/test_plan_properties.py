"""Plans over arrays of any chunking, with any views and splits, against the rules by hand."""

import bisect
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, reject
from hypothesis import strategies as st

from tests.depths import examples
from tests.planning import oracle
from tests.planning.arrays import make_array
from tests.planning.naive_plan import LEAST_CELLS, NaiveSpace, n_reads
from tests.planning.plan_cases import cases, gaps, sets_of_splits, some_splits, some_views
from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.rank_stream import TAILS


def batches_of(segments):
    """Batches as (anchor, valid), and the global position after each."""
    batches, positions, rows = [], [], []
    for segment in segments:
        own = rows_of([segment])
        start = 0
        for cut in segment.cuts:
            batches.append([*rows, *own[start : cut.stop]])
            positions.append(cut.position)
            start, rows = cut.stop, []
        rows += own[start:]
    assert not rows
    return batches, positions


def rows_of(segments):
    """Draws as (anchor, valid)."""
    return [
        (anchor, valid)
        for segment in segments
        for anchor, valid in zip(segment.draws[:, 0].tolist(), segment.valid.tolist(), strict=True)
    ]


@st.composite
def spaces(draw):
    views = draw(some_views())
    split, ranges = draw(some_splits(views))
    return views, split, NaiveSpace(views.length, views.starts, views.offsets, ranges)


@examples(80, spaces())
def test_units_are_valid_anchors_in_cells_of_common_edges(case):
    views, split, naive = case
    if not naive.anchors:
        with pytest.raises(PlanError, match="no valid anchor"):
            AnchorSpace(views.views, split)
        return
    space = AnchorSpace(views.views, split)
    lengths = space.unit_lengths().expand().tolist()
    units = [space.draws(unit, 0, n)[:, 0].tolist() for unit, n in enumerate(lengths)]
    assert units == naive.units
    assert list(itertools.chain(*units)) == naive.anchors
    assert space.n_dropped_edges == naive.n_dropped
    assert space.grid.edges.all_edges().tolist() == [*naive.grid, views.length]
    assert space.grid.common == naive.common
    assert space.grid.reread == pytest.approx(naive.reread)
    if naive.common and split is None:
        assert space.grid.reread == (1.0,) * len(views.names)


@st.composite
def grids(draw):
    """Steps over an axis that has about as many common cells as a plan needs of them."""
    steps = draw(st.lists(st.integers(1, 9), min_size=2, max_size=3))
    n_cells = draw(st.integers(LEAST_CELLS - 1, LEAST_CELLS + 1))
    length = max(1, math.lcm(*steps) * n_cells + draw(st.sampled_from([0, -1, 1])))
    lost = draw(st.integers(0, min(2, length - 1)))
    return length, steps, lost


@examples(80, grids())
def test_cells_are_common_ones_if_four_of_them_are_drawn(case):
    length, steps, lost = case
    arrays = [make_array(name, length, step) for name, step in zip("abc", steps, strict=False)]
    starts = [list(range(0, length, step)) for step in steps]
    naive = NaiveSpace(length, starts, [[0, lost]] * len(steps), [(0, length)])
    space = AnchorSpace({array.name: array.window(0, lost) for array in arrays})
    assert space.grid.edges.all_edges().tolist() == [*naive.grid, length]
    assert space.grid.common == naive.common
    assert space.grid.reread == pytest.approx(naive.reread)


@examples(80, spaces(), st.integers(1, 9))
def test_chunks_of_units_and_draws_are_those_of_their_samples(case, n):
    views, split, naive = case
    assume(naive.anchors)
    space = AnchorSpace(views.views, split)
    firsts = range(0, space.n_units, max(1, space.n_units // 8))
    bounds = space.chunks_bound(n)
    for first in firsts:
        units = np.arange(first, min(first + n, space.n_units))
        anchors = [anchor for unit in units for anchor in naive.units[unit]]
        some = np.array(anchors[::3])[:, None]
        for found, expected in (
            (space.chunks(units), naive.chunks(anchors)),
            (space.chunks_of_draws(some), naive.chunks(anchors[::3])),
        ):
            rows = list(map(tuple, found.tolist()))
            assert len(set(rows)) == len(rows)
            assert {(number, chunk) for number, chunk, tile in rows if tile == 0} == expected
        counts = Counter(number for number, _ in naive.chunks(anchors))
        assert all(counts[number] <= bound for number, bound in enumerate(bounds))


@st.composite
def split_views(draw):
    views = draw(some_views(least_length=4, most_reach=30))
    gap = draw(gaps)
    splits = draw(sets_of_splits(views, gap))
    if splits is None:
        reject()
    return views, splits, gap


def _distance(anchor, others):
    """Samples to the nearest of sorted anchors."""
    place = bisect.bisect(others, anchor)
    return min(
        (abs(anchor - other) for other in others[max(0, place - 1) : place + 1]), default=math.inf
    )


@examples(100, split_views())
def test_no_sample_is_read_for_two_splits_unless_it_was_counted(case):
    views, splits, gap = case
    assert splits.gap == (views.span if gap == "auto" else gap)
    owned = [set(itertools.chain(*(range(*pair) for pair in split.ranges))) for split in
             splits.values()]  # fmt: skip
    assert sum(map(len, owned)) == len(set().union(*owned)) == sum(s.size for s in splits.values())
    anchors = {name: views.anchors(split.ranges) for name, split in splits.items()}
    read = {name: views.samples_read(own) for name, own in anchors.items()}
    if splits.gap >= views.span:
        for name, other in itertools.combinations(splits, 2):
            assert not read[name] & read[other]
        assert {split.crossing for split in splits.values()} == {0}
    for name, split in splits.items():
        others = sorted(a for other in splits if other != name for a in anchors[other])
        crossing = {a for a in anchors[name] if _distance(a, others) <= views.span}
        assert split.crossing == len(crossing)
        # An anchor that is not counted reads nothing that another split reads.
        alone = views.samples_read(set(anchors[name]) - crossing)
        assert not any(alone & read[other] for other in splits if other != name)
        half = 0
        for starts in views.starts:
            for start, stop in itertools.pairwise([*starts, views.length]):
                used = sum(max(0, min(stop, b) - max(start, a)) for a, b in split.ranges)
                half += 0 < used < stop - start
        assert split.half_used == half


@examples(60, cases())
def test_a_rank_hands_out_its_positions_of_the_ledger(case):
    ledger = case.naive.draws
    assert sorted(ledger) == case.naive.space.anchors
    epoch, lanes, start = case.cursor.epoch, case.cursor.lanes, case.cursor.position
    assert case.plan.draws(epoch, lanes=lanes)[:, 0].tolist() == ledger
    delivered, n_steps = [], set()
    for rank in range(case.world_size):
        expected, after = oracle.batches(
            len(ledger),
            start,
            batch=case.plan.batch_size,
            world=case.world_size,
            rank=rank,
            tail=case.plan.tail,
        )
        batches, positions = batches_of(case.segments(rank))
        assert batches == [[(ledger[q], valid) for q, valid in batch] for batch in expected]
        assert positions == after
        n_steps.add(len(batches))
        delivered += [anchor for batch in batches for anchor, valid in batch if valid]
    assert n_steps == {case.plan.steps(start, case.world_size)}
    assert sorted(delivered) == sorted(ledger[start : case.stop])
    n_left_out = len(ledger) - case.stop
    assert n_left_out == 0 or case.plan.tail in {"drop", "short"}
    assert n_left_out < case.world_size * (case.plan.batch_size if case.plan.tail == "drop" else 1)


@examples(60, cases())
def test_chunks_are_held_while_their_blocks_are_open_and_read_as_planned(case):
    expected = case.naive.open_chunks(case.cursor.position, case.stop, case.rank, case.world_size)
    floor = case.plan.floor_chunks(case.rank, case.world_size, case.cursor.lanes)
    held, place, reads = set(), 0, Counter()
    for segment in case.segments():
        admitted = {(key.source, key.sample_run) for key in segment.admit}
        assert len(admitted) == len(segment.admit)
        assert not admitted & held
        held |= admitted
        reads.update(number for number, _ in admitted)
        assert case.naive.space.chunks(segment.draws[:, 0].tolist()) <= held
        for _ in range(int(segment.valid.sum())):
            assert held == expected[place]
            place += 1
        counts = Counter(number for number, _ in held)
        assert all(counts[number] <= most for number, most in enumerate(floor))
        released = {(key.source, key.sample_run) for key in segment.release}
        assert released <= held
        held -= released
    assert not held
    assert place == len(expected)
    planned = case.plan.reads(case.rank, **case.place)
    assert planned == {
        name: reads[number] * stored
        for number, (name, stored) in enumerate(
            zip(case.views.names, case.views.stored, strict=True)
        )
    }
    if expected:
        by_hand = Counter()
        for (number, _), n in n_reads(expected).items():
            by_hand[number] += n
        assert by_hand == reads


@examples(40, cases(), st.data())
def test_the_first_batches_need_at_least_what_their_draws_read(case, data):
    n_steps = case.plan.steps(case.cursor.position, case.world_size)
    n = data.draw(st.integers(0, n_steps + 1))
    batches, _ = batches_of(case.segments())
    first = [anchor for batch in batches[:n] for anchor, _ in batch]
    needed = Counter(number for number, _ in case.naive.space.chunks(first))
    whole = case.plan.reads(case.rank, **case.place)
    part = case.plan.reads(case.rank, **case.place, n_batches=n)
    for number, (name, stored) in enumerate(zip(case.views.names, case.views.stored, strict=True)):
        assert needed[number] * stored <= part[name] <= whole[name]
    if n >= n_steps:
        assert part == whole


@examples(40, cases(from_start=True))
def test_a_pass_resumed_at_any_segment_is_the_rest_of_it(case):
    segments = list(case.segments())
    for number in range(0, len(segments), max(1, len(segments) // 6)):
        segment = segments[number]
        rest = list(case.plan.segments(segment.cursor, case.rank, case.world_size))
        assert rows_of(rest) == rows_of(segments[number:])
        assert [s.cuts for s in rest] == [s.cuts for s in segments[number:]]
        held = set()
        for s in rest:
            held |= {(key.source, key.sample_run) for key in s.admit}
            assert case.naive.space.chunks(s.draws[:, 0].tolist()) <= held
            held -= {(key.source, key.sample_run) for key in s.release}
        assert not held


@examples(40, cases(from_start=True))
def test_a_pass_resumed_after_any_batch_is_the_rest_of_it(case):
    batches, positions = batches_of(case.segments())
    for n, position in list(enumerate(positions, 1))[:: max(1, len(positions) // 6)]:
        cursor = Cursor(case.cursor.epoch, position, case.cursor.lanes)
        rest, after = batches_of(case.plan.segments(cursor, case.rank, case.world_size))
        assert rest == batches[n:]
        assert after == positions[n:]


@examples(40, cases(from_start=True), st.data())
def test_the_global_order_stays_when_ranks_and_batches_change(case, data):
    ledger, position, delivered = case.naive.draws, 0, []
    for is_last in (False, False, True):
        world_size = data.draw(st.integers(1, 5))
        batch_size = data.draw(st.integers(1, 9))
        tail = "exact" if is_last else data.draw(st.sampled_from(TAILS))
        plan = _replaced(case.plan, batch_size, tail)
        n_left = plan.steps(position, world_size)
        n_steps = n_left if is_last else data.draw(st.integers(0, max(0, n_left - 1)))
        cursor = Cursor(case.cursor.epoch, position, case.cursor.lanes)
        window = batch_size * world_size
        for rank in range(world_size):
            batches, _ = batches_of(plan.segments(cursor, rank, world_size))
            for step, batch in enumerate(batches[:n_steps]):
                start = position + step * window
                mine = [
                    ledger[q]
                    for q in range(start, min(start + window, len(ledger)))
                    if q % world_size == rank
                ]
                assert [anchor for anchor, valid in batch if valid] == mine
                delivered += mine
        position = min(len(ledger), position + n_steps * window)
    assert sorted(delivered) == case.naive.space.anchors


def _replaced(plan, batch_size, tail):
    return Plan(
        plan.space,
        seed=plan.seed,
        shuffle=plan.shuffle,
        block_chunks=plan.block_chunks,
        run_chunks=plan.run_chunks,
        batch_size=batch_size,
        tail=tail,
    )


@examples(60, cases(from_start=True))
def test_an_epoch_without_batches_is_refused_and_no_other(case):
    if case.plan.steps(0, case.world_size):
        case.plan.check(case.world_size)
        return
    with pytest.raises(PlanError) as caught:
        case.plan.check(case.world_size)
    for fact in (case.plan.n_draws, case.plan.batch_size, case.world_size, case.plan.tail):
        assert str(fact) in str(caught.value)


def test_all_ranks_together_read_each_chunk_once_where_nothing_makes_them_share():
    """One array, no offsets, and no lane that begins inside a unit: the least there can be."""
    for n_chunks, lanes in itertools.product((8, 12), (1, 2, 4)):
        space = AnchorSpace({"x": make_array("a", n_chunks * 5, 5)})
        plan = Plan(space, block_chunks=2, batch_size=5, tail="exact")
        assert sum(plan.reads(rank, world_size=lanes)["a"] for rank in range(lanes)) == n_chunks
