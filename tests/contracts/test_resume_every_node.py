"""A state taken before any item, of any node, gives exactly the items left."""

import itertools

import pytest
import torchdata.nodes

import torchdata_insitu as tdi
from tests.contracts.chains import NODES, PLENTY, chains, through_json
from torchdata_insitu.testing import check_resume, make_store

pytestmark = [
    pytest.mark.filterwarnings("ignore:PinMemory found no accelerator"),
    pytest.mark.filterwarnings("ignore:.*lanes on .* ranks"),
]

# Plans that meet the places where a state could go wrong: batches over several blocks and blocks of
# several batches, lanes that change block at different steps, a rank of several, copies at the end.
PLANS = {
    "one lane": {"batch_size": 4, "block_chunks": 2, "seed": 3},
    "batches over blocks": {"batch_size": 11, "block_chunks": 1, "tail": "drop"},
    "lanes of a rank": {"batch_size": 3, "block_chunks": 2, "lanes": 4, "rank": 1, "world_size": 2},
    "lanes of other ranks": {
        "batch_size": 2,
        "lanes": 2,
        "rank": 2,
        "world_size": 3,
        "tail": "pad",
    },
    "store order": {"batch_size": 5, "shuffle": False, "block_chunks": 3},
}

MIDDLE = 2


def is_slow(plan, name):
    """Whether a mix is of chains that have other tests and whose like is mixed as well."""
    return name.startswith("mix") and plan in {"lanes of a rank", "store order"}


@pytest.fixture(scope="module")
def store():
    return make_store({"t": (26, 2), "u": (26, 2)}, chunks={"t": (3, 2), "u": (5, 1)})


@pytest.fixture(scope="module")
def views(store):
    arrays = tdi.open_arrays(store)
    return {"x": arrays["t"].window(-2, 0), "y": arrays["u"].shift(1)}


@pytest.fixture(params=PLANS)
def made(request, store, views):
    with chains(store, views, **PLANS[request.param]) as made:
        yield made


@pytest.fixture
def small(store, views):
    with chains(store, views, batch_size=4, block_chunks=2, lanes=2) as made:
        yield made


def epochs_with_states(made, node, n_epochs=3):
    """Per epoch its items, and the states before each of them and at the end."""
    epochs = []
    for _ in range(n_epochs):
        states, items = [through_json(node.state_dict())], []
        for item in node:
            items.append(made.seen(item))
            states.append(through_json(node.state_dict()))
        epochs.append((items, states))
        node.reset(None)
    return epochs


@pytest.mark.parametrize(
    "made, name",
    [
        pytest.param(plan, name, marks=pytest.mark.slow if is_slow(plan, name) else ())
        for plan in PLANS
        for name in NODES
    ],
    indirect=["made"],
)
def test_every_state_gives_the_items_left_and_the_next_epoch(made, name):
    epochs = epochs_with_states(made, made.make(name))
    used = made.make(name)
    for (items, states), (following, _) in itertools.pairwise(epochs):
        assert items != following or not made.plan.get("shuffle", True)
        for n_before, state in enumerate(states):
            fresh = made.make(name)
            for node in (fresh, used):
                node.reset(state)
                assert through_json(node.state_dict()) == state
                assert made.rest(node) == items[n_before:]
            fresh.reset(None)
            assert made.rest(fresh) == following


@pytest.mark.parametrize("name", NODES)
def test_at_the_end_a_state_stops_at_once_and_stays(small, name):
    node = small.make(name)
    n_draws = tdi.ChunkPlanner(small.views, **small.plan).plan.n_draws
    small.rest(node)
    end = through_json(node.state_dict())
    assert n_draws in [state["position"] for state in innermost(end)]
    fresh = small.make(name)
    fresh.reset(end)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(fresh)
        assert through_json(fresh.state_dict()) == end


@pytest.mark.parametrize("name", NODES)
def test_a_state_restores_while_items_are_under_way(small, name):
    """Each restore interrupts a pass that has run ahead."""
    (items, states), *_ = epochs_with_states(small, small.make(name), n_epochs=1)
    node = small.make(name)
    for n_before in (0, len(items) // 2, len(items) - 1, 1):
        node.reset(states[n_before])
        assert small.seen(next(node)) == items[n_before]


def innermost(state):
    """The cursors in a state: one, or those of the sources of a mix."""
    while "source" in state:
        state = state["source"]
    return list(state.get("cursors", {"": state}).values())


def wrapped(node, wrapper):
    if wrapper == "Prefetcher":
        return torchdata.nodes.Prefetcher(node, 4)
    return torchdata.nodes.Mapper(node, same) if wrapper == "Mapper" else node


def same(item):
    return item


@pytest.mark.parametrize("wrapper", ["nothing", "Mapper", "Prefetcher"])
@pytest.mark.parametrize("name", NODES)
def test_torchdata_own_sequence_under_its_loader(small, name, wrapper):
    """What torchdata asks of its own nodes: saved at start, middle, end; two epochs."""
    node = wrapped(small.make(name), wrapper)
    loader = torchdata.nodes.Loader(node)
    start = loader.state_dict()
    first, middle = epoch_with_middle(small, loader)
    end = loader.state_dict()
    second, middle_of_second = epoch_with_middle(small, loader)
    assert len(first) > MIDDLE < len(second)

    loader.load_state_dict(through_json(middle))
    assert small.rest(loader) == first[MIDDLE:]
    assert small.rest(loader) == second

    loader.load_state_dict(through_json(middle_of_second))
    assert small.rest(loader) == second[MIDDLE:]

    loader.load_state_dict(through_json(start))
    assert small.rest(loader) == first
    assert small.rest(loader) == second

    stops = torchdata.nodes.Loader(node, restart_on_stop_iteration=False)
    stops.load_state_dict(through_json(end))
    assert small.rest(stops) == []

    restarts = torchdata.nodes.Loader(node)
    restarts.load_state_dict(through_json(end))
    assert small.rest(restarts) == second


def epoch_with_middle(made, loader):
    items = iter(loader)
    seen = made.rest(itertools.islice(items, MIDDLE))
    middle = loader.state_dict()
    return seen + made.rest(items), middle


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("name", NODES)
def test_gather_state_exact_under_stock_loader(small, name, restarts):
    """Its state after every batch, in a fresh one; so is that of every other node."""
    saving = torchdata.nodes.Loader(small.make(name))
    states, items = [through_json(saving.state_dict())], []
    for item in saving:
        items.append(small.seen(item))
        states.append(through_json(saving.state_dict()))
    following = small.rest(saving)
    for n_before, state in enumerate(states):
        fresh = torchdata.nodes.Loader(small.make(name), restart_on_stop_iteration=restarts)
        fresh.load_state_dict(state)
        left = items[n_before:]
        # An end can be restored as an empty epoch or skipped; either way nothing comes twice.
        epochs = [following] if not left and restarts else [left, following]
        assert [small.rest(fresh) for _ in epochs] == epochs


@pytest.mark.parametrize("name", PLANS)
def test_the_loader_resumes_at_every_position(store, views, name):
    n_resumes = check_resume(
        lambda: tdi.build_loader(store, views, budget_bytes=PLENTY, **PLANS[name]), n_epochs=3
    )
    assert n_resumes > 2


@pytest.mark.parametrize("wrapper", ["Mapper", "Prefetcher"])
def test_the_loader_resumes_over_torchdata_nodes(store, views, wrapper):
    def make_loader():
        inner = tdi.build_loader(store, views, batch_size=4, lanes=2, budget_bytes=PLENTY)
        return tdi.InSituLoader(wrapped(inner.node, wrapper))

    assert check_resume(make_loader) > 2


def test_thirty_chained_resumes_every_three_batches(store, views):
    """Each loader gives three batches; together they give what one loader gives."""
    plan = {"batch_size": 1, "block_chunks": 2, "lanes": 2, "budget_bytes": PLENTY}
    with tdi.build_loader(store, views, **plan) as whole:
        expected = [ids(batch) for _ in range(4) for batch in whole]
    found, state = [], None
    for _ in range(30):
        with tdi.build_loader(store, views, **plan) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += [ids(batch) for batch in itertools.islice(loader, 3)]
            state = through_json(loader.state_dict())
    assert len(found) > 80
    assert found == expected[: len(found)]


def ids(batch):
    return batch["sample_index"].tolist()


def test_a_state_of_one_node_is_a_place_for_every_other(made):
    """Also that of a planner which stands inside a batch, for the node that makes batches."""
    draws = {
        "planner": lambda segment: segment.draws[:, 0].tolist(),
        "gather": ids,
    }
    for name, other in (("planner", "gather"), ("gather", "planner")):
        node, sample = made.make(name), draws[name]
        states, items = [], []
        while True:
            states.append(node.state_dict())
            try:
                items.append(sample(next(node)))
            except StopIteration:
                break
        for n_before, state in enumerate(states):
            fresh = made.make(other)
            fresh.reset(state)
            left = [draw for item in fresh for draw in draws[other](item)]
            assert left == list(itertools.chain(*items[n_before:]))
