"""The error of a load waits for none of its other reads."""

import itertools
import os
import threading

import pytest
from obstore.exceptions import PermissionDeniedError
from zarr.core.sync import sync

from tests.fake_stores import NeverAnswers, Raises, only
from tests.fetch.loads import WAIT_S, Loads, fetching, one_array
from tests.fetch.shard_stores import NOWHERE, Index, check_at_rest, sharded
from tests.small_loaders import eventually
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch.chunk_fetcher import Cancelled
from torchdata_insitu.fetch.fetch_engine import FetchEngine
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.object_reads import ObjectReads
from torchdata_insitu.fetch.retries import Retries
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.shard_reads import ShardReads
from torchdata_insitu.fetch.stores import open_store
from torchdata_insitu.testing import FaultServer, make_store


def denied():
    return PermissionError("403")


@pytest.fixture
def stored():
    return make_store({"t": (2, 6), "u": (2, 6)}, chunks={"t": (2, 2), "u": (2, 6)})


@pytest.mark.parametrize("max_inflight", [2, 3], ids=["queued", "awaited"])
def test_reads_on_the_loop_are_ended_and_cancelled(stored, max_inflight):
    """Of the reads of one load one fails, one never ends, and one waits for a permit or neither."""
    late = NeverAnswers(Raises(stored, denied, only("t/c/0/0")), only("t/c/0/0"))
    stuck = NeverAnswers(late, lambda key: key in {"t/c/0/1", "t/c/0/2"})
    array = one_array(stored, name="t")
    with fetching(stuck, array, max_inflight=max_inflight) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        eventually(lambda: late.n_waiting == 1 and stuck.n_waiting == max_inflight - 1)
        sync(late.answer())
        assert isinstance(loads.wait().errors[0].__cause__, PermissionError)
        eventually(lambda: stuck.n_cancelled and not stuck.n_waiting)
        limiter = limiter_of(stuck)
        eventually(lambda: not (limiter.n_inflight or limiter.n_bytes or limiter._permits))
    assert loads.n_calls == 1


def test_reads_that_wait_behind_those_of_another_loader_are_ended(stored):
    stuck = NeverAnswers(Raises(stored, denied, only("t/c/0/0")), lambda key: key.startswith("u/c"))
    t, u = (one_array(stored, name=name) for name in "tu")
    with (
        fetching(stuck, u, max_inflight=1) as other,
        fetching(stuck, t, max_inflight=1) as fetcher,
    ):
        limiter = limiter_of(stuck)
        first = fetcher._engine._account.ask(1)  # nobody reads before both have asked
        failing, stalled = Loads(t), Loads(u)
        fetcher.submit(failing.loads)
        eventually(lambda: limiter.is_waited_for)
        other.submit(stalled.loads)
        eventually(lambda: len(limiter._waiting) == 2)
        first.end()
        assert isinstance(failing.wait().errors[0].__cause__, PermissionError)
        assert stalled.ends == {}
        sync(stuck.answer())
        assert not stalled.wait().errors


def test_blocking_reads_end_without_their_load(stored, monkeypatch):
    read = ObjectReads.__call__
    with FaultServer(stored) as server:
        store = open_store(server.url)
        array = one_array(store, name="t")
        server.fail("t/c/0/1", stall=True)
        server.fail("t/c/0/0", status=403)

        def fails_late(reads, job):
            if job.request.key == "t/c/0/0":
                eventually(lambda: server.requests["t/c/0/1"])
            return read(reads, job)

        monkeypatch.setattr(ObjectReads, "__call__", fails_late)
        with fetching(store, array, max_inflight=2) as fetcher:
            loads = Loads(array)
            fetcher.submit(loads.loads)
            assert isinstance(loads.wait().errors[0].__cause__, PermissionDeniedError)
            limiter = limiter_of(store)
            # The read that cannot be cancelled; the third one had begun or not.
            eventually(lambda: limiter.n_inflight == 1)
            server.heal()
            server.release()
            eventually(lambda: not (limiter.n_inflight or limiter.n_bytes or limiter._permits))
            assert loads.n_calls == 1


def test_reads_of_files_that_wait_behind_those_of_another_loader_are_ended(tmp_path):
    """A pipe without a writer holds the one read that the store may have."""
    chunks = {"t": (2, 2), "u": (2, 6)}
    store = make_store({"t": (2, 6), "u": (2, 6)}, chunks=chunks, path=tmp_path)
    (tmp_path / "t/c/0/0").write_bytes(b"garbage")
    pipe = tmp_path / "u/c/0/0"
    content = pipe.read_bytes()
    pipe.unlink()
    os.mkfifo(pipe)
    t, u = (one_array(store, name=name) for name in "tu")
    with (
        fetching(store, u, max_inflight=1) as other,
        fetching(store, t, max_inflight=1, retry=RetryPolicy(attempts=1)) as fetcher,
    ):
        limiter = limiter_of(store)
        first = fetcher._engine._account.ask(1)  # nobody reads before both have asked
        failing, stalled = Loads(t), Loads(u)
        fetcher.submit(failing.loads)
        eventually(lambda: len(fetcher._engine._reader._parked) == 3)
        other.submit(stalled.loads)
        eventually(lambda: len(limiter._waiting) == 2)
        first.end()
        try:
            assert isinstance(failing.wait().errors[0], DecodeError)
            assert stalled.ends == {}
        finally:
            pipe.write_bytes(content)
        assert not stalled.wait().errors


# Two shards side by side, so that each load has a stored chunk in both.
SIDE_BY_SIDE = {"shape": (16, 6), "chunks": (2, 3), "shards": (8, 3)}
LEFT, RIGHT = "t/c/0/0", "t/c/0/1"
LONG = RetryPolicy(first_delay_s=1000, longest_delay_s=1000, budget_s=10**6)


class InTwoShards:
    """Loads 0 and 1, of which load 0 lacks its stored chunk in the shard on the right."""

    def __init__(self):
        self.source = sharded(**SIDE_BY_SIDE)
        buffer = self.source._store_dict[RIGHT]
        content = Index(4).changed(buffer.to_bytes(), 0, (NOWHERE, NOWHERE))
        self.source._store_dict[RIGHT] = type(buffer).from_bytes(content)
        self.array = one_array(self.source, name="t")
        self.loads = Loads(self.array, [0, 1])
        self.has_failed = threading.Event()

    def fetching(self, store, monkeypatch, **options):
        """A fetcher that says when a load has failed and its other reads were looked for."""
        end_failed = FetchEngine._end_failed

        def noted(engine):
            end_failed(engine)
            self.has_failed.set()

        monkeypatch.setattr(FetchEngine, "_end_failed", noted)
        return fetching(store, self.array, on_missing="raise", decode_threads=2, **options)

    def check_failed_alone(self):
        eventually(lambda: 0 in self.loads.ends)
        assert isinstance(self.loads.ends[0], ReadError)
        assert 1 not in self.loads.ends


def test_a_part_of_a_shard_is_not_waited_for_by_a_load_that_failed_meanwhile(monkeypatch):
    """It fails while the index of its other shard is taken apart; then the part never comes."""
    two = InTwoShards()
    n_reads = itertools.count(1)
    store = NeverAnswers(two.source, lambda key: key == LEFT and next(n_reads) > 1)
    taken_apart = ShardReads.taken_apart

    def late(reads, job, payload):
        following = taken_apart(reads, job, payload)
        if job.key == LEFT:
            assert two.has_failed.wait(WAIT_S)
        return following

    with two.fetching(store, monkeypatch) as fetcher:
        monkeypatch.setattr(ShardReads, "taken_apart", late)
        fetcher.submit(two.loads.loads)
        eventually(lambda: store.n_waiting)
        two.check_failed_alone()
        sync(store.answer())
        assert two.loads.wait().ends[1] is None
        check_at_rest(store)


def test_a_shard_that_waits_for_its_next_try_holds_no_load_that_failed_meanwhile(monkeypatch):
    two = InTwoShards()
    store = Raises(two.source, lambda: ConnectionResetError("by peer"), only(LEFT))
    delay_s = Retries.delay_s

    def late(retries, job, error):
        if job.key == LEFT:
            assert two.has_failed.wait(WAIT_S)
        return delay_s(retries, job, error)

    with two.fetching(store, monkeypatch, retry=LONG) as fetcher:
        monkeypatch.setattr(Retries, "delay_s", late)
        fetcher.submit(two.loads.loads)
        eventually(lambda: fetcher._engine._retries._waiting)
        two.check_failed_alone()
        fetcher.cancel()
        assert isinstance(two.loads.wait().ends[1], Cancelled)
        check_at_rest(store)


@pytest.mark.parametrize("stalled", [1, 2], ids=["index", "part"])
def test_a_load_leaves_the_read_of_a_shard_when_it_fails(monkeypatch, stalled):
    two = InTwoShards()
    n_reads = itertools.count(1)
    left = NeverAnswers(two.source, lambda key: key == LEFT and next(n_reads) >= stalled)
    store = NeverAnswers(left, only(RIGHT))
    with two.fetching(store, monkeypatch) as fetcher:
        fetcher.submit(two.loads.loads)
        eventually(lambda: store.n_waiting == left.n_waiting == 1)
        sync(store.answer())
        two.check_failed_alone()
        sync(left.answer())
        assert two.loads.wait().ends[1] is None
        # The slot of the other one was not written to any more.
        assert two.loads.n_calls == 2
        check_at_rest(store)
