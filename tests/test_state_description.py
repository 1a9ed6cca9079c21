"""What a state says, for people."""

import contextlib
import json

import pytest

import torchdata_insitu as tdi
from tests.each_case import each_case
from tests.edited_states import cut, edited, paths_of
from tests.small_loaders import make_loader, small_store, take
from tests.test_loader_foreign_nodes import numbering
from torchdata_insitu.errors import StateError


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.fixture(scope="module")
def state():
    with make_loader(shuffle=True, seed=5, run_chunks=2, lanes=3) as loader:
        take(loader, 2)
        return through_json(loader.state_dict())


@pytest.fixture(scope="module")
def mix_state():
    store = small_store()
    sources = {name: make_loader(store, seed=seed).node for name, seed in (("a", 0), ("b", 7))}
    mix = tdi.MixNode(sources, {"a": 3, "b": 1}, seed=2, stop="cycle")
    with tdi.InSituLoader(mix) as loader:
        take(loader, 7)
        return through_json(loader.state_dict())


def lines_of(text):
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines()]


def test_a_state_of_a_loader_is_said_line_by_line(state):
    lines = dict(lines_of(tdi.describe_state(state)))
    plan = state["plan"]
    assert lines == {
        "state": "of a loader, torchdata_insitu.loader version 1",
        "place": "epoch 0, position 8 of 22 draws (36.4 %); 2 batches on each rank; 3 lanes",
        "order": "shuffled with seed 5: blocks of 2 units, runs of 2; order version 1",
        "draws": "22 of kind 'anchor'",
        "digests": f"units {plan['units']}, arrays {plan['arrays']}, offsets {plan['offsets']}",
    }


def test_every_value_of_a_state_is_said(state):
    text = tdi.describe_state(state)
    for name, value in (*state.items(), *state["plan"].items()):
        if name not in {"plan", "shuffle"}:
            assert str(value) in text, name


def test_an_order_that_is_not_shuffled_names_no_seed():
    with make_loader(shuffle=False) as loader:
        text = tdi.describe_state(loader.state_dict())
    assert "in the order of the store" in text
    assert "seed" not in text


def test_a_state_of_a_mix_names_its_sources_and_their_places(mix_state):
    lines = lines_of(tdi.describe_state(mix_state))
    assert lines[1] == ("place", "epoch 0; 7 batches on each rank; exhausted: none")
    assert lines[2] == ("mix", "by weight: a 3.0, b 1.0; seed 2, stop 'cycle'; order version 1")
    assert [text for heading, text in lines if heading == "source"] == ["a", "b"]
    places = [text for heading, text in lines[2:] if heading == "place"]
    for text, cursor in zip(places, mix_state["cursors"].values(), strict=True):
        assert f"position {cursor['position']} of 22 draws" in text


def test_a_mix_says_which_sources_are_exhausted(mix_state):
    assert "exhausted: ['b']" in tdi.describe_state({**mix_state, "exhausted": ["b"]})


def test_a_state_with_the_state_of_other_nodes_names_them():
    with numbering() as loader:
        take(loader, 1)
        text = tdi.describe_state(loader.state_dict())
    assert text.endswith("of other nodes after the gather, of ['Prefetcher', 'Numbers']")


def test_a_state_of_a_node_may_stand_inside_a_batch(state):
    node = {**state, "format": "torchdata_insitu.cursor", "origin": 6}
    del node["step"]
    text = tdi.describe_state(node)
    assert text.startswith("state    of a node, torchdata_insitu.cursor version 1")
    assert "inside the batch that begins at 6" in text


def test_what_a_later_plan_has_more_of_is_said_too(state):
    later = {**state, "plan": {**state["plan"], "mask": "abc"}}
    assert "mask abc" in tdi.describe_state(later)


@each_case(
    "bad, said",
    [
        ({}, "the state is empty"),
        (None, "the state is a NoneType"),
        ([1], "the state is a list"),
        ({"root": {}, "num_yielded": 3}, "a state of torchdata.nodes.Loader"),
        ({"_snapshot": {}}, "StatefulDataLoader"),
        ({"weights": 1}, "of an unknown format with the keys 'weights'"),
        ({"format": ["x"]}, "of an unknown format"),
        ({"format": "somebody.else", "version": 1}, "of format 'somebody.else'"),
    ],
)
def test_of_a_state_of_something_else_it_is_said_what_it_is(bad, said):
    with pytest.raises(StateError) as raised:
        tdi.describe_state(bad)
    assert said in str(raised.value)


def test_a_newer_state_is_said_to_be_one(state):
    with pytest.raises(StateError, match="version 9, newer than version 1"):
        tdi.describe_state({**state, "version": 9})


@pytest.mark.parametrize("kind", ["one", "mix"])
def test_an_edited_state_is_described_or_refused(state, mix_state, kind):
    whole = state if kind == "one" else mix_state
    for path in paths_of(whole):
        for value in (None, True, 1.5, "x", [], [3], {}, {"a": 1}, 10**30):
            with contextlib.suppress(StateError):
                assert tdi.describe_state(edited(whole, path, value))


@pytest.mark.parametrize("kind", ["one", "mix"])
def test_a_cut_state_names_what_is_missing(state, mix_state, kind):
    whole = state if kind == "one" else mix_state
    for field in whole:
        bad = {name: value for name, value in whole.items() if name != field}
        if field == "exhausted":
            continue
        with pytest.raises(StateError, match="unknown format" if field == "format" else None) as e:
            tdi.describe_state(bad)
        if field not in {"format", "cursors"}:
            assert field in str(e.value)
    for field in whole["plan"]:
        bad = cut(whole, ("plan", field))
        if field not in {"units", "arrays", "offsets"}:
            with pytest.raises(StateError, match=f"plan of the state has no {field}"):
                tdi.describe_state(bad)


def test_a_cut_source_of_a_mix_is_named(mix_state):
    bad = cut(mix_state, ("cursors", "b", "position"))
    with pytest.raises(StateError, match="of source 'b', position of the state is None"):
        tdi.describe_state(bad)
