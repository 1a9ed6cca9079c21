"""A state of something else is refused with what differs, and the loader or node stays."""

import pytest

import torchdata_insitu as tdi
from tests.contracts.chains import NODES, PLENTY, chains, counted, through_json
from tests.contracts.refusals import refused
from torchdata_insitu.errors import StateError
from torchdata_insitu.testing import make_store


@pytest.fixture(scope="module")
def store():
    return make_store({"t2m": counted((20, 3)), "u10": counted((20, 3))}, chunks=(4, 3))


@pytest.fixture(scope="module")
def arrays(store):
    return tdi.open_arrays(store)


def load(store, views, **options):
    return tdi.build_loader(store, views, **{"batch_size": 4, "budget_bytes": PLENTY, **options})


def saved(loader):
    """The state of a loader that stands in its second batch."""
    batches = iter(loader)
    next(batches)
    return through_json(loader.state_dict())


def altered(state, **changes):
    plan = {**state["plan"], **changes.pop("plan", {})}
    return {**state, "plan": plan, **changes}


BAD_STATES = {
    "empty": (lambda _: {}, ["empty"]),
    "no mapping": (lambda _: [1, 2], ["list"]),
    "none": (lambda _: None, ["NoneType"]),
    "torchdata Loader": (
        lambda _: {"root": {"x": 1}, "num_yielded": 3},
        ["torchdata.nodes.Loader"],
    ),
    "StatefulDataLoader": (
        lambda _: {"_snapshot": {}, "_steps_since_snapshot": 0, "_iterator_finished": False},
        ["StatefulDataLoader"],
    ),
    "model": (lambda _: {"conv.weight": 1}, ["conv.weight"]),
    "a node's": (
        lambda state: altered(state, format="torchdata_insitu.cursor"),
        ["torchdata_insitu.cursor", "torchdata_insitu.loader"],
    ),
    "newer": (lambda state: altered(state, version=2), ["version 2", "version 1"]),
    "without version": (lambda state: altered(state, version=None), ["None"]),
    "without plan": (
        lambda state: {key: value for key, value in state.items() if key != "plan"},
        ["plan"],
    ),
    "without position": (
        lambda state: {key: value for key, value in state.items() if key != "position"},
        ["position"],
    ),
    "beyond the end": (lambda state: altered(state, position=21), ["position", "21", "20"]),
    "negative": (lambda state: altered(state, position=-1), ["position", "-1"]),
    "bool": (lambda state: altered(state, position=True), ["position", "True"]),
    "float": (lambda state: altered(state, position=4.0), ["position", "4.0"]),
    "epoch": (lambda state: altered(state, epoch=-2), ["epoch", "-2"]),
    "lanes": (lambda state: altered(state, lanes=0), ["lanes", "0"]),
    "step": (lambda state: altered(state, step=-1), ["step", "-1"]),
    "seed": (lambda state: altered(state, plan={"seed": 8}), ["seed was 8 and is 0"]),
    "order": (lambda state: altered(state, plan={"order": 2}), ["order was 2 and is 1"]),
    "several": (
        lambda state: altered(state, plan={"block_chunks": 3, "n": 99, "of later": 1}),
        ["block_chunks was 3 and is 16", "n was 99 and is 20", "of later was 1 and is 'absent'"],
    ),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_bad_states_raise_naming_both_values(store, arrays, case):
    make, facts = BAD_STATES[case]
    views = {"x": arrays["t2m"]}
    with load(store, views) as loader:
        batches = iter(loader)
        first = next(batches)["sample_index"].tolist()
        before = loader.state_dict()
        with refused(StateError, *facts):
            loader.load_state_dict(make(through_json(before)))
        assert loader.state_dict() == before
        # The iteration goes on as if nothing had happened.
        left = [sample for batch in batches for sample in batch["sample_index"].tolist()]
    assert sorted(first + left) == list(range(20))


FIRST_PART = tdi.Split("train", ((0, 12),), 20)
SECOND_PART = tdi.Split("train", ((8, 20),), 20)
# What was saved with, what is loaded with, and what the text says.
OTHER_PLANS = {
    "seed": ({"seed": 1}, {}, ["seed was 1 and is 0"]),
    "shuffle": ({"shuffle": False}, {}, ["shuffle was False and is True"]),
    "block_chunks": ({"block_chunks": 2}, {}, ["block_chunks was 2 and is 16"]),
    "run_chunks": ({"run_chunks": 2}, {}, ["run_chunks was 2 and is 1"]),
    "split": ({"split": FIRST_PART}, {}, ["n was 12 and is 20", "finish_epoch"]),
    "split of equal length": ({"split": FIRST_PART}, {"split": SECOND_PART}, ["units was"]),
}


@pytest.mark.parametrize("case", OTHER_PLANS)
def test_state_of_another_plan_names_what_differs(store, arrays, case):
    theirs, ours, facts = OTHER_PLANS[case]
    views = {"x": arrays["t2m"]}
    with load(store, views, **theirs) as other:
        state = saved(other)
    with load(store, views, **ours) as loader, refused(StateError, *facts):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "was, now, fact",
    [
        ({"shape": (24, 3)}, {}, "n was 24 and is 20"),
        ({"chunk": 5}, {}, "units was"),
        ({"dtype": "float64"}, {}, "arrays was"),
        ({"shape": (20, 2)}, {}, "arrays was"),
    ],
)
def test_state_over_changed_data_names_what_differs(was, now, fact):
    def over(shape=(20, 3), chunk=4, dtype="float32"):
        store = make_store({"t2m": counted(shape, dtype)}, chunks=(chunk, 3))
        return load(store, tdi.open_arrays(store))

    with over(**was) as other:
        state = saved(other)
    with over(**now) as loader, refused(StateError, fact):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "name, fact",
    [("offset", "offsets was"), ("array", "arrays was"), ("view name", "offsets was")],
)
def test_state_over_other_views_names_what_differs(store, arrays, name, fact):
    t2m = arrays["t2m"]
    split = tdi.Split("train", ((4, 16),), 20)
    other = {
        "offset": {"x": t2m.window(0, 1)},
        "array": {"x": arrays["u10"].window(0, 2)},
        "view name": {"z": t2m.window(0, 2)},
    }[name]
    with load(store, other, split=split) as loader:
        state = saved(loader)
    with load(store, {"x": t2m.window(0, 2)}, split=split) as loader, refused(StateError, fact):
        loader.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")
@pytest.mark.parametrize("name", NODES)
def test_node_refuses_a_bad_state_and_stays(store, arrays, name):
    with chains(store, {"x": arrays["t2m"]}, batch_size=4, block_chunks=1) as made:
        node, other = made.make(name), made.make(name)
        made.seen(next(node))
        made.seen(next(other))
        before = through_json(node.state_dict())
        for bad in ({}, {"root": {}, "num_yielded": 1}, with_seed(before, 9)):
            with refused(StateError):
                node.reset(bad)
            assert through_json(node.state_dict()) == before
        assert made.rest(node) == made.rest(other)


def with_seed(state, seed):
    if "source" in state:
        return {"source": with_seed(state["source"], seed)}
    return {**state, "plan": {**state["plan"], "seed": seed}}
