"""Several passes in one pool that has room for their floors and no more, in any order of steps."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import counted, floor_of, our_threads
from tests.contracts.watchdog import promptly
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.testing import make_store

ARRAYS = {"t": counted((48, 3)), "u": counted((48, 2), "int16")}


@pytest.fixture(scope="module")
def store():
    return make_store(ARRAYS, chunks={"t": (4, 2), "u": (6, 2)})


@pytest.fixture(scope="module")
def arrays(store):
    return tdi.open_arrays(store)


def two_loaders(store, arrays, prefetch_factor):
    """Training and validation on one pool that has room for the floors of both, and no more."""
    views = {"x": arrays["t"].window(-1, 0), "y": arrays["u"]}
    splits = tdi.split_by_range(views, {"train": (0, 30), "val": (31, 48)})
    options = {"block_chunks": 1, "batch_size": 5, "prefetch_factor": prefetch_factor}
    floors = [floor_of(store, views, split=split, **options)[0] for split in splits.values()]
    pool = tdi.ChunkPool(sum(floors))
    loaders = [
        tdi.build_loader(store, views, split=split, pool=pool, **options)
        for split in splits.values()
    ]
    return pool, *loaders


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_one_pass_after_the_other_in_one_pool(store, arrays, prefetch_factor):
    pool, train, val = two_loaders(store, arrays, prefetch_factor)
    with train, val, promptly(30):
        for _ in range(2):
            assert samples_of(train) == list(range(1, 30))
            assert samples_of(val) == list(range(31, 48))
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_pass_in_the_middle_of_another_in_one_pool(store, arrays, prefetch_factor):
    """Validation inside a training epoch, which reads ahead as far as there is room."""
    pool, train, val = two_loaders(store, arrays, prefetch_factor)
    with train, val, promptly(30):
        batches = iter(train)
        first = samples_of([next(batches)])
        assert samples_of(val) == list(range(31, 48))
        assert sorted(first + samples_of(batches)) == list(range(1, 30))
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


def samples_of(batches):
    return sorted(sample for batch in batches for sample in batch["sample_index"].tolist())


def test_a_pass_starts_after_a_chunk_read_ahead_by_another_failed():
    """The error is for the pass that draws from the chunk, when it comes to it."""
    store = make_store({"t": counted((40, 3))}, chunks=(4, 3))
    sync(store.set("t/c/5/0", default_buffer_prototype().buffer.from_bytes(b"damaged")))
    views = tdi.open_arrays(store)
    options = {"block_chunks": 3, "batch_size": 2, "prefetch_factor": 0, "shuffle": False}
    splits = [tdi.Split("train", ((0, 40),), 40), tdi.Split("val", ((0, 12),), 40)]
    floors = [floor_of(store, views, split=split, **options)[0] for split in splits]
    pool = tdi.ChunkPool(sum(floors))
    failed = when_a_load_fails(pool)
    train, val = (
        tdi.build_loader(store, views, split=split, pool=pool, **options) for split in splits
    )
    with train, val, promptly(30):
        batches = iter(train)
        assert samples_of([next(batches)]) == [0, 1]
        failed.wait()
        assert samples_of(val) == list(range(12))
        with pytest.raises(DecodeError):
            samples_of(batches)
        assert train.position == 12
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


def when_a_load_fails(pool):
    """An event that is set once the pool has taken notice of a failed load."""
    failed, landed = threading.Event(), pool.landed

    def spy(resident, error, *, is_cancelled):
        landed(resident, error, is_cancelled=is_cancelled)
        if error is not None:
            failed.set()

    pool.landed = spy
    return failed


@st.composite
def crowds(draw):
    """Loaders over one store, and in which order they are asked for batches."""
    loaders = [
        {
            "window": draw(st.lists(st.integers(-6, 6), min_size=1, max_size=2)),
            "batch_size": draw(st.integers(1, 20)),
            "block_chunks": draw(st.integers(1, 4)),
            "lanes": draw(st.integers(1, 3)),
            "shuffle": draw(st.booleans()),
            "prefetch_factor": draw(st.sampled_from([0, 0, 2])),
        }
        for _ in range(draw(st.integers(2, 3)))
    ]
    turn = st.tuples(
        st.integers(0, len(loaders) - 1), st.sampled_from(["next"] * 6 + ["iter", "close", "rest"])
    )
    return loaders, draw(st.lists(turn, max_size=30))


@settings(max_examples=40)
@given(crowds())
def test_any_crowd_at_the_sum_of_the_floors(store, arrays, crowd):
    made, turns = crowd
    options = [dict(option) for option in made]
    views = [
        {"x": arrays["t"].window(*option.pop("window")), "y": arrays["u"]} for option in options
    ]
    floors = [
        floor_of(store, view, **option)[0] for view, option in zip(views, options, strict=True)
    ]
    pool = tdi.ChunkPool(sum(floors))
    loaders = [
        tdi.build_loader(store, view, pool=pool, **option)
        for view, option in zip(views, options, strict=True)
    ]
    iterators = [iter(loader) for loader in loaders]
    with promptly(30):
        for number, turn in [*turns, *((number, "rest") for number in range(len(loaders)))]:
            loader = loaders[number]
            if turn == "close":
                loader.close()
            if turn != "next":
                iterators[number] = iter(loader)
            for batch in itertools.islice(iterators[number], 1 if turn == "next" else None):
                check_values(batch, views[number]["x"].offsets)
                assert pool.charged_bytes <= pool.budget_bytes
                if turn == "iter":
                    break
        for loader in loaders:
            loader.close()
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


def check_values(batch, offsets):
    anchors = batch["sample_index"].numpy()
    np.testing.assert_array_equal(batch["x"].numpy(), ARRAYS["t"][anchors[:, None] + [*offsets]])
    np.testing.assert_array_equal(batch["y"].numpy(), ARRAYS["u"][anchors])


def test_a_pass_that_ends_while_another_makes_room_for_it(store, arrays):
    """Thread A gives room back, and is about to have B's chunks read; thread B closes its loader.

    The hook is that moment: what A then asks of B's readers must not start them again.
    """
    views = {"x": arrays["t"]}
    options = {"block_chunks": 1, "batch_size": 4, "prefetch_factor": 0}
    floor, _ = floor_of(store, views, **options)
    pool = tdi.ChunkPool(3 * floor)
    first, second = (
        tdi.build_loader(store, views, pool=pool, seed=seed, **options) for seed in (0, 1)
    )
    with first, second, promptly(30):
        batches = iter(first)
        next(batches)
        next(iter(second))
        passed = second.chain.fetcher._pass
        load, closed = passed.load, []

        def close_before(fills):
            closed.append(second.close())
            load(fills)

        passed.load = close_before
        for _ in batches:
            pass
        assert closed
        first.close()
        assert not our_threads()
        assert (pool.n_passes, pool.n_in_use) == (0, 0)
