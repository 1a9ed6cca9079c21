"""A store that grew between a save and a resume: outside of what is drawn, and inside."""

import itertools
import json
import logging
import pickle

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.small_loaders import (
    all_ids,
    flat,
    ids,
    make_gather,
    make_loader,
    shut_down,
    small_store,
    take,
    values,
    views_of,
)
from torchdata_insitu.errors import BudgetError, PlanError, StateError
from torchdata_insitu.testing import CountingStore, make_store

PLENTY = "10%"


def appended(n, **options):
    """A store of `n` samples: of fewer, it is the same with the last ones left out."""
    return small_store(n, **options)


def over(n, **options):
    return make_loader(appended(n), **options)


def saved(loader, n_batches, n_epochs=0):
    for _ in range(n_epochs):
        list(loader)
    take(loader, n_batches)
    return json.loads(json.dumps(loader.state_dict()))


def growing(n, **options):
    return over(n, on_growth="finish_epoch", **options)


def assert_finishes(of, n_before, n_after, n_taken):
    """The loaders `of` a number of samples finish an epoch as if the store had not grown."""
    with of(n_before) as before:
        whole = all_ids(before)
    with of(n_before) as before:
        state = saved(before, n_taken)
    with of(n_after, on_growth="finish_epoch") as after:
        after.load_state_dict(state)
        assert all_ids(after) == whole[n_taken:]


# Outside of what is drawn


@pytest.mark.parametrize("shift", [0, 1])
def test_a_store_that_grew_outside_of_the_split_is_no_difference(shift):
    def of(n):
        store = appended(n)
        arrays = tdi.open_arrays(store)
        views = {"x": arrays["t2m"].window(0, shift)} if shift else {"x": arrays["t2m"]}
        ranges = {"train": (0, 14), "val": (16, n)}
        return make_loader(store, views, split=tdi.split_by_range(views, ranges)["train"])

    with of(22) as before:
        whole = [all_ids(before) for _ in range(3)]
    with of(22) as before:
        state = saved(before, 2)
    with of(31) as after:
        after.load_state_dict(state)
        assert after.state_dict() == state
        assert [all_ids(after) for _ in range(3)] == [whole[0][2:], *whole[1:]]


# Inside, without being asked to


@pytest.mark.parametrize("n_now", [23, 24, 30, 100])
def test_a_store_that_grew_inside_is_refused_with_both_lengths_and_the_way_on(n_now):
    with over(22) as before:
        state = saved(before, 2, 1)
    with over(n_now) as after:
        items = iter(after)
        found = [ids(next(items))]
        stands = after.state_dict()
        with pytest.raises(StateError) as raised:
            after.load_state_dict(state)
        assert f"n was 22 and is {n_now}" in str(raised.value)
        assert 'on_growth="finish_epoch"' in str(raised.value)
        assert after.state_dict() == stands
        found += all_ids(items)
    with over(n_now) as anew:
        assert found == all_ids(anew)


def test_without_strict_a_state_from_before_starts_its_epoch_anew_over_everything():
    with over(22) as before:
        state = saved(before, 2, 1)
    with over(30) as anew:
        epochs = [all_ids(anew) for _ in range(2)]
    with over(30, strict=False) as after:
        with pytest.warns(UserWarning, match="starting epoch 1 anew .* n was 22 and is 30"):
            after.load_state_dict(state)
        assert all_ids(after) == epochs[1]


# Inside: the epoch is finished


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("n_before, n_now", [(22, 23), (22, 24), (22, 31), (24, 30), (21, 200)])
def test_the_epoch_is_finished_over_its_own_draws_and_the_next_is_over_all(
    n_before, n_now, shuffle
):
    """Whether the last chunk was full, and whether the append fills it."""
    with over(n_before, shuffle=shuffle) as before:
        whole = [all_ids(before) for _ in range(2)]
    with over(n_now, shuffle=shuffle) as anew:
        later = [all_ids(anew) for _ in range(4)]
    for n_batches in (0, 1, 4, len(whole[1]) - 1):
        with over(n_before, shuffle=shuffle) as before:
            state = saved(before, n_batches, 1)
        with growing(n_now, shuffle=shuffle) as after:
            after.load_state_dict(state)
            assert len(after) == len(whole[1])
            assert all_ids(after) == whole[1][n_batches:]
            assert len(after) == len(later[2])
            assert all_ids(after) == later[2]
            assert all_ids(after) == later[3]


def test_values_are_those_of_the_samples():
    with over(22) as before:
        state = saved(before, 1)
    with growing(31) as after:
        after.load_state_dict(state)
        for batch in itertools.chain(after, after):
            assert values(batch) == ids(batch)


def test_a_state_saved_while_an_epoch_is_finished_is_of_the_same_plan():
    """Saved and resumed at every batch, while the store grows at each of them."""
    with over(22) as before:
        whole = all_ids(before)
    with over(22) as before:
        state = saved(before, 1)
    plan = state["plan"]
    found = whole[:1]
    n_now = 22
    while len(found) < len(whole):
        n_now += 3
        with growing(n_now) as after:
            after.load_state_dict(state)
            assert after.state_dict() == state
            found += take(after, 1)
            state = json.loads(json.dumps(after.state_dict()))
            assert (state["plan"] == plan) == (len(found) < len(whole))
    assert found == whole
    assert (state["epoch"], state["position"], state["plan"]["n"]) == (1, 0, n_now)
    with growing(n_now + 5) as after:
        after.load_state_dict(state)
        assert sorted(flat(all_ids(after))) == list(range(n_now))
        assert sorted(flat(all_ids(after))) == list(range(n_now + 5))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_other_ranks_and_batch_sizes_finish_the_epoch_together(world_size):
    with over(22, lanes=6) as before:
        first = flat(take(before, 2))
        state = before.state_dict()
    ranks = [
        growing(40, rank=rank, world_size=world_size, batch_size=3, tail="exact")
        for rank in range(world_size)
    ]
    for loader in ranks:
        loader.load_state_dict(state)
    assert len({len(loader) for loader in ranks}) == 1
    rest = [valid_ids(batch) for loader in ranks for batch in loader]
    assert sorted(first + flat(rest)) == list(range(22))
    for loader in ranks:
        loader.close()


def valid_ids(batch):
    return list(itertools.compress(ids(batch), batch["valid"].tolist()))


def test_windows_reach_into_what_was_appended_in_the_next_epoch_only():
    """The last anchors before the append had no future; now they have."""

    def of(n, **options):
        store = appended(n)
        x = tdi.open_arrays(store)["t2m"]
        return make_loader(store, {"x": x, "y": x.shift(3)}, **options)

    with of(22) as before:
        taken = flat(take(before, 2))
        state = before.state_dict()
    with of(30, on_growth="finish_epoch") as after:
        after.load_state_dict(state)
        assert sorted(taken + flat(all_ids(after))) == list(range(19))
        assert sorted(flat(all_ids(after))) == list(range(27))


def test_a_split_that_covers_more_has_grown_like_the_store():
    def of(n, *ranges, **options):
        store = appended(n)
        split = tdi.Split("train", ranges, n)
        return make_loader(store, split=split, **options)

    with of(22, (0, 6), (8, 14)) as before:
        taken = flat(take(before, 1))
        state = before.state_dict()
    with of(40, (0, 6), (8, 17), (20, 30), on_growth="finish_epoch") as after:
        after.load_state_dict(state)
        assert sorted(taken + flat(all_ids(after))) == [*range(6), *range(8, 14)]
        assert sorted(flat(all_ids(after))) == [*range(6), *range(8, 17), *range(20, 30)]


def test_shards_that_were_not_full_are_no_hindrance():
    def of(n, **options):
        store = make_store({"t2m": (n, 2)}, chunks=(2, 2), shards=(8, 2))
        return make_loader(store, {"x": tdi.open_arrays(store)["t2m"]}, **options)

    assert_finishes(of, 21, 43, n_taken=2)


def test_arrays_of_other_chunks_grow_together():
    def of(n, **options):
        store = make_store({"a": (n, 2), "b": (n, 2)}, chunks={"a": (2, 2), "b": (6, 2)})
        return make_loader(store, dict(tdi.open_arrays(store)), **options)

    assert_finishes(of, 100, 130, n_taken=3)


def test_the_reads_of_an_epoch_that_is_finished_are_counted_beforehand():
    with over(22, block_chunks=1) as before:
        state = saved(before, 2)
    store = CountingStore(appended(60))
    with make_loader(store, block_chunks=1, on_growth="finish_epoch") as after:
        after.load_state_dict(state)
        expected = after.expected_reads
        store.reset()
        list(after)
        assert store.reads() == expected <= 6


def test_the_floor_of_an_epoch_that_is_finished_is_its_own():
    """A last unit that was cut short then leaves a block more room for others."""
    options = {"rank": 0, "world_size": 4, "batch_size": 1, "block_chunks": 16}
    with over(13, **options) as before:
        state = saved(before, 0)
        whole = all_ids(before)
        floor_bytes = before.floor_bytes
    with growing(16, budget_bytes=floor_bytes, **options) as after:
        assert after.floor_bytes < floor_bytes
        after.load_state_dict(state)
        assert after.floor_bytes == floor_bytes
        assert "13 in 4 units" in tdi.describe(after)
        assert all_ids(after) == whole
    with growing(16, budget_bytes=floor_bytes - 1, **options) as after:
        after.load_state_dict(state)
        with pytest.raises(BudgetError):
            next(iter(after))


def test_a_copy_finishes_the_epoch_too():
    with over(22) as before:
        whole = all_ids(before)
    with over(22) as before:
        state = saved(before, 2)
    with growing(30) as after:
        after.load_state_dict(state)
        take(after, 1)
        with pickle.loads(pickle.dumps(after)) as copied:
            assert all_ids(copied) == whole[3:]
            assert sorted(flat(all_ids(copied))) == list(range(30))


def test_growth_is_logged_once(caplog):
    with over(22) as before:
        state = saved(before, 2)
    with growing(30) as after, caplog.at_level(logging.INFO, "torchdata_insitu"):
        after.load_state_dict(state)
        list(after)
        list(after)
    said = [record.message for record in caplog.records if "began with" in record.message]
    assert said == ["epoch 0 is finished over the 22 draws that it began with, of 30 by now"]


def test_set_epoch_keeps_the_epoch_that_is_finished_and_then_draws_from_all():
    with over(22) as before:
        whole = all_ids(before)
    with over(22) as before:
        state = saved(before, 2)
    with growing(30) as after:
        after.load_state_dict(state)
        after.set_epoch(0)
        assert all_ids(after) == whole[2:]
        after.set_epoch(0)
        assert sorted(flat(all_ids(after))) == list(range(30))


def test_a_state_of_now_is_taken_after_one_from_before():
    with over(30) as anew:
        now = saved(anew, 3)
    with over(30) as anew:
        rest = all_ids(anew)[3:]
    with over(22) as before:
        state = saved(before, 2)
    with growing(30) as after:
        after.load_state_dict(state)
        after.load_state_dict(now)
        assert after.state_dict() == now
        assert all_ids(after) == rest


# Nodes


@pytest.mark.parametrize("kind", ["planner", "gather"])
@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 2, "lanes": 2}])
def test_a_node_goes_on_through_the_epoch_that_was_begun_and_then_over_all(kind, ranks):
    """States of nodes, of which some stand inside a batch."""

    def of(n):
        gather = make_gather(appended(n), block_chunks=1, **ranks)
        return shut_down(gather if kind == "gather" else gather.planner)

    with of(22) as node:
        node.reset()
        states = [json.loads(json.dumps(node.state_dict())) for _ in node]
    assert any("origin" in state for state in states) == (kind == "planner")
    with of(40) as node:
        for number, state in enumerate(states):
            node.reset(state)
            assert node.state_dict() == state
            seen = []
            for _ in range(len(states) - number - 1):
                next(node)
                seen.append(node.state_dict())
            assert seen == states[number + 1 :]
            with pytest.raises(StopIteration):
                next(node)
        node.reset()
        assert node.state_dict()["plan"]["n"] == 40
        assert len(list(node)) > len(states)


# What is no growth


def other(n=30, chunk=4, **options):
    return make_loader(appended(n, chunk=chunk), on_growth="finish_epoch", **options)


def with_another_field():
    store = make_store({"t2m": (30, 2, 4)}, chunks=(4, 2, 4))
    return make_loader(store, views_of(store), on_growth="finish_epoch")


NO_GROWTH = {
    "shrunk": (lambda: other(n=21), "n was 22 and is 21"),
    "other chunks": (lambda: other(chunk=5), "n was 22 and is 30.*units was"),
    "another seed": (lambda: other(seed=1), "seed was 0 and is 1; n was 22 and is 30"),
    "other blocks": (lambda: other(block_chunks=3), "block_chunks was 2 and is 3"),
    "other fields": (with_another_field, "arrays was"),
    "samples put in front": (
        lambda: other(split=tdi.Split("train", ((8, 30),), 30)),
        "units was .* and is",
    ),
}


@pytest.mark.parametrize("name", NO_GROWTH)
def test_what_is_no_plain_append_is_another_plan(name):
    with over(22) as before:
        state = saved(before, 2)
    make, said = NO_GROWTH[name]
    with make() as loader:
        stands = loader.state_dict()
        with pytest.raises(StateError, match=said):
            loader.load_state_dict(state)
        assert loader.state_dict() == stands


@pytest.mark.parametrize("on_growth", ["finish", None, True])
def test_unknown_choices_are_refused(on_growth):
    with pytest.raises(PlanError, match=r"on_growth is .*'refuse', 'finish_epoch'"):
        over(22, on_growth=on_growth)


def test_a_mix_whose_source_grew_is_refused():
    def of(n):
        nodes = {name: over(m).node for name, m in (("a", n), ("b", 22))}
        mix = tdi.MixNode(nodes, {"a": 0.5, "b": 0.5}, seed=0, stop="first")
        return tdi.InSituLoader(mix, on_growth="finish_epoch")

    with of(22) as before:
        state = saved(before, 2)
    with of(30) as after, pytest.raises(StateError, match=r"source 'a', .* n was 22 and is 30"):
        after.load_state_dict(state)


# Files that really grow


def test_an_archive_on_disk_that_is_appended_to_is_read_on(tmp_path):
    path = str(tmp_path / "archive.zarr")
    group = zarr.open_group(path, mode="w")
    array = group.create_array("x", shape=(10, 2), chunks=(4, 2), dtype="f4")
    array[:] = np.arange(20, dtype="f4").reshape(10, 2)

    def load():
        return tdi.build_loader(
            path, tdi.open_arrays(path), batch_size=3, on_growth="finish_epoch", budget_bytes=PLENTY
        )

    with load() as before:
        items = iter(before)
        found = [next(items)["x"][:, 0].tolist()]
        state = before.state_dict()
    array.append(np.arange(20, 34, dtype="f4").reshape(7, 2))
    with load() as after:
        after.load_state_dict(state)
        found += [batch["x"][:, 0].tolist() for batch in after]
        assert sorted(flat(found)) == list(range(0, 20, 2))
        assert sorted(flat(batch["x"][:, 0].tolist() for batch in after)) == list(range(0, 34, 2))
