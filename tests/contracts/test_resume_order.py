"""The order is a permutation, and ranks share it: disjoint, complete, in equal steps."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.fake_space import FakeSpace
from tests.planning.oracle import OracleOrder, steps_left
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.rank_stream import TAILS

# Regular chunks with a shorter last one, and irregular ones, some without a valid draw.
regular = st.builds(
    lambda n_units, step, last: [step] * (n_units - 1) + [last],
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(1, 8),
)
irregular = st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any)
lengths = st.one_of(regular, irregular)
orders = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**70),
        "shuffle": st.booleans(),
        "block_chunks": st.integers(1, 20),
        "run_chunks": st.integers(1, 5),
    }
)
epochs = st.integers(0, 10**6)
# More lanes than units, and more than draws, are in it.
many_lanes = st.integers(1, 60)


def rows_of(draws):
    return list(map(tuple, draws.tolist()))


def all_draws(lengths):
    return [(unit, k) for unit, n in enumerate(lengths) for k in range(n)]


@settings(max_examples=150)
@given(lengths, orders, epochs, many_lanes)
def test_epoch_order_is_permutation(lengths, order, epoch, lanes):
    ledger = rows_of(Plan(FakeSpace(lengths), **order).draws(epoch, lanes=lanes))
    assert sorted(ledger) == all_draws(lengths)
    # Of nothing but the plan, the epoch and the lanes: not of what was drawn before, or of batches.
    other = Plan(FakeSpace(lengths), **order, batch_size=7, tail="drop")
    other.draws(epoch + 1)
    assert rows_of(other.draws(epoch, lanes=lanes)) == ledger


@settings(max_examples=100)
@given(lengths, orders, st.data())
def test_ranks_are_disjoint_complete_and_equal_and_keep_to_their_lanes(lengths, order, data):
    lanes, world_size = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    batch_size, tail = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(TAILS))
    plan = Plan(FakeSpace(lengths), **order, batch_size=batch_size, tail=tail)
    n_draws = sum(lengths)
    position = data.draw(st.integers(0, n_draws))
    n_steps = steps_left(n_draws, position, batch_size, world_size, tail)
    lane_of = lanes_by_hand(lengths, order, lanes)
    delivered = []
    for rank in range(world_size):
        segments = list(plan.segments(Cursor(3, position, lanes), rank, world_size))
        assert sum(len(segment.cuts) for segment in segments) == n_steps
        rows = [row for segment in segments for row in rows_of(segment.draws)]
        valid = [ok for segment in segments for ok in segment.valid.tolist()]
        mine = [row for row, ok in zip(rows, valid, strict=True) if ok]
        if lanes % world_size == 0:
            assert {lane_of[row] % world_size for row in mine} <= {rank}
        delivered += mine
    assert len(set(delivered)) == len(delivered)
    ledger = rows_of(plan.draws(3, lanes=lanes))
    rest = (n_draws - position) % (batch_size * world_size)
    lost = {"drop": rest, "short": rest if rest < world_size else 0}.get(tail, 0)
    assert set(delivered) == set(ledger[position : n_draws - lost])


def lanes_by_hand(lengths, order, lanes):
    """The lane of each draw."""
    by_hand = OracleOrder(lengths, epoch=3, lanes=lanes, **order)
    return {draw: lane for lane, drawn in enumerate(by_hand.lane_draws) for draw, _ in drawn}
