import json

import pytest

from tests.contracts.refusals import refused
from torchdata_insitu.errors import StateError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import PASS_EPOCHS, MixCursor

PLAN = {"seed": 3}
FINGERPRINTS = {"a": {"n": 20}, "b": {"n": 30}}
N_DRAWS = (20, 30)


def written(cursor):
    return json.loads(json.dumps(cursor.to_state(PLAN, FINGERPRINTS, N_DRAWS)))


def read(state, **options):
    return MixCursor.from_state(state, PLAN, FINGERPRINTS, N_DRAWS, **options)


def at(epoch, step, *cursors):
    return MixCursor.at(epoch, step, cursors, N_DRAWS)


@pytest.mark.parametrize(
    "cursor, position, exhausted",
    [
        (at(0, 0, Cursor(0, 0, 1), Cursor(0, 0, 2)), 0, []),
        (at(4, 9, Cursor(4, 8, 1), Cursor(4, 30, 2)), 38, ["b"]),
        (at(4, 9, Cursor(4 + 2 * PASS_EPOCHS, 8, 1), Cursor(4, 4, 2)), 2 * 20 + 8 + 4, ["a"]),
        (at(PASS_EPOCHS, 9, Cursor(PASS_EPOCHS, 20, 1), Cursor(PASS_EPOCHS, 5, 2)), 25, ["a"]),
    ],
)
def test_a_place_is_written_and_read_back(cursor, position, exhausted):
    assert cursor.position == position
    state = written(cursor)
    assert state["exhausted"] == exhausted
    assert read(state, cycles=True) == cursor


def test_passes_that_are_over_are_counted():
    cursor = at(2, 9, Cursor(2 + 3 * PASS_EPOCHS, 8, 1), Cursor(2, 30, 2))
    assert [cursor.passes(number) for number in range(2)] == [3, 0]


def test_nothing_is_shared_with_what_it_was_written_from():
    plan, fingerprints = {"seed": 3}, {"a": {"n": 20}, "b": {"n": 30}}
    cursor = at(0, 0, Cursor(0, 0, 1), Cursor(0, 0, 1))
    state = cursor.to_state(plan, fingerprints, N_DRAWS)
    state["plan"]["seed"] = 4
    state["cursors"]["a"]["plan"]["n"] = 4
    assert (plan, fingerprints["a"]) == ({"seed": 3}, {"n": 20})


def test_a_further_pass_is_refused_where_there_are_none():
    state = written(at(0, 9, Cursor(PASS_EPOCHS, 8, 1), Cursor(0, 0, 1)))
    with refused(StateError, "source 'a'", PASS_EPOCHS, "no pass of epoch 0"):
        read(state)
    assert read(state, cycles=True).passes(0) == 1


@pytest.mark.parametrize("epoch", [PASS_EPOCHS - 1, 3, 1])
def test_an_epoch_that_is_no_pass_is_refused(epoch):
    state = written(at(2, 9, Cursor(2, 8, 1), Cursor(2, 0, 1)))
    state["cursors"]["b"]["epoch"] = epoch
    with refused(StateError, "source 'b'", f"epoch {epoch}", "no pass of epoch 2"):
        read(state, cycles=True)
