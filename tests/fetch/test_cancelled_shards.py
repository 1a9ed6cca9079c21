"""Loads of shards end once and give everything back, wherever their reads stand."""

import contextlib
import threading

import numpy as np
import pytest
from zarr.core.sync import sync

from tests.fake_stores import NeverAnswers, Raises
from tests.fetch.loads import WAIT_S, Loads, fetching, one_array
from tests.fetch.shard_stores import PLACES, check_at_rest, place_of, sharded, values_of
from tests.small_loaders import eventually
from torchdata_insitu.fetch.chunk_fetcher import Cancelled
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.fetch_engine import FetchEngine
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.shard_reads import ShardReads

# Of the shard three rows of stored chunks of four are wanted, or all.
SHAPE, CHUNKS, SHARDS = (16, 6), (2, 3), (8, 6)
KEY = "t/c/0/0"
PART, WHOLE = [0, 1, 3], [0, 1, 2, 3]
LONG = RetryPolicy(first_delay_s=1000, longest_delay_s=1000, budget_s=10**6)


@pytest.fixture
def source():
    return sharded(SHAPE, CHUNKS, SHARDS)


@pytest.fixture
def fill(source, tmp_path, monkeypatch):
    """Makes a place of some kind that holds the shards."""
    with contextlib.ExitStack() as open_places:

        def fill(kind):
            place = open_places.enter_context(place_of(kind, tmp_path, monkeypatch))
            place.fill(source)
            return place

        yield fill


class Nth:
    """Matches one read of the shard, from 1, and those after it."""

    def __init__(self, number):
        self.number = number
        self.n_reads = 0

    def __call__(self, key):
        self.n_reads += key == KEY
        return key == KEY and self.n_reads >= self.number


class Gate:
    """Holds a function of a class before or after it has run, until it is opened."""

    def __init__(self, monkeypatch, owner, name, *, after=False):
        self.opened, self.n_inside = threading.Event(), 0
        function = getattr(owner, name)

        def held(*args, **options):
            if not after:
                self.wait()
            result = function(*args, **options)
            if after:
                self.wait()
            return result

        monkeypatch.setattr(owner, name, held)

    def wait(self):
        self.n_inside += 1
        assert self.opened.wait(WAIT_S)


def submitted(fetcher, array, runs, is_held):
    """Loads whose reads have come to where they are held."""
    loads = Loads(array, runs)
    fetcher.submit(loads.loads)
    eventually(is_held)
    return loads


def end(fetcher, how, open_gate=lambda: None):
    """Cancel or close, which waits for decode threads, and let those go on meanwhile."""
    generation = fetcher.generation
    ending = threading.Thread(target=getattr(fetcher, how))
    ending.start()
    eventually(lambda: generation.cancelled)
    if how == "cancel":
        ending.join(WAIT_S)
    open_gate()
    ending.join(WAIT_S)
    assert not ending.is_alive()


def check_cancelled(loads, store):
    loads.wait()
    assert {type(error) for error in loads.ends.values()} == {Cancelled}
    assert loads.n_calls == len(loads.runs)
    check_at_rest(store)


def check_alive(fetcher, array):
    loads = Loads(array)
    fetcher.submit(loads.loads)
    counted = np.arange(np.prod(SHAPE), dtype="f4").reshape(SHAPE)
    np.testing.assert_array_equal(loads.wait().values, counted)


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("runs, stalled", [(PART, 1), (PART, 2), (WHOLE, 1)])
def test_tasks_that_wait_for_the_store(source, how, runs, stalled):
    store = NeverAnswers(source, Nth(stalled))
    array = one_array(source, name="t")
    with fetching(store, array) as fetcher:
        loads = submitted(fetcher, array, runs, lambda: store.n_waiting)
        getattr(fetcher, how)()
        check_cancelled(loads, store)
        sync(store.answer())
        check_alive(fetcher, array)


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("runs, stalled", [(PART, 1), (PART, 2), (WHOLE, 1)])
def test_threads_that_wait_for_the_store(fill, how, runs, stalled):
    place = fill("http")
    store = place.store
    array = one_array(store, name="t")
    place.server.fail(KEY, first=stalled, stall=True)
    with fetching(store, array, max_inflight=4) as fetcher:
        loads = Loads(array, runs)
        fetcher.submit(loads.loads)
        assert place.server.wait_for(lambda server: server.n_stalled == 1)
        getattr(fetcher, how)()
        assert loads.all_ended.is_set()
        place.server.release()
        check_cancelled(loads, store)
        check_alive(fetcher, array)


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("runs", [PART, WHOLE], ids=["part", "whole"])
def test_what_is_being_taken_apart(fill, monkeypatch, runs, after, how):
    place = fill("obstore")
    store = place.store
    array = one_array(store, name="t")
    with monkeypatch.context() as patch, fetching(store, array) as fetcher:
        gate = Gate(patch, ShardReads, "taken_apart", after=after)
        loads = submitted(fetcher, array, runs, lambda: gate.n_inside)
        end(fetcher, how, gate.opened.set)
        check_cancelled(loads, store)
        check_alive(fetcher, array)


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("kind", PLACES)
def test_what_is_being_decoded_and_what_waits_for_it(fill, monkeypatch, kind, how):
    place = fill(kind)
    store = place.store
    array = one_array(store, name="t")
    with (
        monkeypatch.context() as patch,
        fetching(store, array, decode_threads=1) as fetcher,
    ):
        gate = Gate(patch, ChunkDecoder, "decode")
        loads = submitted(fetcher, array, WHOLE, lambda: gate.n_inside)
        end(fetcher, how, gate.opened.set)
        check_cancelled(loads, store)
        check_alive(fetcher, array)


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("runs, failing", [(PART, 1), (PART, 2), (WHOLE, 1)])
def test_what_waits_to_be_tried_again(source, how, runs, failing):
    store = Raises(source, lambda: ConnectionResetError("by peer"), Nth(failing))
    array = one_array(source, name="t")
    with fetching(store, array, retry=LONG) as fetcher:
        waiting = fetcher._engine._retries._waiting
        loads = submitted(fetcher, array, runs, lambda: waiting)
        getattr(fetcher, how)()
        assert not waiting
        check_cancelled(loads, store)


def test_what_lands_when_no_thread_can_be_started(source, monkeypatch):
    """What was taken apart cannot be queued: it ends with the error and gives its permits back."""
    array = one_array(source, name="t")

    def refuses(self, following, left, *, first=False):
        if first:
            raise RuntimeError("no thread can be started any more")
        return queue(self, following, left, first=first)

    queue = FetchEngine._queue
    for runs in (PART, WHOLE):
        with monkeypatch.context() as patch, fetching(source, array) as fetcher:
            patch.setattr(FetchEngine, "_queue", refuses)
            loads = Loads(array, runs)
            fetcher.submit(loads.loads)
            loads.wait()
            assert {str(error) for error in loads.ends.values()} == {
                "no thread can be started any more"
            }
            assert loads.n_calls == len(runs)
            check_at_rest(source)


@pytest.mark.parametrize("kind", PLACES)
def test_cancelling_from_many_sides_ends_every_load_once(source, fill, kind):
    values = values_of(source)
    everything = []

    def uses(fetcher, array, seed):
        draw = np.random.default_rng(seed)
        for _ in range(8):
            runs = draw.permutation(8)[: draw.integers(1, 9)].tolist()
            loads = Loads(array, runs)
            everything.append(loads)
            fetcher.submit(loads.loads)
            (int, fetcher.cancel, fetcher.close)[draw.choice(3, p=[0.4, 0.4, 0.2])]()

    place = fill(kind)
    store = place.store
    array = one_array(store, name="t")
    with fetching(store, array, max_inflight=3, decode_threads=2) as fetcher:
        users = [threading.Thread(target=uses, args=(fetcher, array, seed)) for seed in range(3)]
        for user in users:
            user.start()
        for user in users:
            user.join(WAIT_S)
        for loads in everything:
            loads.wait()
            assert loads.n_calls == len(loads.runs)
            for run, slot in zip(loads.runs, loads.slots, strict=True):
                if loads.ends[run] is None:
                    np.testing.assert_array_equal(slot, values[2 * run : 2 * run + 2])
                else:
                    assert type(loads.ends[run]) is Cancelled
        check_at_rest(store)
        check_alive(fetcher, array)


@pytest.mark.parametrize("kind", PLACES)
def test_many_loads_with_failures_give_everything_back(fill, kind):
    """A damaged shard, a missing one, and a policy that tries again at once."""
    place = fill(kind)
    store = place.store
    place.change(KEY, lambda shard: shard[:-9])
    place.remove("t/c/1/0")
    array = one_array(store, name="t")
    retry = RetryPolicy(attempts=2, first_delay_s=1e-4)
    with fetching(store, array, max_inflight=2, retry=retry, on_missing="raise") as fetcher:
        for seed in range(20):
            runs = np.random.default_rng(seed).permutation(8)[: 1 + seed % 8].tolist()
            loads = Loads(array, runs)
            fetcher.submit(loads.loads)
            loads.wait()
            assert sorted(loads.errors) == sorted(runs)
            check_at_rest(store)
            assert loads.n_calls == len(runs)
