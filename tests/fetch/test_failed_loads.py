"""The error of a load waits for none of its other reads."""

import os

import pytest
from obstore.exceptions import PermissionDeniedError
from zarr.core.sync import sync

from tests.fake_stores import NeverAnswers, Raises, only
from tests.fetch.loads import Loads, fetching, one_array
from tests.small_loaders import eventually
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.object_reads import ObjectReads
from torchdata_insitu.fetch.retry import RetryPolicy
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
