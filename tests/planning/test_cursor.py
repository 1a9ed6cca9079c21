import json

import pytest

from tests.each_case import each_case
from torchdata_insitu.errors import StateError
from torchdata_insitu.planning.cursor import Cursor

PLAN = {"order": 1, "seed": 7, "shuffle": True, "n": 100}


def state_of(**changes):
    return {**Cursor(2, 40, 4).to_state(PLAN), **changes}


@pytest.mark.parametrize("cursor", [Cursor(0, 0, 1), Cursor(2, 40, 4), Cursor(2, 43, 4, origin=40)])
def test_a_cursor_survives_json(cursor):
    state = json.loads(json.dumps(cursor.to_state(PLAN)))
    assert Cursor.from_state(state, PLAN, 100) == cursor


def test_a_state_is_plain_and_has_an_origin_only_inside_a_batch():
    assert Cursor(2, 40, 4).to_state(PLAN) == {
        "format": "torchdata_insitu.cursor",
        "version": 1,
        "epoch": 2,
        "position": 40,
        "lanes": 4,
        "plan": PLAN,
    }
    assert Cursor(2, 43, 4, origin=40).to_state(PLAN)["origin"] == 40


def test_a_state_does_not_share_the_plan_it_was_made_from():
    plan = dict(PLAN)
    state = Cursor(0, 0, 1).to_state(plan)
    plan["seed"] = 8
    assert state["plan"] == PLAN


def test_the_end_of_the_epoch_is_a_position():
    assert Cursor.from_state(state_of(position=100), PLAN, 100).position == 100


@pytest.mark.parametrize(
    "state, named",
    [
        ({}, "empty"),
        ({"root": {}, "num_yielded": 3}, "torchdata.nodes.Loader"),
        ({"_snapshot": {}, "_steps_since_snapshot": 0}, "StatefulDataLoader"),
        ({"_iterator_finished": False, "_num_yielded": 3}, "StatefulDataLoader"),
        ({"format": "torchdata_insitu.loader", "version": 1}, "'torchdata_insitu.loader'"),
        ({"epoch": 1}, "unknown format with the keys 'epoch'"),
        (None, "NoneType"),
        (state_of(version=2), "newer than version 1"),
        (state_of(version=True), "version True"),
        (state_of(version=0), "version 0"),
        (state_of(plan=None), "not complete"),
    ],
)
def test_a_foreign_state_is_named(state, named):
    with pytest.raises(StateError, match=named):
        Cursor.from_state(state, PLAN, 100)


def test_every_differing_field_is_named_with_both_values():
    saved = {**PLAN, "seed": 8, "n": 99, "mask": "a"}
    del saved["shuffle"]
    with pytest.raises(StateError) as error:
        Cursor.from_state(state_of(plan=saved), PLAN, 100)
    for text in (
        "seed was 8 and is 7",
        "n was 99 and is 100",
        "shuffle was 'absent' and is True",
        "mask was 'a' and is 'absent'",
    ):
        assert text in str(error.value)
    assert "order" not in str(error.value)


@each_case("field, value", [("seed", 7.0), ("shuffle", 1), ("order", True), ("n", "100")])
def test_a_value_of_another_type_is_another_plan(field, value):
    with pytest.raises(StateError, match=f"{field} was {value!r} and is {PLAN[field]!r}"):
        Cursor.from_state(state_of(plan={**PLAN, field: value}), PLAN, 100)


@each_case("field", ["epoch", "position", "lanes"])
@each_case("value", [-1, True, 1.0, "3", None])
def test_numbers_that_are_no_place_are_refused(field, value):
    with pytest.raises(StateError, match=field):
        Cursor.from_state(state_of(**{field: value}), PLAN, 100)


@pytest.mark.parametrize(
    "changes", [{"position": 101}, {"lanes": 0}, {"origin": 41}, {"origin": -1}, {"origin": 2.0}]
)
def test_positions_outside_the_epoch_are_refused(changes):
    with pytest.raises(StateError, match=next(iter(changes))):
        Cursor.from_state(state_of(**changes), PLAN, 100)
