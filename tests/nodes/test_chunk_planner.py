import logging
import pickle
import warnings
from collections import Counter

import numpy as np
import pytest
from torch.distributed.device_mesh import init_device_mesh

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.fake_groups import process_group
from tests.small_loaders import N, small_store, views_of
from torchdata_insitu.errors import GeometryError, PlanError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.testing import make_store


@pytest.fixture(scope="module")
def views():
    return views_of(small_store())


def make_planner(views, **plan):
    return tdi.ChunkPlanner(views, **{"batch_size": 4, "block_chunks": 2, **plan})


def all_draws(planner):
    return [segment.draws.tolist() for segment in planner]


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


def test_a_chain_that_is_built_and_looked_at_before_the_group_is_sharded_by_it(views):
    """What is looked up stays from the first `next` on, not from a look, a state or a reset."""
    planner = make_planner(views, lanes=2)
    assert planner.ranks == (0, 1)
    planner.reset(planner.get_state())
    with process_group(1, 2):
        expected = make_planner(views, lanes=2, rank=1, world_size=2)
        assert all_draws(planner) == all_draws(expected)
        assert planner.ranks == planner.known_ranks == (1, 2)


def test_a_chain_that_has_yielded_alone_refuses_a_group(views):
    planner = make_planner(views)
    first = next(planner)
    place = f"up to position {first.after.position} of epoch 0"
    facts = ("as rank 0 of 1", place, "now this process is rank 1 of 2", "init_process_group")
    with process_group(1, 2):
        for use in (
            lambda: planner.ranks,
            lambda: planner.steps_from(planner.cursor),
            lambda: planner.after(planner.cursor, 1),
            lambda: planner.reset(None) or next(planner),
        ):
            with refused(PlanError, *facts):
                use()
    with process_group(0, 1):
        planner.reset(None)
        next(planner)


def test_a_group_that_was_made_again_with_another_size_is_refused_at_the_next_start(views):
    planner = make_planner(views, lanes=2)
    with process_group(1, 2):
        list(planner)
    with process_group(0, 3):
        planner.seek(Cursor(1, 0, 2))
        with refused(PlanError, "as rank 1 of 2", "up to position 0 of epoch 1", "rank 0 of 3"):
            planner.reset(None) or next(planner)


def test_the_end_of_the_group_leaves_the_place_of_a_chain_to_be_saved(views):
    planner = make_planner(views)
    with process_group(1, 2):
        next(planner)
        state, n_left = planner.get_state(), planner.steps_from(planner.cursor)
    assert planner.get_state() == state
    assert planner.steps_from(planner.cursor) == n_left
    planner.reset(None)
    with refused(PlanError, "as rank 1 of 2", "rank 0 of 1"):
        next(planner)


def test_a_number_of_batches_that_was_asked_too_early_is_told_once_if_it_changes(
    views, environment
):
    planner = make_planner(views, lanes=12)
    start = planner.start_of(0)
    assert planner.steps_from(start) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment(0, 1)
        assert planner.steps_from(start) == 6
    environment(0, 2)
    with pytest.warns(UserWarning, match=r"position 0 of epoch 0 it was 6, and on 2 ranks it is 3"):
        assert planner.steps_from(start) == 3
    environment(0, 3)
    assert planner.steps_from(start) == 2
    list(planner)


def test_what_was_asked_early_and_stays_as_it_is_needs_no_word(views, environment):
    planner = make_planner(views, lanes=2, batch_size=11, tail="drop")
    assert planner.steps_from(Cursor(0, 11, 2)) == 1
    assert planner.steps_from(Cursor(0, 22, 2)) == 0
    environment(0, 2)
    assert planner.steps_from(Cursor(0, 22, 2)) == 0


def test_a_pickled_planner_forgets_what_was_asked_early(views, environment):
    planner = make_planner(views)
    assert planner.steps_from(planner.first_cursor()) == 6
    copied = pickle.loads(pickle.dumps(planner))
    environment(0, 2)
    assert copied.steps_from(copied.first_cursor()) == 3


@pytest.mark.parametrize("rank", range(4))
def test_a_mesh_shards_by_its_dimension(views, rank):
    with process_group(rank, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        planner = make_planner(views, mesh=mesh["dp"])
        assert planner.known_ranks is None
        copied = pickle.loads(pickle.dumps(planner))
        expected = make_planner(views, rank=rank // 2, world_size=2)
        assert all_draws(planner) == all_draws(copied) == all_draws(expected)
        with refused(PlanError, "('dp', 'tp')", "mesh['dp']"):
            make_planner(views, mesh=mesh)
        with refused(PlanError, "mesh is DeviceMesh", "rank is 0 and world_size is 2"):
            make_planner(views, mesh=mesh["dp"], rank=0, world_size=2)


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


@pytest.mark.parametrize(
    "lanes, world_size, factor",
    [(4, 2, None), (2, 2, None), (3, 1, None), (3, 2, 2), (1, 2, 2), (4, 6, 3), (8, 6, 3)],
)
def test_ranks_that_share_lanes_are_told_once_what_it_costs(views, lanes, world_size, factor):
    planner = make_planner(views, lanes=lanes, rank=0, world_size=world_size, batch_size=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            list(planner)
            planner.reset(None)
    told = [str(warning.message) for warning in caught]
    if factor is None:
        assert told == []
    else:
        assert len(told) == 1
        assert caught[0].category is UserWarning
        assert (
            f"{lanes} lanes on {world_size} ranks: each chunk is read by up to {factor}" in told[0]
        )


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


def test_ranks_are_known_once_they_cannot_change_any_more(views):
    assert make_planner(views, rank=1, world_size=2).known_ranks == (1, 2)
    planner = make_planner(views)
    assert planner.ranks == (0, 1)
    assert planner.known_ranks is None
    next(planner)
    assert planner.known_ranks == (0, 1)
