"""A loader over a mix keeps every promise of a loader over one chain."""

import copy
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torchdata.nodes
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import Batcher, Mapper, MultiNodeWeightedSampler

import torchdata_insitu as tdi
from tests.conftest import ROOT
from tests.contracts.chains import counted, our_threads, through_json
from tests.contracts.refusals import refused
from tests.contracts.watchdog import promptly
from tests.small_loaders import PLENTY, FailsAt, small_store
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
from torchdata_insitu.errors import ClosedError, PlanError, StateError
from torchdata_insitu.testing import CountingStore, check_resume, make_store

each_stop = pytest.mark.parametrize("stop", STOPS)


def same(batch):
    return batch


ROOTS = {
    "mix": lambda mix: mix,
    "Prefetcher": lambda mix: tdi.Prefetcher(mix, 2),
    "Mapper": lambda mix: tdi.Prefetcher(Mapper(mix, same), 3),
    "torchdata's Prefetcher": lambda mix: torchdata.nodes.Prefetcher(mix, 2),
}
each_root = pytest.mark.parametrize("root", ROOTS)


def make_loader(stop="first", root="Prefetcher", *, strict=True, **options):
    return tdi.InSituLoader(ROOTS[root](make_mix(stop, **options)), strict=strict)


@pytest.fixture(params=STOPS)
def loader(request):
    with make_loader(request.param) as loader:
        yield loader


def stop_of(loader):
    return loader.chain.mix_order.stop


def epochs_of(stop, n=3):
    return [expected_epoch(stop, epoch) for epoch in range(n)]


# Iteration


@each_stop
@each_root
def test_epochs_are_those_of_the_mix(stop, root):
    with make_loader(stop, root) as loader:
        for epoch, expected in enumerate(epochs_of(stop)):
            assert (loader.epoch, len(loader)) == (epoch, len(expected))
            assert all_seen(loader) == expected
            assert loader.stats().batches > 0


@each_stop
def test_the_length_counts_steps_done_and_left(stop):
    expected = [len(epoch) for epoch in epochs_of(stop)]
    assert stop == "all" or len(set(expected)) > 1
    with make_loader(stop) as loader:
        for n_batches in expected:
            # Before the iteration, as a progress bar asks; in it, up to the last batch.
            assert len(loader) == n_batches
            assert [len(loader) for _ in loader] == [n_batches] * n_batches


def test_where_it_stands(loader):
    assert (loader.epoch, loader.step, loader.position) == (0, 0, 0)
    n_samples = 0
    for number, batch in enumerate(loader, 1):
        n_samples += len(batch["sample_index"])
        if loader.epoch == 0:
            assert (loader.step, loader.position) == (number, n_samples)
    assert (loader.epoch, loader.step, loader.position) == (1, 0, 0)


def test_values_are_those_of_zarr():
    """Several arrays, windows and data types, each source from another store."""
    stores, sources, arrays = {}, {}, {}
    for name, n, dtype in (("era5", 30, "float32"), ("cmip", 21, "int16")):
        stores[name] = make_store({"t": counted((n, 3), dtype, first=n)}, chunks=(4, 2))
        arrays[name] = zarr.open_array(stores[name], path="t", mode="r")[...]
        views = {"x": tdi.open_arrays(stores[name])["t"].window(-1, 0)}
        sources[name] = tdi.build_loader(
            stores[name], views, batch_size=3, budget_bytes=PLENTY, sample_index=f"{name}_index"
        ).node
    mix = tdi.MixNode(sources, {"era5": 2, "cmip": 1}, stop="all")
    found = {name: [] for name in sources}
    with tdi.InSituLoader(mix) as loader:
        for batch in loader:
            name = "era5" if "era5_index" in batch else "cmip"
            anchors = batch[f"{name}_index"].numpy()
            found[name] += anchors.tolist()
            expected = np.stack([arrays[name][anchors - 1], arrays[name][anchors]], axis=1)
            np.testing.assert_array_equal(batch["x"].numpy(), expected, strict=True)
    assert {name: sorted(of_source) for name, of_source in found.items()} == {
        "era5": list(range(1, 30)),
        "cmip": list(range(1, 21)),
    }


def test_two_iterators_the_older_ends(loader):
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second) is not None
    with pytest.raises(ClosedError):
        next(first)
    assert loader.epoch == 1


def test_an_iterator_that_is_not_used_moves_nothing_and_starts_nothing():
    with make_loader("all") as loader:
        before = our_threads()
        iter(loader)
        iter(loader)
        assert (loader.epoch, loader.step) == (0, 0)
        assert len(loader) == len(expected_epoch("all"))
        assert our_threads() == before
        assert all_seen(loader) == expected_epoch("all")


def test_peek_moves_nothing(loader):
    expected = expected_epoch(stop_of(loader))
    assert seen(loader.peek()) == expected[0]
    assert loader.step == 0
    items = iter(loader)
    assert seen(next(items)) == expected[0]
    state = loader.state_dict()
    assert seen(loader.peek()) == expected[1]
    assert loader.state_dict() == state
    assert all_seen(items) == expected[1:]
    with pytest.raises(StopIteration):
        loader.peek()


@pytest.mark.parametrize("n", [0, 1, 5, 17])
def test_skip_goes_on_without_a_batch(loader, n):
    expected = expected_epoch(stop_of(loader))
    n = min(n, len(expected) - 1)
    items = iter(loader)
    assert seen(next(items)) == expected[0]
    loader.skip(n)
    assert loader.step == (n + 1) % len(expected)
    assert all_seen(items) == expected[1 + n :]
    with pytest.raises(PlanError, match="cannot skip 1000 batches"):
        loader.skip(1000)
    assert all_seen(loader) == expected_epoch(stop_of(loader), 1)


def test_set_epoch_gives_the_epoch_that_a_run_comes_to(loader):
    stop = stop_of(loader)
    loader.set_epoch(2)
    assert all_seen(loader) == expected_epoch(stop, 2)
    loader.set_epoch(1)
    assert all_seen(loader) == expected_epoch(stop, 1)
    assert all_seen(loader) == expected_epoch(stop, 2)


def test_set_epoch_each_time_changes_nothing_not_even_after_a_resume(loader):
    """As a trainer calls it, in a run that goes on and in one that begins at a state."""
    stop, states = stop_of(loader), []
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert all_seen(loader) == expected_epoch(stop, epoch)
        states.append(through_json(loader.state_dict()))
    for epoch, state in enumerate(states[:2], 1):
        with make_loader(stop) as other:
            other.load_state_dict(state)
            other.set_epoch(epoch)
            assert all_seen(other) == expected_epoch(stop, epoch)


def test_a_loaded_place_is_kept_with_a_warning(loader):
    stop = stop_of(loader)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match=r"set_epoch\(3\) is ignored.*epoch 0"):
        loader.set_epoch(3)
    assert all_seen(loader) == expected_epoch(stop)[1:]


# State


def test_the_state_is_small_plain_and_quick():
    """A mix of four; within 1 ms, the best of several, at the end of a long epoch."""
    names = ("era5-land-hourly", "cmip6-historical", "goes-abi-16", "imerg-final")
    sources = {}
    for name in names:
        store = make_store({"t": (40_000, 1)}, chunks=(10_000, 1))
        views = {"x": tdi.open_arrays(store)["t"]}
        planner = tdi.ChunkPlanner(views, batch_size=1, seed=10**9, block_chunks=16)
        pool = tdi.ChunkPool(PLENTY)
        fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
        sources[name] = tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))
    weights = dict(zip(names, (0.4123456789, 0.3, 0.2, 0.0876543211), strict=True))
    with tdi.InSituLoader(tdi.MixNode(sources, weights, seed=10**9, stop="cycle")) as loader:
        loader.set_epoch(123_456)
        loader.skip(len(loader) - 20)
        next(iter(loader))
        state = loader.state_dict()
        assert state["format"] == "torchdata_insitu.loader"
        assert len(json.dumps(state)) < 2000
        assert len(json.dumps(loader.node.state_dict())) < 2000
        times = []
        for _ in range(9):
            before = time.perf_counter()
            loader.state_dict()
            times.append(time.perf_counter() - before)
        assert min(times) < 1e-3


@each_stop
def test_the_state_shares_nothing_with_the_loader(stop):
    with make_loader(stop) as loader:
        next(iter(loader))
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        for _ in range(2):
            loader.load_state_dict(state)
            assert all_seen(loader) == expected_epoch(stop)[1:]
            assert state == kept
        loader.load_state_dict(state)
        state["cursors"]["a"]["plan"]["seed"] = 8
        state["plan"]["weights"].clear()
        assert loader.state_dict() == kept


@each_stop
@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"batch_size": 3, "lanes": 2, "tail": "drop", "block_chunks": 1},
        {"rank": 1, "world_size": 2, "batch_size": 2, "tail": "pad"},
        {"shuffle": False, "batch_size": 7},
    ],
)
def test_it_resumes_exactly_at_every_position(stop, plan):
    def make():
        return tdi.InSituLoader(tdi.Prefetcher(make_mix(stop, **plan)))

    with make() as loader:
        n_batches = len(loader)
    positions = list(range(n_batches + 1))
    if stop == "cycle" and plan:
        positions = [*positions[::5], n_batches - 1, n_batches]
    assert check_resume(make, positions=positions) == len(positions)


@each_root
def test_it_resumes_whatever_nodes_follow(root):
    assert check_resume(lambda: make_loader("all", root)) > 2


RESUMES = """
import json, sys
import torchdata_insitu as tdi
from tests.small_mixes import all_seen, make_mix

with tdi.InSituLoader(tdi.Prefetcher(make_mix("cycle", names="cab"))) as loader:
    loader.load_state_dict(json.load(sys.stdin))
    print(json.dumps([all_seen(loader), all_seen(loader)]))
"""


def test_it_resumes_in_a_process_of_its_own():
    with make_loader("cycle") as loader:
        items = iter(loader)
        for _ in range(25):
            next(items)
        state = loader.state_dict()
        assert max(cursor["epoch"] for cursor in state["cursors"].values()) > 0
    done = subprocess.run(
        [sys.executable, "-c", RESUMES],
        input=json.dumps(state),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    found = [[tuple(batch) for batch in epoch] for epoch in json.loads(done.stdout)]
    assert found == [expected_epoch("cycle")[25:], expected_epoch("cycle", 1)]


@each_stop
def test_two_hops_of_resumes_and_many(stop):
    """Each loader gives three batches; together they give what one loader gives."""
    expected = list(itertools.chain(*epochs_of(stop)))
    found, state = [], None
    while len(found) < len(expected):
        with make_loader(stop) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += all_seen(itertools.islice(loader, 3))
            state = through_json(loader.state_dict())
    assert found == expected


def test_the_state_after_the_last_batch_is_the_start_of_the_next_epoch(loader):
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["step"], state["exhausted"]) == (1, 0, [])
    for name in "abc":
        cursor = state["cursors"][name]
        assert (cursor["epoch"], cursor["position"]) == (1, 0)
    with make_loader(stop_of(loader)) as other:
        other.load_state_dict(through_json(state))
        assert all_seen(other) == expected_epoch(stop_of(loader), 1)


OTHERS = {
    "seed": (lambda: make_loader("all", seed=5), "seed was 0 and is 5"),
    "stop": (lambda: make_loader("first"), "stop was 'all' and is 'first'"),
    "weights": (
        lambda: make_loader("all", weights={**WEIGHTS, "a": 0.6}),
        "weights was",
        "'a': 0.5",
        "'a': 0.6",
    ),
    "names": (
        lambda: make_loader("all", names="ab"),
        "weights was",
        "'c': 0.3",
        "is {'a': 0.5, 'b': 0.2}",
    ),
    "plans": (lambda: make_loader("all", block_chunks=5), "source 'a'", "source 'c'", "was 2"),
    "one chain": (lambda: tdi.InSituLoader(make_source("a")), "weights was", "'absent'"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_mix_is_refused_and_changes_nothing(name):
    make, *facts = OTHERS[name]
    with make_loader("all") as loader:
        next(iter(loader))
        state = through_json(loader.state_dict())
    with make() as loader:
        items = iter(loader)
        next(items)
        before = loader.state_dict()
        with refused(StateError, *facts):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        next(items)


def test_a_state_of_one_chain_or_of_a_node_is_refused(loader):
    with tdi.InSituLoader(make_source("a")) as one, pytest.raises(StateError, match="weights"):
        loader.load_state_dict(one.state_dict())
    with pytest.raises(StateError, match=r"'torchdata_insitu.mix': expected .*insitu.loader'"):
        loader.load_state_dict(loader.chain.mix.state_dict())


@pytest.mark.parametrize("step", [None, -1, True, 1.0])
def test_a_bad_step_is_refused(loader, step):
    with pytest.raises(StateError, match="step"):
        loader.load_state_dict({**loader.state_dict(), "step": step})


def test_without_strict_the_saved_epoch_starts_anew():
    with make_loader("all") as loader:
        list(loader)
        next(iter(loader))
        state = loader.state_dict()
    with make_loader("all", strict=False, seed=3) as loader:
        with pytest.warns(UserWarning, match=r"starting epoch 1 anew .*seed was 0 and is 3"):
            loader.load_state_dict(state)
        assert all_seen(loader) == expected_epoch("all", 1, seed=3)


def test_sources_in_another_order_resume(loader):
    stop = stop_of(loader)
    next(iter(loader))
    with make_loader(stop, names="cba") as other:
        other.load_state_dict(through_json(loader.state_dict()))
        assert all_seen(other) == expected_epoch(stop)[1:]


# Other ranks and batch sizes


class Ledger:
    """One epoch of a mix in legs on changing ranks; counts what comes of each source."""

    def __init__(self, stop, tail):
        self.stop, self.tail = stop, tail
        self.found = {name: [] for name in "abc"}
        self.chosen = []
        self.state = None
        self.is_over = False

    def loader(self, rank, world_size, batch_size):
        plan = {"rank": rank, "world_size": world_size, "batch_size": batch_size}
        mix = make_mix(self.stop, tail=self.tail, lanes=2, **plan)
        return tdi.InSituLoader(tdi.Prefetcher(mix) if rank % 2 else mix)

    def run(self, world_size, batch_size, n_steps):
        states, lengths, batches = [], set(), []
        for rank in range(world_size):
            with self.loader(rank, world_size, batch_size) as loader:
                if self.state is not None:
                    loader.load_state_dict(self.state)
                lengths.add((len(loader), loader.step))
                mine = itertools.islice(loader, n_steps) if loader.epoch == 0 else ()
                batches.append(list(mine))
                states.append(through_json(loader.state_dict()))
        assert len(lengths) == 1
        assert states == states[:1] * world_size
        for of_step in zip(*batches, strict=True):
            (name,) = {seen(batch)[0] for batch in of_step}
            self.chosen.append(name)
            for batch in of_step:
                self.count(batch)
        self.state = states[0]
        self.is_over = self.state["epoch"] > 0

    def count(self, batch):
        name, samples = seen(batch)
        valid = batch["valid"].tolist() if "valid" in batch else [True] * len(samples)
        self.found[name] += [sample for sample, ok in zip(samples, valid, strict=True) if ok]


# An epoch that is resumed on other ranks keeps its lanes; what that costs is told.
may_share_lanes = pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")

legs = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9))


@may_share_lanes
@settings(max_examples=25)
@given(st.sampled_from(STOPS), st.sampled_from(["exact", "pad"]), st.lists(legs, max_size=4))
def test_samples_come_once_a_pass_over_changes_of_ranks_and_batches(stop, tail, history):
    ledger = Ledger(stop, tail)
    for leg in [*history, (2, 3, 10_000)]:
        if not ledger.is_over:
            ledger.run(*leg)
    assert ledger.is_over
    for name, found in ledger.found.items():
        n = SIZES[name]
        passes = [found[start : start + n] for start in range(0, len(found), n)]
        for of_pass in passes:
            assert len(set(of_pass)) == len(of_pass)
        for whole in passes[:-1]:
            assert sorted(whole) == list(range(n))
        if stop == "all":
            assert sorted(found) == list(range(n))
        if stop == "cycle":
            assert len(found) >= n
        if stop == "first":
            assert len(found) <= n
    if stop == "first":
        assert any(len(found) == SIZES[name] for name, found in ledger.found.items())


@may_share_lanes
def test_the_choices_go_on_over_a_change_of_ranks():
    """They are numbered by steps, whatever a step is worth."""
    ledger = Ledger("all", "exact")
    ledger.run(1, 2, 4)
    ledger.run(3, 1, 5)
    with make_loader("all") as loader:
        order = loader.chain.mix_order
        assert ledger.chosen == ["abc"[order.choices.at(0, step)] for step in range(9)]


# Reads, memory, errors, lifecycle


@each_stop
def test_reads_are_as_expected(stop):
    stores = {name: CountingStore(small_store(n)) for name, n in SIZES.items()}
    sources = {name: make_source(name, store=store) for name, store in stores.items()}
    with tdi.InSituLoader(tdi.MixNode(sources, WEIGHTS, stop=stop)) as loader:
        for store in stores.values():
            store.reset()
        expected = loader.expected_reads
        order, start = loader.chain.mix_order, loader.cursor
        by_array = order.reads_from(start)
        n_batches = len(loader)
        assert n_batches == len(list(loader))
        found = {f"{name}/t2m": store.reads() for name, store in stores.items()}
        assert loader.stats().reads == found
        assert sum(by_array.values()) == expected
    if stop == "cycle":
        # The pool holds everything, so that further passes read nothing.
        assert list(found.values()) == [6, 3, 10]
        assert all(by_array[name] >= found[name] for name in found)
    if stop == "all":
        assert found == by_array
    elif stop == "first":
        # A source that is left in the middle of a pass has read ahead.
        assert all(by_array[name] <= found[name] for name in found)


def test_a_whole_pass_is_counted_whole_and_a_part_by_what_it_needs():
    with make_loader("first", batch_size=2, block_chunks=1) as loader:
        order = loader.chain.mix_order
        reads = order.reads_from(loader.cursor)
        end = order.after(loader.cursor, len(loader))
        for (name, planner), cursor in zip(order.planners.items(), end.cursors, strict=True):
            start = planner.start_of(0)
            n_batches = None if planner.is_at_end(cursor) else cursor.position // 2
            assert reads[f"{name}/t2m"] == planner.reads_from(start, n_batches)["t2m"]
        assert any(
            0 < cursor.position < planner.plan.n_draws
            for planner, cursor in zip(order.planners.values(), end.cursors, strict=True)
        )
        loader.skip(len(loader) - 1)
        assert 1 <= loader.expected_reads < sum(reads.values())


def test_an_error_ends_the_leases_of_every_source_and_the_epoch_goes_on_behind_it():
    pool = tdi.ChunkPool(PLENTY)
    sources = {name: make_source(name, pool=pool) for name in "ab"}
    sources["c"] = make_source("c", pool=pool, transforms=[FailsAt(2)])
    mix = tdi.MixNode(sources, WEIGHTS, stop="all")
    with tdi.InSituLoader(tdi.Prefetcher(mix)) as loader:
        items, found = iter(loader), []
        with pytest.raises(LookupError, match="no such thing") as raised:
            found.extend(seen(batch) for batch in items)
        assert "in source 'c' of the mix" in raised.value.__notes__[-1]
        assert (pool.n_passes, our_threads_of(loader)) == (0, [])
        n_before = loader.step
        with pytest.raises(LookupError):
            next(items)
        assert all_seen(loader) == expected_epoch("all")[n_before:]


def our_threads_of(loader):
    del loader
    return [thread for thread in our_threads() if thread.name.startswith("insitu-prefetch")]


def test_close_ends_iterators_leases_and_threads_and_later_iterations_work(loader):
    items = iter(loader)
    next(items)
    loader.close()
    loader.close()
    with pytest.raises(ClosedError):
        next(items)
    for branch in loader.chain.branches.values():
        assert branch.pool_node.pool.n_passes == 0
    assert our_threads() == []
    assert all_seen(loader) == expected_epoch(stop_of(loader), 1)


@pytest.mark.usefixtures("batches_one_by_one")
def test_a_loader_that_is_collected_leaves_nothing():
    pool = tdi.ChunkPool(PLENTY)
    loader = tdi.InSituLoader(tdi.Prefetcher(make_mix("cycle", pool=pool)))
    next(iter(loader))
    assert pool.n_passes > 0
    del loader
    assert pool.n_passes == 0


@each_root
@pytest.mark.parametrize("wrap", [lambda node: node, tdi.Prefetcher])
def test_close_wakes_a_loader_that_waits_for_a_source_on_another_thread(root, wrap):
    pool = tdi.ChunkPool(PLENTY)
    mix, reached = make_stalled_mix(pool, wrap)
    loader = tdi.InSituLoader(ROOTS[root](mix))
    items, raised = iter(loader), []

    def run():
        try:
            list(items)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run)
    with promptly():
        thread.start()
        reached.wait()
        state = loader.state_dict()
        loader.close()
        thread.join()
    assert [type(error) for error in raised] == [ClosedError]
    assert (pool.n_passes, pool.n_in_use, our_threads()) == (0, 0, [])
    loader.load_state_dict(state)
    assert loader.state_dict() == state


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_goes_on_where_the_loader_stands(loader, copied):
    stop = stop_of(loader)
    items = iter(loader)
    for _ in range(4):
        next(items)
    with copied(loader) as other:
        assert other.state_dict() == loader.state_dict()
        assert len(other) == len(loader)
        assert all_seen(other) == expected_epoch(stop)[4:]
        assert all_seen(other) == expected_epoch(stop, 1)
    assert all_seen(items) == expected_epoch(stop)[4:]


class Counts(torchdata.nodes.BaseNode):
    """A node of somebody else with a state of its own, behind the mix."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.n = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.n = 0 if initial_state is None else initial_state["n"]
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self):
        batch = next(self.source)
        self.n += 1
        return {**batch, "valid": self.n}

    def get_state(self):
        return {"n": self.n, "source": self.source.state_dict()}


@each_stop
def test_a_node_of_somebody_else_behind_the_mix_keeps_its_state(stop):
    def make():
        return tdi.InSituLoader(tdi.Prefetcher(Counts(make_mix(stop))))

    with make() as loader:
        items = iter(loader)
        first = [next(items) for _ in range(4)]
        state = through_json(loader.state_dict())
        rest = list(items)
    assert [batch["valid"] for batch in [*first, *rest]] == list(range(1, 5 + len(rest)))
    with make() as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(state)
        assert [(seen(b), b["valid"]) for b in loader] == [(seen(b), b["valid"]) for b in rest]


# What it tells


def test_parts_of_a_mix_are_asked_for_by_name(loader):
    chain = loader.chain
    assert list(chain.branches) == ["a", "b", "c"]
    assert chain.graph == ["Prefetcher", "MixNode"]
    for name, branch in chain.branches.items():
        assert branch.planner.plan.n_draws == SIZES[name]
    for part in ("planner", "fetcher", "pool_node", "gather"):
        with refused(PlanError, "'a', 'b', 'c'", "chain.branches['a']"):
            getattr(chain, part)
    with refused(PlanError, "chain.branches['a']"):
        _ = loader.plan
    with tdi.InSituLoader(make_source("a")) as one, refused(PlanError, "no MixNode"):
        _ = one.chain.mix_order


def test_nodes_that_change_the_count_are_refused_behind_a_mix():
    with pytest.raises(PlanError, match=r"Batcher.*changes the number of items.*torchdata's"):
        tdi.InSituLoader(Batcher(make_mix(), 2))
    both = {"x": make_mix(names="a"), "y": make_mix(names="b")}
    with pytest.raises(PlanError, match=r"MultiNodeWeightedSampler.*changes the number"):
        tdi.InSituLoader(MultiNodeWeightedSampler(both, {"x": 1.0, "y": 1.0}))


class Two(torchdata.nodes.BaseNode):
    def __init__(self, one, other):
        super().__init__()
        self.one, self.other = one, other


def test_two_mixes_in_one_chain_are_refused():
    with refused(PlanError, "2 MixNodes", "put their sources into one"):
        tdi.InSituLoader(Two(make_mix(names="a"), make_mix(names="b")))


@each_stop
def test_describe_tells_each_source_and_reads_nothing(stop):
    stores = {name: CountingStore(small_store(n)) for name, n in SIZES.items()}
    sources = {name: make_source(name, store=store) for name, store in stores.items()}
    with tdi.InSituLoader(tdi.MixNode(sources, WEIGHTS, stop=stop)) as loader:
        for store in stores.values():
            store.reset()
        text = tdi.describe(loader)
        assert [store.reads() for store in stores.values()] == [0, 0, 0]
        lines = text.splitlines()
        assert lines[0] == (
            f"batches  {len(loader)} on each of 1 ranks (this is rank 0); epoch 0, from step 0, "
            "position 0"
        )
        assert lines[1] == f"mix      by weight: a 0.5, b 0.2, c 0.3; seed 0, stop {stop!r}"
        assert f"{loader.expected_reads} stored chunks this pass, of all sources" in lines[2]
        of_sources = [line for line in lines if line.startswith("source")]
        assert [line.split()[1] for line in of_sources] == ["a:", "b:", "c:"]
        assert of_sources[1].startswith("source   b: 3 batches of 4 draws")
        loader.skip(3)
        assert f"from step 3, position {loader.position}" in tdi.describe(loader).splitlines()[0]
