"""The plan of the data as they were, made of the data as they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.arrays import make_array
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.outgrown_plans import OutgrownPlans
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.split import Split


def space_of(length, chunks, offsets=(0,), ranges=None):
    views = {
        name: make_array(name, length, step).window(*offsets)
        for name, step in zip("ab", chunks, strict=False)
    }
    split = None if ranges is None else Split("train", ranges, length)
    return AnchorSpace(views, split)


def plan_of(space, **options):
    return Plan(space, **{"seed": 3, "block_chunks": 4, "batch_size": 2, **options})


def outgrown(space, **options):
    return OutgrownPlans(plan_of(space, **options), space)


@settings(deadline=None, max_examples=60)
@given(
    before=st.integers(6, 40),
    more=st.integers(1, 60),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    offsets=st.sampled_from([(0,), (0, 1), (-2, 0, 3)]),
    shuffle=st.booleans(),
)
def test_the_plan_of_the_first_draws_is_the_plan_before_the_append(
    before, more, chunks, offsets, shuffle
):
    was = plan_of(space_of(before, chunks, offsets), shuffle=shuffle)
    found = outgrown(space_of(before + more, chunks, offsets), shuffle=shuffle)
    plan = found.saved_over({"plan": was.fingerprint()})
    if plan is None:
        # Few units of arrays that are chunked unlike: with more samples they are planned otherwise.
        assert max(chunks) % min(chunks)
        return
    assert plan.fingerprint() == was.fingerprint()
    assert plan.draws(1, lanes=3).tolist() == was.draws(1, lanes=3).tolist()
    assert plan.reads(1, world_size=2) == was.reads(1, world_size=2)


def test_a_split_of_several_ranges_is_cut_where_it_ended():
    was = plan_of(space_of(30, [4], ranges=((0, 6), (6, 9), (20, 26))))
    grown = space_of(50, [4], ranges=((0, 6), (6, 9), (20, 31), (40, 50)))
    plan = outgrown(grown).saved_over({"plan": was.fingerprint()})
    assert plan.lengths.expand().tolist() == was.lengths.expand().tolist() == [4, 2, 2, 1, 4, 2]
    assert plan.draws(0).tolist() == was.draws(0).tolist()


def test_the_space_it_came_from_stays_whole():
    space = space_of(20, [4])
    first = space.first(7)
    assert first.unit_lengths().expand().tolist() == [4, 3]
    assert space.unit_lengths().expand().tolist() == [4, 4, 4, 4, 4]
    assert (first.chunks_bound(5), space.chunks_bound(5)) == ((2,), (5,))


def fingerprint(length=14, chunks=(4,), **options):
    return plan_of(space_of(length, chunks, **options)).fingerprint()


NOT_OUTGROWN = {
    "as many": {"plan": fingerprint(20)},
    "more": {"plan": fingerprint(21)},
    "other chunks": {"plan": fingerprint(chunks=(3,))},
    "other offsets": {"plan": fingerprint(offsets=(0, 1))},
    "the last ones": {"plan": fingerprint(20, ranges=((8, 20),))},
    "other seed": {"plan": {**fingerprint(), "seed": 4}},
    "other type": {"plan": {**fingerprint(), "seed": 3.0}},
    "a field less": {"plan": {k: v for k, v in fingerprint().items() if k != "units"}},
    "a field more": {"plan": {**fingerprint(), "mask": 1}},
    "no draws": {"plan": {**fingerprint(), "n": 0}},
    "a bool": {"plan": {**fingerprint(), "n": True}},
    "a float": {"plan": {**fingerprint(), "n": 14.0}},
    "a negative": {"plan": {**fingerprint(), "n": -1}},
    "no plan": {"plan": None},
    "no state": None,
}


@pytest.mark.parametrize("name", NOT_OUTGROWN)
def test_what_is_not_of_fewer_of_the_same_draws_is_no_outgrown_plan(name):
    assert outgrown(space_of(20, [4])).saved_over(NOT_OUTGROWN[name]) is None


def test_the_plan_of_the_last_number_is_kept():
    found = outgrown(space_of(20, [4]))
    first = found.of_first(7)
    assert found.of_first(7) is first
    assert found.of_first(9).n_draws == 9
    assert np.array_equal(found.of_first(7).draws(0), first.draws(0))
