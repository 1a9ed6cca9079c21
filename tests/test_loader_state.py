"""What a loader's state holds, and which states it takes."""

import copy
import io
import json
import threading
import warnings

import pytest
import torch
import torchdata.nodes

import torchdata_insitu as tdi
from tests.small_loaders import (
    N,
    all_ids,
    flat,
    ids,
    make_gather,
    make_loader,
    small_store,
    take,
    views_of,
)
from torchdata_insitu.errors import StateError
from torchdata_insitu.loader_state import FORMAT, saved_epoch
from torchdata_insitu.testing import CountingStore, make_store


@pytest.fixture(scope="module")
def state():
    """After three batches of the second epoch."""
    with make_loader() as loader:
        list(loader)
        take(loader, 3)
        return json.loads(json.dumps(loader.state_dict()))


# What it holds


def test_state_is_small_plain_and_weights_only_loadable(loader, state, epochs):
    text = json.dumps(state)
    assert len(text) < 600
    assert json.loads(text) == state
    plain = (int, str, bool)
    assert all(
        type(value) in plain
        for value in (*state.values(), *state["plan"].values())
        if value is not state["plan"]
    )
    assert (state["format"], state["version"]) == (FORMAT, 1)
    assert (state["epoch"], state["position"], state["step"], state["lanes"]) == (1, 12, 3, 1)
    file = io.BytesIO()
    torch.save({"loader": state}, file)
    file.seek(0)
    loader.load_state_dict(torch.load(file, weights_only=True)["loader"])
    assert all_ids(loader) == epochs[1][3:]


def test_a_state_is_small_whatever_the_plan():
    store = make_store({f"a_rather_long_name_{k}": (40, 2) for k in range(30)}, chunks=(1, 2))
    views = {name: array.window(-2, 0, 1) for name, array in tdi.open_arrays(store).items()}
    with make_loader(store, views, seed=2**62, block_chunks=10**9, run_chunks=10**9) as loader:
        loader.set_epoch(10**9)
        assert len(json.dumps(loader.state_dict())) < 600


def test_a_state_is_fresh_each_time_and_shares_nothing(loader, epochs):
    take(loader, 2)
    first = loader.state_dict()
    spoiled = loader.state_dict()
    spoiled["plan"]["seed"] = "spoiled"
    spoiled["position"] = -1
    assert loader.state_dict() == first
    loader.load_state_dict(first)
    first["epoch"] = 7
    first["plan"].clear()
    assert all_ids(loader) == epochs[0][2:]


def test_state_dict_reads_nothing_and_starts_nothing_and_moves_nothing(epochs):
    store = CountingStore(small_store())
    with make_loader(store, prefetch_factor=0) as loader:
        store.reset()
        before = threading.active_count()
        assert loader.state_dict() == loader.state_dict()
        assert (store.reads(), threading.active_count()) == (0, before)
        for batch, expected in zip(loader, epochs[0], strict=True):
            reads = store.reads()
            assert loader.state_dict() == loader.state_dict()
            assert store.reads() == reads
            assert ids(batch) == expected


def over_the_gather(wrap):
    """A loader whose chain ends with other nodes than those that `build_loader` ends with."""
    return tdi.InSituLoader(wrap(make_gather()))


def same(batch):
    return batch


def every(n_batches):
    """torchdata's own prefetcher, which asks for states after so many batches only."""
    return lambda node: torchdata.nodes.Prefetcher(node, 3, snapshot_frequency=n_batches)


GRAPHS = {
    "alone": lambda: make_loader(prefetch_factor=0),
    "one ahead": lambda: make_loader(prefetch_factor=1),
    "many ahead": lambda: make_loader(prefetch_factor=30),
    "pinned": lambda: make_loader(pin_memory=True),
    "transformed": lambda: make_loader(batch_transforms=[dict]),
    "small pool": lambda: make_loader(budget_bytes=3 * 96),
    "copies": lambda: make_loader(tail="pad"),
    "twice ahead": lambda: over_the_gather(lambda node: tdi.Prefetcher(tdi.Prefetcher(node))),
    "mapped": lambda: over_the_gather(lambda node: torchdata.nodes.Mapper(node, same)),
    "mapped side by side": lambda: over_the_gather(
        lambda node: torchdata.nodes.ParallelMapper(node, same, 2)
    ),
    "another prefetcher": lambda: over_the_gather(every(1)),
    "another prefetcher, seldom asked": lambda: over_the_gather(every(3)),
    "another prefetcher, never asked": lambda: over_the_gather(every(0)),
}


@pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")
@pytest.mark.parametrize("name", GRAPHS)
def test_state_independent_of_graph_and_prefetch_depth(name, state, epochs):
    with GRAPHS[name]() as loader:
        list(loader)
        take(loader, 3)
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert flat(all_ids(loader))[: N - 12] == flat(epochs[1][3:])


def test_a_state_is_the_same_on_every_rank():
    states = []
    for rank in range(3):
        with make_loader(rank=rank, world_size=3, batch_size=2) as loader:
            take(loader, 2)
            states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    assert states[0]["position"] == 2 * 2 * 3


def test_a_state_is_the_same_wherever_the_data_lie(tmp_path):
    states = []
    for path in (tmp_path / "here", tmp_path / "there", None):
        with make_loader(small_store(path=path)) as loader:
            take(loader, 2)
            states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]


# load_state_dict


def nothing(loader):
    pass


def asks_for_the_state(loader):
    loader.state_dict()


def asks_for_the_length(loader):
    len(loader)


def makes_an_iterator(loader):
    iter(loader)


def takes_a_batch(loader):
    take(loader, 1)


def peeks(loader):
    loader.peek()


def goes_through_an_epoch(loader):
    list(loader)


def sets_the_epoch(loader):
    loader.set_epoch(2)


def leaves_early_and_sets_the_epoch(loader):
    take(loader, 1)
    loader.set_epoch(2)


def skips(loader):
    loader.skip(2)


def closes(loader):
    take(loader, 1)
    loader.close()


def loads_another(loader):
    before = loader.state_dict()
    take(loader, 2)
    loader.load_state_dict(before)


BEFORE = [
    nothing,
    asks_for_the_state,
    asks_for_the_length,
    makes_an_iterator,
    takes_a_batch,
    peeks,
    goes_through_an_epoch,
    sets_the_epoch,
    leaves_early_and_sets_the_epoch,
    skips,
    closes,
    loads_another,
]


@pytest.mark.parametrize("first", BEFORE, ids=lambda function: function.__name__)
def test_load_state_dict_wins_whatever_was_called_before(loader, state, epochs, first):
    first(loader)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert all_ids(loader) == epochs[1][3:]
    assert all_ids(loader) == epochs[2]


def test_load_state_dict_ends_an_iterator_that_is_under_way(loader, state, epochs):
    items = iter(loader)
    next(items)
    loader.load_state_dict(state)
    with pytest.raises(tdi.errors.ClosedError):
        next(items)
    assert all_ids(loader) == epochs[1][3:]


def test_a_state_of_an_epoch_of_which_nothing_is_left_goes_to_the_next():
    with make_loader(batch_size=5, tail="drop") as loader:
        take(loader, 3)
        state = loader.state_dict()
        following = all_ids(loader)
    with make_loader(batch_size=8, tail="drop") as loader:
        loader.load_state_dict(state)
        assert (loader.epoch, loader.position, loader.step, len(loader)) == (1, 0, 0, 2)
        assert flat(all_ids(loader)) == flat(following)[:16]


def test_batch_size_and_tail_may_change(state, epochs):
    with make_loader(batch_size=3, tail="drop") as loader:
        loader.load_state_dict(state)
        assert flat(all_ids(loader)) == flat(epochs[1][3:])[:9]
        assert flat(all_ids(loader)) == flat(epochs[2])[:21]


def test_lanes_asked_for_hold_from_the_next_epoch_on(state, epochs):
    with make_loader(lanes=3) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["lanes"] == 1
        assert all_ids(loader) == epochs[1][3:]
        assert loader.state_dict()["lanes"] == 3


# Bad states


def with_(state, **changed):
    changed_plan = {k: v for k, v in changed.items() if k in state["plan"]}
    rest = {k: v for k, v in changed.items() if k not in state["plan"]}
    return {**state, **rest, "plan": {**state["plan"], **changed_plan}}


class Foreign:
    """States of other loaders, made by them."""

    @staticmethod
    def torchdata():
        loader = torchdata.nodes.Loader(torchdata.nodes.IterableWrapper(range(3)))
        next(iter(loader))
        return loader.state_dict()

    @staticmethod
    def stateful():
        from torchdata.stateful_dataloader import StatefulDataLoader

        with warnings.catch_warnings():
            # It calls what torch itself warns of.
            warnings.simplefilter("ignore")
            loader = StatefulDataLoader(list(range(4)), num_workers=0)
            next(iter(loader))
            return loader.state_dict()


BAD = {
    "empty": (lambda _: {}, "is empty"),
    "none": (lambda _: None, "is a NoneType"),
    "a list": (lambda state: [state], "is a list"),
    "of torchdata's loader": (lambda _: Foreign.torchdata(), "torchdata.nodes.Loader"),
    "of a data loader": (lambda _: Foreign.stateful(), "StatefulDataLoader"),
    "of a node": (lambda s: {**s, "format": "torchdata_insitu.cursor"}, "insitu.cursor'"),
    "of something": (lambda _: {"weights": 1, "bias": 2}, "keys 'bias', 'weights'"),
    "newer": (lambda s: {**s, "version": 2}, "version 2, newer than version 1"),
    "no version": (lambda s: {**s, "version": None}, "version None"),
    "no plan": (lambda s: {**s, "plan": None}, "None for its plan"),
    "other seed": (lambda s: with_(s, seed=7), "seed was 7 and is 0"),
    "other n": (lambda s: with_(s, n=21), "n was 21 and is 22"),
    "other blocks": (lambda s: with_(s, block_chunks=9), "block_chunks was 9 and is 2"),
    "other runs": (lambda s: with_(s, run_chunks=3), "run_chunks was 3 and is 1"),
    "not shuffled": (lambda s: with_(s, shuffle=False), "shuffle was False and is True"),
    "other order": (lambda s: with_(s, order=2), "order was 2 and is 1"),
    "other field": (lambda s: {**s, "plan": {**s["plan"], "mask": "x"}}, "mask was 'x' and is 'ab"),
    "beyond": (lambda s: with_(s, position=23), "position of the state is 23: .* at most 22"),
    "negative": (lambda s: with_(s, position=-4), "position of the state is -4"),
    "a bool": (lambda s: with_(s, position=True), "position of the state is True"),
    "a float": (lambda s: with_(s, position=12.0), "position of the state is 12.0"),
    "no position": (lambda s: with_(s, position=None), "position of the state is None"),
    "negative epoch": (lambda s: with_(s, epoch=-1), "epoch of the state is -1"),
    "float epoch": (lambda s: with_(s, epoch=1.5), "epoch of the state is 1.5"),
    "no lanes": (lambda s: with_(s, lanes=0), "lanes of the state is 0"),
    "negative step": (lambda s: with_(s, step=-1), "step of the state is -1"),
    "bool step": (lambda s: with_(s, step=True), "step of the state is True"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_state_is_refused_and_changes_nothing(loader, state, epochs, name):
    change, said = BAD[name]
    items = iter(loader)
    found = [ids(next(items))]
    before = loader.state_dict()
    with pytest.raises(StateError, match=said):
        loader.load_state_dict(change(copy.deepcopy(state)))
    assert loader.state_dict() == before
    assert found + [ids(batch) for batch in items] == epochs[0]


def test_every_field_that_differs_is_named_with_both_values(loader, state):
    bad = with_(state, seed=7, block_chunks=5, n=99)
    with pytest.raises(StateError) as raised:
        loader.load_state_dict(bad)
    for said in ("seed was 7 and is 0", "block_chunks was 5 and is 2", "n was 99 and is 22"):
        assert said in str(raised.value)
    assert "position" not in str(raised.value)


def over(views=None, store=None, **options):
    store = store or small_store()
    return make_loader(store, views(store) if views else None, **options)


OTHERS = {
    "seed": lambda: over(seed=1),
    "block_chunks": lambda: over(block_chunks=3),
    "shuffle": lambda: over(shuffle=False),
    "n": lambda: over(store=small_store(n=21)),
    "units": lambda: over(store=small_store(chunk=3)),
    "arrays": lambda: over(store=make_store({"t2m": (N, 2, 4)}, chunks=(4, 2, 4))),
    "offsets": lambda: over(lambda store: {"x": views_of(store)["x"].window(-1, 0)}),
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_state_of_another_plan_is_refused(field, state):
    with OTHERS[field]() as loader:
        fingerprint = loader.plan.fingerprint()
        before = loader.state_dict()
        with pytest.raises(StateError) as raised:
            loader.load_state_dict(state)
        was, now = state["plan"][field], fingerprint[field]
        assert was != now
        assert f"{field} was {was!r} and is {now!r}" in str(raised.value)
        assert loader.state_dict() == before


def test_a_state_of_another_split_is_refused():
    store = small_store()
    splits = tdi.split_by_range(views_of(store), {"train": (0, 12), "val": (12, 22)})
    with make_loader(store, split=splits["train"]) as loader:
        state = loader.state_dict()
    with (
        make_loader(store, split=splits["val"]) as loader,
        pytest.raises(StateError, match="n was 12 and is 10"),
    ):
        loader.load_state_dict(state)


# Without strict


def test_without_strict_the_saved_epoch_starts_anew_with_a_warning(state):
    with make_loader(seed=3) as other:
        expected = [all_ids(other) for _ in range(3)]
    with make_loader(seed=3, strict=False) as loader:
        with pytest.warns(UserWarning, match=r"starting epoch 1 anew .*: .*seed was 0 and is 3"):
            loader.load_state_dict(state)
        assert all_ids(loader) == expected[1]
        assert all_ids(loader) == expected[2]


def test_without_strict_a_good_state_is_exact(state, epochs):
    with make_loader(strict=False) as loader:
        loader.load_state_dict(state)
        assert all_ids(loader) == epochs[1][3:]


@pytest.mark.parametrize("bad", [{}, None, {"num_yielded": 1, "root": {}}, {"epoch": True}])
def test_without_strict_a_state_that_names_no_epoch_is_still_refused(bad):
    with make_loader(strict=False) as loader, pytest.raises(StateError):
        loader.load_state_dict(bad)


@pytest.mark.parametrize(
    "state, epoch",
    [({"epoch": 3}, 3), ({"epoch": -1}, None), ({"epoch": 1.0}, None), ([], None), ({}, None)],
)
def test_the_epoch_that_a_state_names(state, epoch):
    assert saved_epoch(state) == epoch
