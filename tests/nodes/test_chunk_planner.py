import logging
import pickle
from collections import Counter

import numpy as np
import pytest

import torchdata_insitu as tdi
from tests.small_loaders import N, small_store, views_of
from torchdata_insitu.errors import GeometryError, PlanError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.testing import make_store


@pytest.fixture(scope="module")
def views():
    return views_of(small_store())


def make_planner(views, **plan):
    return tdi.ChunkPlanner(views, **{"batch_size": 4, "block_chunks": 2, **plan})


def test_segments_are_the_draws_of_the_plan_in_its_order(views):
    planner = make_planner(views, seed=5)
    for epoch in range(2):
        draws = np.concatenate([segment.draws for segment in planner])
        assert draws.tolist() == planner.plan.draws(epoch).tolist()
        planner.reset(None)


def test_chunks_are_numbered_as_the_arrays_are():
    store = make_store({"t": (8, 2), "u": (8, 2)}, chunks={"t": (2, 2), "u": (4, 2)})
    planner = make_planner(tdi.open_arrays(store))
    keys = {key for segment in planner for key in segment.admit}
    assert [array.name for array in planner.arrays] == ["t", "u"]
    assert Counter(key.source for key in keys) == {0: 4, 1: 2}


def test_reads_are_known_before_they_are_made(views):
    planner = make_planner(views, lanes=2, rank=1, world_size=2)
    admitted = sum(len(segment.admit) for segment in planner)
    assert planner.reads_from(Cursor(0, 0, 2)) == {"t2m": admitted}
    assert planner.reads_from(Cursor(0, N, 2)) == {"t2m": 0}


def test_ranks_are_looked_up_once_and_not_before_they_are_needed(views, monkeypatch):
    planner = make_planner(views)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert planner.ranks == (1, 2)
    monkeypatch.setenv("RANK", "0")
    assert planner.ranks == (1, 2)


def test_a_pickled_planner_looks_for_the_ranks_of_its_own_process(views, monkeypatch):
    asked, given = make_planner(views), make_planner(views, rank=0, world_size=1)
    assert (asked.ranks, given.ranks) == ((0, 1), (0, 1))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert pickle.loads(pickle.dumps(asked)).ranks == (1, 2)
    assert pickle.loads(pickle.dumps(given)).ranks == (0, 1)


def test_an_epoch_of_no_batches_is_refused_at_once_where_that_is_known(views):
    with pytest.raises(PlanError, match=r"0 batches: 22 draws .* 23 on\s+1 ranks .*'drop'"):
        make_planner(views, batch_size=23, tail="drop")
    with pytest.raises(PlanError, match=r"22 draws .* 12 on\s+2 ranks"):
        make_planner(views, batch_size=12, tail="drop", rank=0, world_size=2)


def test_views_that_cannot_be_drawn_together_are_refused():
    store = make_store({"t": (8, 2), "u": (9, 2)}, chunks=(2, 2))
    with pytest.raises(GeometryError, match=r"(?s)8.*9"):
        make_planner(tdi.open_arrays(store))


@pytest.mark.parametrize(
    "asked, world_size, before, after",
    [
        (None, 4, None, 4),
        (None, 4, 8, 8),
        (None, 2, 4, 4),
        (None, 3, 4, 3),
        (6, 4, None, 6),
        (6, 4, 4, 6),
    ],
)
def test_lanes_follow_the_world_size_at_the_next_epoch(views, asked, world_size, before, after):
    planner = make_planner(views, lanes=asked, rank=0, world_size=world_size)
    assert planner.lanes_after(before) == after
    if before is None:
        assert planner.first_cursor() == Cursor(0, 0, after)
    else:
        assert planner.next_epoch(Cursor(3, 7, before)) == Cursor(4, 0, after)


def test_a_change_of_lanes_is_told(views, caplog):
    planner = make_planner(views, rank=0, world_size=3)
    with caplog.at_level(logging.INFO):
        planner.next_epoch(Cursor(0, 8, 4))
    assert "lanes change from 4 to the world size 3" in caplog.text


@pytest.mark.parametrize("lanes, factor", [(4, None), (2, None), (3, 2), (1, 2)])
def test_ranks_that_share_lanes_are_told_once_what_it_costs(views, lanes, factor, caplog):
    planner = make_planner(views, lanes=lanes, rank=0, world_size=2)
    for _ in range(3):
        list(planner)
        planner.reset(None)
    told = [record.getMessage() for record in caplog.records]
    if factor is None:
        assert told == []
    else:
        assert len(told) == 1
        assert f"{lanes} lanes on 2 ranks: each chunk is read by up to {factor} ranks" in told[0]


def test_every_rank_gets_its_own_draws_and_together_all(views):
    draws = []
    for rank in range(3):
        planner = make_planner(views, rank=rank, world_size=3, lanes=3, tail="exact")
        draws += [draw for segment in planner for draw in segment.draws[segment.valid, 0].tolist()]
    assert sorted(draws) == list(range(N))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"batch_size": None}, "batch_size is a whole number, not None of type NoneType"),
        ({"rank": True, "world_size": 2}, "rank is a whole number, not True of type bool"),
        ({"rank": 0, "world_size": "2"}, "world_size is a whole number, not '2' of type str"),
        ({"split": (0, 5)}, r"split is \(0, 5\) of type tuple: give a Split"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named_with_its_value_and_type(views, options, text):
    with pytest.raises(PlanError, match=text):
        make_planner(views, **options)


def test_numbers_of_numpy_are_numbers(views):
    planner = make_planner(views, batch_size=np.int64(4), rank=np.int32(1), world_size=np.int8(2))
    assert planner.ranks == (1, 2)
    assert type(planner.plan.batch_size) is int


@pytest.mark.parametrize("tail", ["short", "drop", "pad", "exact"])
@pytest.mark.parametrize("start", [0, 5])
def test_places_follow_each_other_as_batches_do(views, tail, start):
    planner = make_planner(views, tail=tail, rank=0, world_size=2, batch_size=3)
    start = Cursor(2, start, 4)
    planner.seek(start)
    places = [start]
    for segment in planner:
        places += [Cursor(2, cut.position, 4) for cut in segment.cuts]
    assert planner.steps_from(start) == len(places) - 1
    for n_batches, place in enumerate(places):
        assert planner.after(start, n_batches) == place
        assert planner.is_at_end(place) == (n_batches == len(places) - 1)


def test_an_epoch_begins_with_the_lanes_of_the_one_before_and_is_begun_again_with_its_own(views):
    planner = make_planner(views, rank=0, world_size=2)
    assert planner.start_of(3) == Cursor(3, 0, 2)
    assert planner.start_of(3, Cursor(1, 8, 4)) == planner.next_epoch(Cursor(2, 8, 4))
    assert planner.start_of(3, Cursor(1, 8, 4)) == Cursor(3, 0, 4)
    assert planner.start_of(3, Cursor(1, 8, 3)) == Cursor(3, 0, 2)
    assert planner.start_again(Cursor(1, 8, 3)) == Cursor(1, 0, 3)


def test_ranks_are_known_once_they_were_given_or_looked_up(views):
    assert make_planner(views, rank=1, world_size=2).known_ranks == (1, 2)
    planner = make_planner(views)
    assert planner.known_ranks is None
    assert planner.ranks == planner.known_ranks == (0, 1)
