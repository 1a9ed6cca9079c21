"""Iteration: lengths, epochs, places, and what comes next after any of the calls."""

import json
import threading

import numpy as np
import pytest

import torchdata_insitu as tdi
from tests.small_loaders import (
    N,
    all_ids,
    flat,
    ids,
    make_loader,
    small_store,
    state_after,
    take,
    values,
)
from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.testing import CountingStore, make_store

N_BATCHES = 6
N_CHUNKS = 6


def test_every_epoch_gives_each_sample_once_in_another_order(epochs):
    assert all(sorted(flat(epoch)) == list(range(N)) for epoch in epochs)
    assert len({json.dumps(epoch) for epoch in epochs}) == len(epochs)


def test_batches_hold_the_samples_they_name(loader):
    for batch in loader:
        assert values(batch) == ids(batch)


# Length


def test_length_is_that_of_the_whole_epoch_at_every_step(loader):
    for n_seen, _ in enumerate(loader, start=1):
        assert len(loader) == N_BATCHES
        assert loader.step == n_seen % N_BATCHES
    assert n_seen == N_BATCHES


@pytest.mark.parametrize("n_before", range(N_BATCHES + 1))
def test_length_after_a_resume_counts_the_steps_before_it(loader, n_before):
    loader.load_state_dict(state_after(0, n_before))
    assert len(loader) == N_BATCHES
    assert len(list(loader)) == N_BATCHES - n_before % N_BATCHES


def test_length_with_another_batch_size_is_steps_done_and_left():
    with make_loader(batch_size=7) as loader:
        assert len(loader) == 4
        loader.load_state_dict(state_after(0, 2))
        assert len(loader) == 2 + 2
        assert [len(batch) for batch in all_ids(loader)] == [7, 7]
        assert [len(batch) for batch in all_ids(loader)] == [7, 7, 7, 1]
        assert len(loader) == 4


@pytest.mark.parametrize("tail", ["short", "drop", "pad", "exact"])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 22])
def test_length_is_how_many_batches_come(batch_size, tail):
    with make_loader(batch_size=batch_size, tail=tail) as loader:
        assert len(list(loader)) == len(loader)


def test_length_and_places_and_states_read_nothing_and_start_nothing():
    store = CountingStore(small_store())
    with make_loader(store) as loader:
        store.reset()
        before = threading.active_count()
        loader.set_epoch(3)
        loader.load_state_dict(loader.state_dict())
        loader.skip(2)
        assert (len(loader), loader.epoch, loader.position, loader.step) == (N_BATCHES, 3, 8, 2)
        assert 0 < loader.expected_reads < N_CHUNKS
        assert (loader.stats().batches, tdi.describe(loader).count("\n")) == (0, 8)
        assert (store.reads(), threading.active_count()) == (0, before)


# Iterators


def test_repeated_iter_reads_nothing_and_stays_in_epoch(epochs):
    store = CountingStore(small_store())
    before = threading.active_count()
    with make_loader(store) as loader:
        store.reset()
        for _ in range(3):
            iter(loader)
        assert (store.reads(), threading.active_count()) == (0, before)
        assert loader.epoch == 0
        assert all_ids(loader) == epochs[0]


def test_iter_again_loses_no_loaded_state(loader, epochs):
    loader.load_state_dict(state_after(1, 2))
    for _ in range(3):
        iter(loader)
    assert all_ids(loader) == epochs[1][2:]
    assert all_ids(loader) == epochs[2]


@pytest.mark.parametrize("n_before", [1, 3, N_BATCHES])
def test_the_epoch_advances_at_iter_once_a_batch_was_handed_out(loader, epochs, n_before):
    for epoch in range(3):
        assert take(loader, n_before) == epochs[epoch][:n_before]
    iter(loader)
    assert loader.epoch == 3
    assert all_ids(loader) == epochs[3]


def test_the_epoch_after_a_resume_that_was_left_early_is_the_next(loader, epochs):
    loader.load_state_dict(state_after(0, 2))
    assert take(loader, 1) == epochs[0][2:3]
    assert all_ids(loader) == epochs[1]


def test_of_two_iterators_the_older_one_is_closed(loader, epochs):
    older = iter(loader)
    assert ids(next(older)) == epochs[0][0]
    newer = iter(loader)
    assert ids(next(newer)) == epochs[1][0]
    for _ in range(2):
        with pytest.raises(ClosedError, match="not the loader's newest"):
            next(older)
    assert [ids(batch) for batch in newer] == epochs[1][1:]


def test_an_iterator_stays_at_its_end(loader):
    items = iter(loader)
    assert len(list(items)) == N_BATCHES
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(items)
    assert loader.epoch == 1
    assert iter(items) is items


# set_epoch


def test_set_epoch_goes_to_the_start_of_an_epoch(loader, epochs):
    for epoch in (2, 0, 0, 3):
        loader.set_epoch(epoch)
        assert all_ids(loader) == epochs[epoch]


def test_set_epoch_after_iter_holds_for_that_iterator(loader, epochs):
    """Lightning makes the iterator first."""
    items = iter(loader)
    loader.set_epoch(2)
    assert loader.epoch == 2
    assert [ids(batch) for batch in items] == epochs[2]


def test_set_epoch_in_the_middle_holds_for_the_next_iteration(loader, epochs):
    items = iter(loader)
    first = [ids(next(items))]
    loader.set_epoch(3)
    assert first + [ids(batch) for batch in items] == epochs[0]
    assert all_ids(loader) == epochs[3]


def test_set_epoch_of_the_epoch_that_was_left_early_starts_it_again(loader, epochs):
    take(loader, 2)
    loader.set_epoch(0)
    assert all_ids(loader) == epochs[0]


def test_set_epoch_keeps_a_loaded_state_that_was_not_begun_with_one_warning(loader, epochs):
    loader.load_state_dict(state_after(1, 2))
    with pytest.warns(UserWarning, match=r"set_epoch\(0\) is ignored: .* 8 of epoch 1"):
        loader.set_epoch(0)
    # Warnings are errors here, and these are no more.
    loader.set_epoch(0)
    iter(loader)
    loader.set_epoch(3)
    assert all_ids(loader) == epochs[1][2:]


def test_set_epoch_of_the_loaded_epoch_is_no_word_worth(loader, epochs):
    loader.load_state_dict(state_after(1, 2))
    loader.set_epoch(1)
    assert all_ids(loader) == epochs[1][2:]


def test_set_epoch_overrides_a_loaded_state_that_was_begun(loader, epochs):
    loader.load_state_dict(state_after(1, 2))
    assert take(loader, 1) == epochs[1][2:3]
    loader.set_epoch(3)
    assert all_ids(loader) == epochs[3]


@pytest.mark.parametrize("epoch, error", [(-1, PlanError), (True, PlanError), (1.0, TypeError)])
def test_set_epoch_needs_a_whole_number(loader, epoch, error):
    with pytest.raises(error):
        loader.set_epoch(epoch)
    loader.set_epoch(np.int64(2))
    assert loader.state_dict()["epoch"] == 2
    json.dumps(loader.state_dict())


# Places and reads


def test_places_follow_the_batches_and_the_last_one_opens_the_next_epoch(loader):
    assert (loader.epoch, loader.position, loader.step) == (0, 0, 0)
    seen = []
    for _ in loader:
        state = loader.state_dict()
        assert (loader.epoch, loader.position, loader.step) == (
            state["epoch"],
            state["position"],
            state["step"],
        )
        seen.append((loader.epoch, loader.position, loader.step))
    assert seen == [*((0, 4 * n, n) for n in range(1, N_BATCHES)), (1, 0, 0)]


@pytest.mark.parametrize("offsets", [(0,), (-3, 0)])
@pytest.mark.parametrize("n_before", [0, 2, 5])
def test_expected_reads_are_the_reads(n_before, offsets):
    store = CountingStore(make_store({"t2m": (22, 3, 4)}, chunks=(4, 3, 2)))
    options = {"views": {"x": tdi.open_arrays(store)["t2m"].window(*offsets)}, "batch_size": 3}
    state = state_after(1, n_before, store=store, **options)
    with make_loader(store, **options) as loader:
        loader.load_state_dict(state)
        store.reset()
        expected = loader.expected_reads
        list(loader)
        assert sum(loader.stats().reads.values()) == store.reads()
        # With windows, a block that is read ahead finds chunks which the present one still holds.
        assert store.reads() == expected or (len(offsets) > 1 and store.reads() < expected)


def test_two_stores_in_one_loader():
    era5 = make_store({"t": (12, 2)}, chunks=(4, 2))
    rain = make_store({"t": (12, 3)}, chunks=(3, 3), dtype="int32")
    views = {
        "x": tdi.open_arrays(era5, store="era5")["t"],
        "y": tdi.open_arrays(rain, store="rain")["t"].shift(-1),
    }
    with make_loader({"era5": era5, "rain": rain}, views, batch_size=3) as loader:
        seen = []
        for batch in loader:
            seen += ids(batch)
            assert batch["x"][:, 0].tolist() == [2 * n for n in ids(batch)]
            assert batch["y"][:, 0].tolist() == [3 * (n - 1) for n in ids(batch)]
        assert sorted(seen) == list(range(1, 12))
        assert loader.stats().reads == loader.plan.reads() == {"era5:t": 3, "rain:t": 4}


def test_two_loaders_on_one_pool_take_turns(epochs):
    store = small_store()
    pool = tdi.ChunkPool(10**6)
    with make_loader(store, pool=pool) as train, make_loader(store, pool=pool, seed=9) as val:
        with make_loader(store, seed=9) as other:
            alone = [epochs[0], all_ids(other)]
        turns = [[], []]
        for batches in zip(train, val, strict=True):
            for seen, batch in zip(turns, batches, strict=True):
                assert values(batch) == ids(batch)
                seen.append(ids(batch))
        assert turns == alone
        train.close()
        assert all_ids(val) != alone[1]
        assert all_ids(train) == epochs[1]


def test_the_epoch_asked_for_next_is_in_the_state_of_a_finished_one(loader, epochs):
    take(loader, len(epochs[0]))
    loader.set_epoch(3)
    state = loader.state_dict()
    assert (state["epoch"], state["position"], loader.epoch) == (3, 0, 3)
    assert all_ids(loader) == epochs[3]


@pytest.mark.parametrize("name", ["max_inflight", "decode_threads", "prefetch_factor"])
@pytest.mark.parametrize("value", [-1, 2.5])
def test_dials_that_are_no_count(name, value):
    with pytest.raises(PlanError, match=f"{name}.*{value}"):
        make_loader(**{name: value})
