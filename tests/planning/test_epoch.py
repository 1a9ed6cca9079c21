import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.fake_space import FakeSpace
from tests.planning.oracle import OracleOrder
from torchdata_insitu.planning.plan import Plan

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=14).filter(any)


def store_places(lengths, **settings):
    plan = Plan(FakeSpace(lengths), **settings)
    firsts = np.cumsum([0, *lengths])
    return plan, firsts


def test_order_of_one_lane_never_changes():
    plan, firsts = store_places([4, 4, 4, 4, 3], seed=7, block_chunks=2)
    draws = plan.draws(epoch=1)
    assert (firsts[draws[:, 0]] + draws[:, 1]).tolist() == [
        18,
        17,
        16,
        5,
        6,
        10,
        4,
        8,
        11,
        9,
        7,
        14,
        12,
        2,
        1,
        15,
        13,
        3,
        0,
    ]


def test_order_of_two_lanes_never_changes():
    plan, firsts = store_places([4, 4, 4, 4, 3], seed=7, block_chunks=2)
    draws = plan.draws(epoch=1, lanes=2)
    assert (firsts[draws[:, 0]] + draws[:, 1]).tolist() == [
        18,
        11,
        17,
        1,
        16,
        12,
        5,
        15,
        6,
        2,
        10,
        14,
        4,
        13,
        8,
        3,
        9,
        0,
        7,
    ]


def test_order_of_many_units_never_changes():
    lengths = [24] * 365 + [5]
    plan, firsts = store_places(lengths, seed=2024, block_chunks=16, run_chunks=4)
    draws = plan.draws(epoch=5, lanes=3)
    places = (firsts[draws[:, 0]] + draws[:, 1]).astype("<i8")
    assert hashlib.blake2b(places.tobytes(), digest_size=8).hexdigest() == "ce53d3ef54b638f0"


@settings(max_examples=150)
@given(LENGTHS, st.integers(1, 6), st.data())
def test_ledger_is_that_of_the_oracle(lengths, lanes, data):
    chosen = {
        "seed": data.draw(st.integers(0, 3)),
        "shuffle": data.draw(st.booleans()),
        "block_chunks": data.draw(st.integers(1, 9)),
        "run_chunks": data.draw(st.integers(1, 4)),
    }
    plan = Plan(FakeSpace(lengths), **chosen)
    oracle = OracleOrder(lengths, epoch=2, lanes=lanes, **chosen)
    ledger = list(map(tuple, plan.draws(epoch=2, lanes=lanes).tolist()))
    assert ledger == oracle.draws()
    assert sorted(ledger) == [(unit, k) for unit, n in enumerate(lengths) for k in range(n)]
    start = data.draw(st.integers(0, plan.n_draws))
    stop = data.draw(st.integers(start, plan.n_draws))
    part = plan.draws(2, start, stop, lanes=lanes)
    assert list(map(tuple, part.tolist())) == ledger[start:stop]


def test_unshuffled_order_of_one_lane_is_that_of_the_store():
    plan, firsts = store_places([3, 0, 2, 4], shuffle=False, block_chunks=2)
    draws = plan.draws()
    assert (firsts[draws[:, 0]] + draws[:, 1]).tolist() == list(range(9))
