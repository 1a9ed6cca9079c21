"""A state with one field edited, cut off or of another type is refused, and the loader stays."""

import json

import pytest

import torchdata_insitu as tdi
from tests.each_case import each_case
from tests.edited_states import cut, edited, paths_of
from tests.small_loaders import all_ids, ids, make_loader, small_store, take
from torchdata_insitu.errors import StateError

HUGE = 10**30
# Nothing that a state holds is any of these; numbers and texts that it could hold come on top.
NEVER = (None, True, False, 1.0, -1.5, float("nan"), float("inf"), "", "1", [], [1], {}, {"a": 1})
PLACE = ("epoch", "position", "lanes", "step")
OUT_OF_RANGE = {
    "epoch": (-1, -HUGE),
    "position": (-1, 23, HUGE),
    "lanes": (0, -1, -HUGE),
    "step": (-1, 0, 9, HUGE),
}


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.fixture(scope="module")
def store():
    return small_store()


@pytest.fixture(scope="module")
def state(store):
    """After two batches of eight draws."""
    with make_loader(store) as loader:
        take(loader, 2)
        return through_json(loader.state_dict())


def mix(store):
    sources = {name: make_loader(store, seed=seed).node for name, seed in (("a", 0), ("b", 1))}
    return tdi.InSituLoader(tdi.MixNode(sources, {"a": 0.5, "b": 0.25}, seed=0, stop="first"))


def value_at(state, path):
    for key in path:
        state = state[key]
    return state


def is_same(one, other):
    return type(one) is type(other) and one == other


def other_values(state, path):
    """What the field cannot be, of all types; and numbers and texts of the right type."""
    was = value_at(state, path)
    values = [value for value in NEVER if not is_same(value, was)]
    if path[-1] in PLACE:
        return values + list(OUT_OF_RANGE[path[-1]])
    if type(was) is int:
        values += [was + 1, -1, HUGE]
    elif type(was) is float:
        values += [was * 2, int(was)]
    elif type(was) is str:
        values += [was + "x", was[:-1]]
    return values


def refuses(loader, bad, *said):
    """That states are refused in words, and the loader stays where it is."""
    for state in bad:
        before = loader.state_dict(), loader.epoch, loader.position, loader.step, len(loader)
        with pytest.raises(StateError) as raised:
            loader.load_state_dict(state)
        for text in said:
            assert text in str(raised.value), (text, str(raised.value))
        after = loader.state_dict(), loader.epoch, loader.position, loader.step, len(loader)
        assert after == before


def test_every_field_of_a_state_is_checked(store, state):
    with make_loader(store) as loader:
        expected = all_ids(loader)
    with make_loader(store) as loader:
        items = iter(loader)
        found = [ids(next(items))]
        for path in paths_of(state):
            bad = [edited(state, path, value) for value in other_values(state, path)]
            # Of what is no state at all it is said what it is.
            said = [] if path == ("format",) else [path[-1]]
            refuses(loader, [*bad, cut(state, path)], *said)
        assert found + all_ids(items) == expected


def test_every_field_of_a_state_of_a_mix_is_checked(store):
    with mix(store) as loader:
        take(loader, 5)
        state = through_json(loader.state_dict())
    positions = [source["position"] for source in state["cursors"].values()]
    assert min(positions) > 0
    with mix(store) as loader:
        before = loader.state_dict()
        for path in paths_of(state):
            for value in other_values(state, path):
                if path[-1] == "step" and value == 9:
                    # The weights do not tell that so many were of one source.
                    continue
                with pytest.raises(StateError):
                    loader.load_state_dict(edited(state, path, value))
            with pytest.raises(StateError):
                loader.load_state_dict(cut(state, path))
        assert loader.state_dict() == before


@each_case(
    "path, value, said",
    [
        (("plan", "seed"), 7, "seed was 7 and is 0"),
        (("plan", "seed"), False, "seed was False and is 0"),
        (("plan", "n"), 22.0, "n was 22.0 and is 22"),
        (("plan", "shuffle"), 1, "shuffle was 1 and is True"),
        (("position",), HUGE, f"position of the state is {HUGE}: expected at least 0 and at most"),
        (("step",), 9, "step of the state is 9: expected at least 1 and at most 8"),
        (("step",), 0, "step of the state is 0: expected at least 1 and at most 8"),
        (("origin",), 8, "origin of the state is 8: a loader stands between two batches"),
        (("nodes",), 3, "nodes of the state is 3"),
        (("nodes",), [], "nodes of the state is []"),
        (("version",), 2, "version 2, newer than version 1"),
        (("version",), 0, "version 0: expected a state of format"),
    ],
)
def test_what_is_said_names_both_values(store, state, path, value, said):
    with make_loader(store) as loader, pytest.raises(StateError) as raised:
        loader.load_state_dict(edited(state, path, value))
    assert said in str(raised.value)


@each_case("field", ["units", "arrays", "offsets"])
def test_of_a_digest_it_is_said_what_it_stands_for(store, state, field):
    meanings = {"units": "which samples", "arrays": "data types", "offsets": "of the views"}
    with make_loader(store) as loader, pytest.raises(StateError) as raised:
        loader.load_state_dict(edited(state, ("plan", field), "0" * 16))
    assert f"{field} was '{'0' * 16}' and is '" in str(raised.value)
    assert meanings[field] in str(raised.value)


@each_case("n_kept", range(8))
def test_a_state_of_which_only_the_first_fields_are_left_is_refused(store, state, n_kept):
    assert len(state) == 7
    bad = dict(list(state.items())[:n_kept])
    with make_loader(store) as loader:
        if n_kept == len(state):
            loader.load_state_dict(bad)
            return
        before = loader.state_dict()
        with pytest.raises(StateError):
            loader.load_state_dict(bad)
        assert loader.state_dict() == before


def test_a_place_that_could_be_is_taken_however_far_it_is(store, state):
    """Of an epoch or of lanes that nobody comes to there is nothing wrong."""
    for field in ("epoch", "lanes"):
        with make_loader(store) as loader:
            loader.load_state_dict({**state, field: HUGE})
            assert len(all_ids(loader)) == 4
            assert loader.epoch == (HUGE + 1 if field == "epoch" else 1)
