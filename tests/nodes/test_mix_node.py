import copy
import json
import math
import pickle
import threading

import pytest
import torchdata.nodes
from torchdata.nodes import Batcher, IterableWrapper, Mapper, ParallelMapper

import torchdata_insitu as tdi
from tests.contracts.chains import through_json
from tests.contracts.refusals import refused
from tests.contracts.watchdog import promptly
from tests.small_loaders import (
    PLENTY,
    FailsAt,
    ids,
    in_forked_child,
    shut_down,
    small_store,
    views_of,
)
from tests.small_mixes import (
    SIZES,
    STOPS,
    WEIGHTS,
    all_seen,
    expected_epoch,
    make_mix,
    make_source,
    make_stalled_mix,
    seen,
)
from torchdata_insitu.errors import BudgetError, ClosedError, PlanError, StateError
from torchdata_insitu.nodes.branch import Branch
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.planning.mix_cursor import PASS_EPOCHS

pytestmark = pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")

each_stop = pytest.mark.parametrize("stop", STOPS)


@pytest.fixture
def mix(request):
    with shut_down(make_mix("all")) as mix:
        yield mix


def epoch_of(mix):
    """The batches left of an epoch."""
    return all_seen(mix)


def samples(found, name):
    return [sample for source, samples in found if source == name for sample in samples]


# What comes


@each_stop
def test_batches_of_the_sources_come_unchanged_in_the_order_of_the_choices(stop):
    with shut_down(make_mix(stop)) as mix:
        for epoch in range(3):
            assert epoch_of(mix) == expected_epoch(stop, epoch)
            mix.reset(None)


def test_a_batch_is_the_object_that_the_source_made():
    made = []
    source = make_source("a", transforms=[lambda batch: made.append(batch) or batch])
    with shut_down(tdi.MixNode({"a": source}, {"a": 1})) as mix:
        assert next(mix) is made[0]


def test_first_ends_when_a_source_is_chosen_that_has_no_batch_left(mix):
    del mix
    with shut_down(make_mix("first")) as mix:
        found = epoch_of(mix)
        mix.reset(mix.state_dict())
        ended = mix.order.choices.at(0, len(found))
    name = "abc"[ended]
    assert sorted(samples(found, name)) == list(range(SIZES[name]))
    assert all(len(samples(found, name)) <= SIZES[name] for name in "abc")


def test_all_gives_every_sample_of_every_source_once(mix):
    found = epoch_of(mix)
    for name in "abc":
        assert sorted(samples(found, name)) == list(range(SIZES[name]))


def test_cycle_gives_every_sample_once_a_pass_and_other_orders_in_each():
    with shut_down(make_mix("cycle")) as mix:
        found = epoch_of(mix)
        cursors = mix.cursor.cursors
    passes = {}
    for number, name in enumerate("abc"):
        of_source = samples(found, name)
        n = SIZES[name]
        assert len(of_source) >= n
        passes[name] = [of_source[start : start + n] for start in range(0, len(of_source), n)]
        assert cursors[number].epoch == PASS_EPOCHS * (len(passes[name]) - 1)
        for samples_of_pass in passes[name][:-1]:
            assert sorted(samples_of_pass) == list(range(n))
    assert max(map(len, passes.values())) > 1
    for of_source in passes.values():
        assert len(of_source) == 1 or of_source[0] != of_source[1]


@each_stop
def test_the_order_in_which_sources_are_given_does_not_matter(stop):
    with shut_down(make_mix(stop, names="cab")) as mix:
        assert list(mix.source_nodes) == ["a", "b", "c"]
        assert epoch_of(mix) == expected_epoch(stop)


def test_every_rank_chooses_alike_and_takes_its_own_samples():
    found = []
    for rank in range(2):
        with shut_down(make_mix("all", rank=rank, world_size=2, tail="exact")) as mix:
            batches = list(mix)
            found.append([(seen(batch), batch["valid"].tolist()) for batch in batches])
    assert [name for (name, _), _ in found[0]] == [name for (name, _), _ in found[1]]
    for name in "abc":
        of_source = [
            sample
            for of_rank in found
            for (source, samples), valid in of_rank
            for sample, ok in zip(samples, valid, strict=True)
            if ok and source == name
        ]
        assert sorted(of_source) == list(range(SIZES[name]))


def plus_nothing(batch):
    return batch


WRAPS = {
    "Prefetcher": lambda node: tdi.Prefetcher(node, 2),
    "Mapper": lambda node: Mapper(node, plus_nothing),
    "ParallelMapper": lambda node: ParallelMapper(node, plus_nothing, num_workers=2),
    "torchdata's Prefetcher": lambda node: torchdata.nodes.Prefetcher(node, 2),
    "PinMemory": tdi.PinMemory,
    "all": lambda node: tdi.PinMemory(tdi.Prefetcher(Mapper(node, plus_nothing), 2)),
}


@each_stop
@pytest.mark.parametrize("wrap", WRAPS)
def test_sources_may_end_with_nodes_that_keep_the_count(stop, wrap):
    with shut_down(make_mix(stop, wrap=WRAPS[wrap])) as mix:
        states, found = [], []
        for _ in range(2):
            epoch = []
            states.append(through_json(mix.state_dict()))
            for batch in mix:
                epoch.append(seen(batch))
                states.append(through_json(mix.state_dict()))
            found += epoch
            mix.reset(None)
        assert found == expected_epoch(stop, 0) + expected_epoch(stop, 1)
        mix.reset(states[3])
        assert epoch_of(mix) == expected_epoch(stop, 0)[3:]


@each_stop
def test_sources_may_share_a_pool(stop):
    pool = tdi.ChunkPool(PLENTY)
    with shut_down(make_mix(stop, pool=pool)) as mix:
        assert epoch_of(mix) == expected_epoch(stop)
        assert pool.n_passes == 0


@each_stop
def test_a_pool_of_the_sum_of_floors_is_enough(stop):
    with shut_down(make_mix(stop)) as mix:
        floor = sum(branch.planner.floor_bytes(1) for branch in mix.branches.values())
    pool = tdi.ChunkPool(floor)
    with shut_down(make_mix(stop, pool=pool)) as mix, promptly(30):
        for epoch in range(2):
            assert epoch_of(mix) == expected_epoch(stop, epoch)
            mix.reset(None)


@pytest.mark.usefixtures("batches_one_by_one")
def test_a_pool_too_small_for_all_sources_says_so_when_the_one_too_many_is_chosen():
    """A source holds its floor from its first batch of an epoch to its last."""
    n_bytes = 6 * 4
    pool = tdi.ChunkPool(2 * 4 * n_bytes * 2)
    with shut_down(make_mix("all", pool=pool)) as mix:
        names = [name for name, _ in expected_epoch("all")]
        n_before = min(names.index(name) for name in "abc" if names.index(name) > 1)
        for _ in range(n_before):
            next(mix)
        with pytest.raises(BudgetError) as raised:
            next(mix)
        assert "in source" in raised.value.__notes__[-1]
        assert pool.n_passes == 0


def test_an_epoch_that_leaves_sources_in_the_middle_gives_their_chunks_back():
    pool = tdi.ChunkPool(PLENTY)
    with shut_down(make_mix("first", pool=pool, wrap=tdi.Prefetcher)) as mix:
        for epoch in range(2):
            for _ in mix:
                pass
            positions = [cursor.position for cursor in mix.cursor.cursors]
            assert any(0 < p < n for p, n in zip(positions, SIZES.values(), strict=True))
            assert (pool.n_passes, pool.n_in_use) == (0, 0)
            with pytest.raises(StopIteration):
                next(mix)
            mix.reset(None)
            assert mix.cursor.epoch == epoch + 1


# State


def test_the_state_is_small_plain_and_by_name(mix):
    next(mix)
    state = mix.state_dict()
    assert through_json(state) == state
    assert state["format"] == "torchdata_insitu.mix"
    assert set(state["cursors"]) == {"a", "b", "c"}
    assert (state["epoch"], state["step"], state["exhausted"]) == (0, 1, [])
    assert state["plan"] == {"order": 1, "seed": 0, "stop": "all", "weights": WEIGHTS}


def test_a_cursor_of_the_state_is_one_of_the_source(mix):
    for _ in range(7):
        next(mix)
    state = mix.state_dict()
    left = samples(epoch_of(mix), "c")
    with shut_down(make_source("c")) as alone:
        alone.reset(state["cursors"]["c"])
        assert [sample for batch in alone for sample in ids(batch)] == left


def test_the_state_names_what_is_exhausted(mix):
    for _ in mix:
        exhausted = mix.state_dict()["exhausted"]
        cursors = mix.state_dict()["cursors"]
        assert exhausted == [n for n in "abc" if cursors[n]["position"] == SIZES[n]]
    assert exhausted == ["a", "b", "c"]


@each_stop
def test_the_state_shares_nothing_with_the_mix(stop):
    with shut_down(make_mix(stop)) as mix:
        for _ in range(5):
            next(mix)
        state = mix.state_dict()
        kept = copy.deepcopy(state)
        mix.reset(state)
        rest = epoch_of(mix)
        assert state == kept
        mix.reset(state)
        state["plan"]["weights"]["a"] = 9
        state["cursors"]["b"]["plan"]["seed"] = 9
        state["cursors"]["c"].clear()
        state["exhausted"].append("c")
        assert epoch_of(mix) == rest
        mix.reset(kept)
        assert epoch_of(mix) == rest


def test_sources_in_another_order_are_no_difference_to_a_state(mix):
    for _ in range(6):
        next(mix)
    state = mix.state_dict()
    rest = epoch_of(mix)
    state["cursors"] = dict(reversed(state["cursors"].items()))
    state["plan"]["weights"] = dict(reversed(state["plan"]["weights"].items()))
    with shut_down(make_mix("all", names="bca")) as other:
        other.reset(through_json(state))
        assert epoch_of(other) == rest


def changed(state, *path, value):
    state = copy.deepcopy(state)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return state


BAD_STATES = {
    "a cursor": (lambda s: s["cursors"]["a"], "'torchdata_insitu.cursor'", "torchdata_insitu.mix"),
    "empty": (lambda _: {}, "is empty"),
    "another seed": (lambda s: changed(s, "plan", "seed", value=4), "seed was 4 and is 0"),
    "another stop": (
        lambda s: changed(s, "plan", "stop", value="cycle"),
        "stop was 'cycle' and is 'all'",
    ),
    "another weight": (
        lambda s: changed(s, "plan", "weights", value={**WEIGHTS, "b": 0.3}),
        "weights was",
        "'b': 0.3",
        "'b': 0.2",
    ),
    "other names": (
        lambda s: changed(s, "plan", "weights", value={"a": 0.5, "b": 0.2, "d": 0.3}),
        "'d': 0.3",
        "'c': 0.3",
    ),
    "another order": (lambda s: changed(s, "plan", "order", value=2), "order was 2 and is 1"),
    "newer": (lambda s: changed(s, "version", value=2), "version 2, newer than version 1"),
    "no source": (lambda s: changed(s, "cursors", value={}), "[]", "['a', 'b', 'c']"),
    "sources as a list": (lambda s: changed(s, "cursors", value=[1]), "[1]", "['a', 'b', 'c']"),
    "a source of another plan": (
        lambda s: changed(s, "cursors", "b", "plan", "seed", value=5),
        "source 'b'",
        "seed was 5 and is 0",
    ),
    "two sources of other plans": (
        lambda s: changed(
            changed(s, "cursors", "b", "plan", "n", value=5), "cursors", "c", "plan", "n", value=6
        ),
        "source 'b'",
        "n was 5 and is 10",
        "source 'c'",
        "n was 6 and is 37",
    ),
    "a position too far": (
        lambda s: changed(s, "cursors", "a", "position", value=23),
        "source 'a'",
        "position of the state is 23",
    ),
    "a source of another epoch": (
        lambda s: changed(s, "cursors", "a", "epoch", value=1),
        "source 'a'",
        "epoch 1, which is no pass of epoch 0",
    ),
    "a further pass without a cycle": (
        lambda s: changed(s, "cursors", "a", "epoch", value=PASS_EPOCHS),
        "source 'a'",
        f"epoch {PASS_EPOCHS}, which is no pass",
    ),
    "inside a batch": (
        lambda s: changed(
            changed(s, "cursors", "a", "origin", value=0), "cursors", "a", "position", value=1
        ),
        "source 'a'",
        "inside a batch",
    ),
    "no step": (lambda s: changed(s, "step", value=None), "step of the state is None"),
    "a negative step": (lambda s: changed(s, "step", value=-1), "step of the state is -1"),
    "a float epoch": (lambda s: changed(s, "epoch", value=0.0), "epoch of the state is 0.0"),
    "exhausted made up": (
        lambda s: changed(s, "exhausted", value=["a"]),
        "['a'] are exhausted",
        "[] are",
    ),
    "no exhausted": (lambda s: changed(s, "exhausted", value=None), "None are exhausted"),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_bad_state_is_refused_with_both_values_and_changes_nothing(mix, name):
    change, *facts = BAD_STATES[name]
    for _ in range(2):
        next(mix)
    state = mix.state_dict()
    with refused(StateError, *facts):
        mix.reset(change(state))
    with refused(StateError, *facts):
        tdi.Prefetcher(mix).reset({"source": change(state)})
    assert mix.state_dict() == state
    assert epoch_of(mix) == expected_epoch("all")[2:]


# Where it stands


@each_stop
def test_reset_goes_where_the_rules_say(stop):
    with shut_down(make_mix(stop)) as mix:
        mix.reset(None)
        mix.reset(None)
        assert mix.cursor.epoch == 0
        for _ in range(3):
            next(mix)
        middle = mix.state_dict()
        mix.reset(None)
        assert (mix.cursor.epoch, mix.cursor.step, mix.cursor.position) == (1, 0, 0)
        mix.reset(middle)
        mix.reset(None)
        assert (mix.cursor.epoch, mix.cursor.step) == (0, 0)
        assert epoch_of(mix) == expected_epoch(stop)
        end = mix.state_dict()
        mix.reset(end)
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(mix)
        assert mix.state_dict() == end
        mix.reset(None)
        assert epoch_of(mix) == expected_epoch(stop, 1)


@each_stop
def test_a_mix_goes_to_a_place_that_is_sought(stop):
    with shut_down(make_mix(stop)) as mix:
        start = mix.order.start_of(4)
        mix.seek(mix.order.after(start, 5))
        assert mix.cursor.step == 5
        mix.reset(None)
        assert epoch_of(mix) == expected_epoch(stop, 4)[5:]


@each_stop
@pytest.mark.parametrize("n_first", [0, 1, 15, 16, 17, 18])
def test_places_are_found_without_a_walk(stop, n_first):
    """In one go or one after the other, it is where the batches lead."""
    with shut_down(make_mix(stop, batch_size=1)) as mix:
        order = mix.order
        start = order.start_of(2)
        mix.seek(start)
        mix.reset(None)
        n_steps = order.steps_from(start)
        walked = [mix.cursor, *(mix.cursor for _ in mix)]
        assert len(walked) == n_steps + 1
        for number, place in enumerate(walked):
            assert order.steps_from(place) == n_steps - number
            order.after(start, min(n_first, number))
            assert order.after(start, number) == place
            assert pickle.loads(pickle.dumps(order)).after(start, number) == place
        assert order.is_at_end(walked[-1])
        assert not order.is_at_end(walked[-2])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda mix: pickle.loads(pickle.dumps(mix))])
def test_a_copy_goes_on_where_the_mix_stands(copied, mix):
    for _ in range(5):
        next(mix)
    with shut_down(copied(mix)) as other:
        assert other.state_dict() == mix.state_dict()
        assert epoch_of(other) == expected_epoch("all")[5:]
    assert epoch_of(mix) == expected_epoch("all")[5:]


# Errors and ends


def test_an_error_of_a_source_stays_names_it_and_ends_the_leases_of_all():
    error = LookupError("no such thing")
    pool = tdi.ChunkPool(PLENTY)
    sources = {name: make_source(name, pool=pool) for name in "ab"}
    sources["c"] = tdi.Prefetcher(make_source("c", pool=pool, transforms=[FailsAt(3, error)]))
    with shut_down(tdi.MixNode(sources, WEIGHTS, stop="all")) as mix:
        of_c = [step for step, (name, _) in enumerate(expected_epoch("all")) if name == "c"]
        n_before = of_c[2]
        found = [seen(next(mix)) for _ in range(n_before)]
        state = mix.state_dict()
        with pytest.raises(LookupError) as raised:
            next(mix)
        assert raised.value is error
        assert error.__notes__[-1] == f"in source 'c' of the mix, at step {len(found)}"
        assert mix.state_dict() == state
        assert (pool.n_passes, pool.n_in_use) == (0, 0)
        with pytest.raises(LookupError):
            next(mix)
        mix.reset(state)
        assert found + epoch_of(mix) == expected_epoch("all")


class Ends:
    """A function for a mapper that ends or empties what it maps, at the n-th batch."""

    def __init__(self, number, result):
        self._left = number
        self._result = result

    def __call__(self, batch):
        self._left -= 1
        if self._left:
            return batch
        if self._result is StopIteration:
            raise StopIteration
        return self._result


@pytest.mark.parametrize(
    "result, what", [(StopIteration, "ended"), (None, "gave None for a batch")]
)
def test_a_source_that_gives_less_than_planned_is_an_error_and_no_end(result, what):
    node = Mapper(make_source("a"), Ends(3, result))
    with shut_down(tdi.MixNode({"a": node}, {"a": 1})) as mix:
        next(mix)
        next(mix)
        for _ in range(2):
            with refused(PlanError, f"source 'a' of the mix {what} at position 8", "4 batches"):
                next(mix)


@pytest.mark.parametrize("wrap", ["nothing", "Prefetcher", "torchdata's Prefetcher"])
@pytest.mark.parametrize("verb", ["interrupt", "shutdown"])
def test_verbs_reach_a_source_that_waits_on_another_thread(wrap, verb):
    pool = tdi.ChunkPool(PLENTY)
    mix, reached = make_stalled_mix(pool, WRAPS.get(wrap, lambda node: node))
    raised = []

    def run():
        try:
            while True:
                next(mix)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run)
    with shut_down(mix), promptly():
        thread.start()
        reached.wait()
        state = mix.state_dict()
        getattr(mix, verb)()
        thread.join()
        assert [isinstance(error, ClosedError) for error in raised] == [True]
        with pytest.raises(ClosedError):
            next(mix)
        mix.reset(state)
        if verb == "shutdown":
            mix.shutdown()
            mix.shutdown()
            assert (pool.n_passes, pool.n_in_use) == (0, 0)


@pytest.mark.parametrize("verb", ["interrupt", "shutdown"])
def test_a_verb_is_not_lost_while_a_source_begins_another_pass(monkeypatch, verb):
    """As if another thread called it just before the nodes of the source are reset."""
    with shut_down(make_mix("cycle")) as mix:
        start, said = Branch.start, []

        def start_after_verb(branch, cursor):
            if cursor.epoch >= PASS_EPOCHS and not said:
                said.append(cursor)
                getattr(mix, verb)()
            start(branch, cursor)

        monkeypatch.setattr(Branch, "start", start_after_verb)
        found = []
        with pytest.raises(ClosedError):
            found.extend(seen(batch) for batch in mix)
        assert said
        state = mix.state_dict()
        assert state["step"] == len(found)
        mix.reset(state)
        assert found + epoch_of(mix) == expected_epoch("cycle")


def test_a_mix_that_was_shut_down_starts_anew_at_a_reset(mix):
    for _ in range(4):
        next(mix)
    state = mix.state_dict()
    mix.shutdown()
    with pytest.raises(ClosedError, match="was shut down"):
        next(mix)
    mix.reset(state)
    assert epoch_of(mix) == expected_epoch("all")[4:]


def test_a_forked_child_is_refused(mix):
    next(mix)

    def use():
        with pytest.raises(ClosedError, match="forked child"):
            next(mix)

    assert in_forked_child(use) == ""


# Bad input


class Own(torchdata.nodes.BaseNode):
    def __init__(self, source):
        super().__init__()
        self.source = source


def test_names_have_to_be_those_of_the_weights():
    sources = {"era5": make_source("a"), "cmip": make_source("b")}
    with refused(
        PlanError,
        "['cmip', 'era5']",
        "['ERA5', 'cmip']",
    ):
        tdi.MixNode(sources, {"cmip": 1, "ERA5": 1})
    with refused(PlanError, "['cmip', 'era5']", "['era5']"):
        tdi.MixNode(sources, {"era5": 1})


def test_no_source_is_refused():
    with refused(PlanError, "no source"):
        tdi.MixNode({}, {})


@pytest.mark.parametrize("arguments", [([], {}), ({}, [1]), (None, None)])
def test_mappings_are_asked_for(arguments):
    with refused(PlanError, "mappings"):
        tdi.MixNode(*arguments)


def test_a_name_has_to_be_text():
    with refused(PlanError, "7", "names are text"):
        tdi.MixNode({7: make_source("a"), "b": make_source("b")}, {7: 1, "b": 1})


@pytest.mark.parametrize("weight", [0, -1.0, math.nan, math.inf, "1", None])
def test_a_weight_has_to_be_positive_and_finite(weight):
    with refused(PlanError, "'a'", repr(weight)):
        tdi.MixNode({"a": make_source("a")}, {"a": weight})


def test_an_unknown_stop_rule_is_refused():
    with refused(PlanError, "'last'", "'first', 'all', 'cycle'"):
        make_mix("last")


def test_a_source_of_stop_cycle_that_is_too_rare_is_refused_before_anything_is_read():
    mix = make_mix("cycle", weights={"a": 1, "b": 1e-12, "c": 1})
    with shut_down(mix), refused(PlanError, "'b'", "more weight"):
        mix.order.steps_from(mix.cursor)


@pytest.mark.parametrize("node", [3, None, "a", [1]])
def test_a_source_that_is_no_node_is_refused(node):
    with refused(PlanError, "'x'", repr(node), "not a node"):
        tdi.MixNode({"x": node}, {"x": 1})


NO_CHAINS = {
    "no planner": (lambda: IterableWrapper([]), "IterableWrapper"),
    "a node of somebody else": (lambda: Own(make_source("a")), "Own", "Mapper"),
    "a batcher": (lambda: Batcher(make_source("a"), 2), "Batcher", "torchdata's Loader"),
    "out of order": (
        lambda: ParallelMapper(make_source("a"), plus_nothing, num_workers=2, in_order=False),
        "out of order",
    ),
    "only a planner": (lambda: make_source("a").planner, "0 nodes of kind AsyncChunkFetcher"),
    "a pool node": (lambda: make_source("a").source, "0 nodes of kind GatherNode"),
    "a mix": (lambda: make_mix("all", names="bc"), "a mix itself", "product of both weights"),
    "a mix below": (lambda: tdi.Prefetcher(make_mix("all", names="bc")), "a mix itself"),
}


@pytest.mark.parametrize("name", NO_CHAINS)
def test_a_source_that_is_no_chain_is_refused_by_its_name(name):
    make, *facts = NO_CHAINS[name]
    with refused(PlanError, "source 'x'", *facts):
        tdi.MixNode({"x": make(), "a": make_source("a")}, {"x": 1, "a": 1})


def test_a_stock_source_that_has_a_planner_nowhere_is_refused():
    with refused(PlanError, "source 'x'"):
        tdi.MixNode({"x": Own(IterableWrapper([]))}, {"x": 1})


def test_one_node_for_two_sources_is_refused():
    node = make_source("a")
    with refused(PlanError, "'x' and 'y'", "same GatherNode"):
        tdi.MixNode({"x": node, "y": node}, {"x": 1, "y": 1})
    with refused(PlanError, "'x' and 'y'", "the same", "chain of its own"):
        tdi.MixNode({"x": node, "y": tdi.Prefetcher(node)}, {"x": 1, "y": 1})
    store, pool = small_store(), tdi.ChunkPool(PLENTY)
    planner = tdi.ChunkPlanner(views_of(store), batch_size=4)
    chains = [
        tdi.GatherNode(tdi.ChunkPoolNode(tdi.AsyncChunkFetcher(planner, store, pool), pool))
        for _ in range(2)
    ]
    with refused(PlanError, "'x' and 'y'", "same ChunkPlanner"):
        tdi.MixNode(dict(zip("xy", chains, strict=True)), {"x": 1, "y": 1})


def test_sources_of_other_ranks_are_refused():
    ranks = {"a": (0, 2), "b": (0, 2), "c": (1, 2)}
    sources = {
        name: make_source(name, rank=rank, world_size=n) for name, (rank, n) in ranks.items()
    }
    with refused(PlanError, "rank 0 of 2 in 'a'", "rank 1 of 2 in 'c'"):
        tdi.MixNode(sources, WEIGHTS)


def test_ranks_that_are_looked_up_are_compared_at_the_first_use(monkeypatch):
    sources = {"a": make_source("a"), "b": make_source("b", rank=0, world_size=1)}
    mix = tdi.MixNode(sources, {"a": 1, "b": 1})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(PlanError, "rank 1 of 2 in 'a'", "rank 0 of 1 in 'b'"):
        next(mix)


def test_nothing_is_started_and_no_rank_is_read_before_it_is_needed(monkeypatch):
    before = threading.active_count()
    mix = make_mix()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert mix.order.ranks == (1, 2)
    assert threading.active_count() == before
    assert json.dumps(mix.state_dict())
    assert all(getattr(node, "pool", None) is None or node.pool.n_passes == 0 for node in walk(mix))
