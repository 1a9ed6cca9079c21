import pickle
import warnings

import pytest

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.fake_groups import process_group
from tests.small_loaders import small_store, views_of
from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.mix_order import MixOrder
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import PASS_EPOCHS, MixCursor

SIZES = {"a": 22, "b": 10}
STOPS = ("first", "all", "cycle")
each_stop = pytest.mark.parametrize("stop", STOPS)


def make_order(stop="cycle", weights=None, **plan):
    planners = {
        name: tdi.ChunkPlanner(views_of(small_store(n)), **{"batch_size": 2, **plan})
        for name, n in SIZES.items()
    }
    return MixOrder(planners, weights or {"a": 1, "b": 3}, seed=0, stop=stop)


def places_of(order, start):
    """Every place from one to the end of its epoch."""
    places = [start]
    while (number := order.source(places[-1])) is not None:
        places.append(order.after_one(order.begun(places[-1], number), number))
    return places


@each_stop
@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 2, "tail": "pad", "lanes": 4}])
def test_places_and_lengths_are_those_of_a_walk(stop, options):
    order = make_order(stop, **options)
    places = places_of(order, order.start_of(3))
    n_steps = len(places) - 1
    assert n_steps > 2
    for number, place in enumerate(places):
        assert place.step == number
        assert order.steps_from(place) == n_steps - number
        assert order.is_at_end(place) == (number == n_steps)
        for n in range(n_steps - number + 1):
            assert order.after(place, n) == places[number + n]
        for n in reversed(range(n_steps - number + 1)):
            assert order.after(place, n) == places[number + n]


def test_a_place_that_was_counted_before_the_ranks_were_known_is_counted_anew():
    order = make_order("first", lanes=2, tail="exact")
    start = order.start_of(0)
    alone = order.after(start, 2)
    with process_group(0, 2), warnings.catch_warnings():
        # How many batches there are is asked on the way, and told that it was asked too early.
        warnings.simplefilter("ignore")
        assert order.after(start, 2) == places_of(order, start)[2] != alone


def test_a_pass_that_follows_is_an_epoch_of_its_own():
    order = make_order("cycle")
    places = places_of(order, order.start_of(3))
    epochs = {place.cursors[1].epoch for place in places}
    assert len(epochs) > 1
    assert epochs == {3 + PASS_EPOCHS * n for n in range(len(epochs))}
    assert places[-1].position == 22 + 10 * (len(epochs) - 1) + places[-1].cursors[1].position


def test_epochs_begin_where_those_of_the_sources_do():
    order = make_order("all", rank=0, world_size=2)
    start = order.start_of(2)
    assert start == MixCursor(2, 0, (Cursor(2, 0, 2), Cursor(2, 0, 2)))
    place = MixCursor(2, 5, (Cursor(2, 8, 3), Cursor(2 + PASS_EPOCHS, 4, 4)))
    assert order.next_epoch(place) == MixCursor(3, 0, (Cursor(3, 0, 2), Cursor(3, 0, 4)))
    assert order.start_of(7, place) == MixCursor(7, 0, (Cursor(7, 0, 2), Cursor(7, 0, 4)))
    assert order.start_again(place) == MixCursor(2, 0, (Cursor(2, 0, 3), Cursor(2, 0, 4)))


def test_a_source_with_too_little_left_for_a_batch_is_through():
    """After a change to larger batches there may be draws that no batch is made of."""
    order = make_order("all", batch_size=4, tail="drop")
    place = MixCursor.at(0, 9, (Cursor(0, 20, 1), Cursor(0, 0, 1)), (22, 10))
    assert order.steps_from(place) == 2
    assert [order.source(p) for p in places_of(order, place)] == [1, 1, None]


def test_ranks_have_to_be_equal():
    planners = {
        name: tdi.ChunkPlanner(views_of(small_store()), batch_size=2, rank=rank, world_size=2)
        for rank, name in enumerate("ab")
    }
    with refused(PlanError, "rank 0 of 2 in 'a', rank 1 of 2 in 'b'", "same rank and world_size"):
        MixOrder(planners, {"a": 1, "b": 1}, seed=0, stop="all")


@each_stop
def test_reads_are_those_of_the_passes_it_begins(stop):
    order = make_order(stop, block_chunks=1)
    places = places_of(order, order.start_of(0))
    reads = order.reads_from(places[0])
    assert list(reads) == ["a/t2m", "b/t2m"]
    for number, (name, planner) in enumerate(order.planners.items()):
        expected, last = 0, places[-1].cursors[number]
        for epoch in range(0, last.epoch + 1, PASS_EPOCHS):
            n = None if epoch < last.epoch else last.position // 2
            if epoch < last.epoch or not planner.is_at_end(last):
                expected += planner.reads_from(planner.start_of(epoch), n)["t2m"]
            else:
                expected += planner.reads_from(planner.start_of(epoch))["t2m"]
        assert reads[f"{name}/t2m"] == expected
    assert set(order.reads_from(places[-1]).values()) == {0}


def test_what_is_kept_for_speed_is_not_pickled():
    order = make_order("cycle")
    place = order.after(order.start_of(0), order.steps_from(order.start_of(0)) // 2)
    copied = pickle.loads(pickle.dumps(order))
    assert copied.__dict__["_kept_steps"] is None
    assert copied.steps_from(place) == order.steps_from(place)
    assert copied.plan == order.plan


@each_stop
def test_reads_of_arrays_with_one_name_in_two_stores_are_told_apart(stop):
    stores = {label: small_store() for label in "pq"}
    arrays = [tdi.open_arrays(store, store=label)["t2m"] for label, store in stores.items()]
    planners = {name: tdi.ChunkPlanner({"x": tdi.stack(*arrays)}, batch_size=2) for name in "ab"}
    order = MixOrder(planners, {"a": 1, "b": 1}, seed=0, stop=stop)
    reads = order.reads_from(order.start_of(0))
    assert sorted(reads) == ["a/p:t2m", "a/q:t2m", "b/p:t2m", "b/q:t2m"]
    assert reads["a/p:t2m"] == reads["a/q:t2m"] > 0
