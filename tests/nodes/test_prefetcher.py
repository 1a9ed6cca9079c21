import gc
import itertools
import json
import logging
import threading
import traceback
import weakref

import pytest
import torchdata.nodes
from torchdata.nodes import BaseNode, IterableWrapper, SamplerWrapper

import torchdata_insitu as tdi
from tests.contracts.watchdog import promptly
from tests.fake_stores import NeverAnswers, is_chunk
from tests.small_loaders import make_gather, make_loader, shut_down, small_store
from tests.small_mixes import make_source
from torchdata_insitu.errors import ClosedError, PlanError, StateError
from torchdata_insitu.nodes import prefetch_channel
from torchdata_insitu.nodes.graph import walk

JOIN_S = 20


class Counts(BaseNode):
    """Counts to `n`; one permit an item, and nobody may call it while another is inside."""

    def __init__(self, n=6, permits=10**6, fails_at=None):
        super().__init__()
        self.n = n
        self.permits = threading.Semaphore(permits)
        self.entered = threading.Semaphore(0)
        self.fails_at = fails_at
        self.error = OSError(5, "the disk is gone")
        self.n_made = 0
        self.is_crowded = False
        self._inside = threading.Lock()
        self._upcoming = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        with self._alone():
            self._upcoming = 0 if initial_state is None else initial_state["upcoming"]

    def next(self):
        with self._alone():
            self.entered.release()
            assert self.permits.acquire(timeout=JOIN_S)
            if self._upcoming == self.fails_at:
                self.fails_at = None
                raise self.error
            if self._upcoming == self.n:
                raise StopIteration
            self._upcoming += 1
            self.n_made += 1
            return self._upcoming - 1

    def get_state(self):
        return {"upcoming": self._upcoming}

    def _alone(self):
        if self._inside.locked():
            self.is_crowded = True
        return self._inside


def running(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def is_closed(node):
    with pytest.raises(ClosedError):
        next(node)


def joined(thread):
    thread.join(JOIN_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("prefetch_factor", [1, 2, 20])
def test_items_come_in_order_and_once(prefetch_factor):
    node = tdi.Prefetcher(IterableWrapper(range(10)), prefetch_factor)
    assert list(node) == list(range(10))
    assert list(node) == []


@pytest.mark.parametrize("n_before", range(7))
def test_state_is_that_of_the_item_last_handed_out(n_before):
    node = tdi.Prefetcher(IterableWrapper(range(6)), 3)
    assert list(itertools.islice(node, n_before)) == list(range(n_before))
    state = json.loads(json.dumps(node.state_dict()))
    assert list(node) == list(range(n_before, 6))
    for other in (node, tdi.Prefetcher(IterableWrapper(range(6)), 1)):
        other.reset(state)
        assert other.state_dict() == state
        assert list(other) == list(range(n_before, 6))


def test_it_runs_no_further_ahead_than_it_was_told():
    source = Counts(n=30)
    node = tdi.Prefetcher(source, 2)
    for n_taken, _ in enumerate(node, start=1):
        assert source.n_made <= n_taken + 2


def test_it_works_under_torchdata_loader():
    loader = torchdata.nodes.Loader(tdi.Prefetcher(IterableWrapper(range(5)), 2))
    items = iter(loader)
    first = [next(items), next(items)]
    state = loader.state_dict()
    assert [*first, *items] == list(range(5))
    loader.load_state_dict(state)
    assert list(loader) == [2, 3, 4]
    assert list(loader) == list(range(5))


def test_an_error_comes_as_it_was_raised_after_the_items_before_it():
    source = Counts(fails_at=3)
    source.error.__cause__ = ValueError("a head crash")
    node = tdi.Prefetcher(source, 4)
    assert list(itertools.islice(node, 3)) == [0, 1, 2]
    for _ in range(3):
        with pytest.raises(OSError, match="the disk is gone") as raised:
            next(node)
        assert raised.value is source.error
    assert isinstance(raised.value.__cause__, ValueError)
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames.count("_run") == 1
    assert (traceback.extract_tb(raised.value.__traceback__)[-1].line or "") == "raise self.error"


def test_after_an_error_a_reset_goes_on_at_the_item_that_failed():
    node = tdi.Prefetcher(Counts(fails_at=3), 4)
    with pytest.raises(OSError, match="the disk is gone"):
        list(node)
    state = node.state_dict()
    node.reset(state)
    assert list(node) == [3, 4, 5]


def test_reset_waits_until_the_thread_has_left_a_slow_source():
    source = Counts(permits=2)
    node = tdi.Prefetcher(source, 2)
    assert [next(node), next(node)] == [0, 1]
    state = node.state_dict()
    for _ in range(3):
        assert source.entered.acquire(timeout=JOIN_S)
    resetting = running(lambda: node.reset(state))
    source.permits.release(100)
    joined(resetting)
    assert list(node) == [2, 3, 4, 5]
    assert not source.is_crowded


@pytest.mark.parametrize("end", ["reset", "shutdown", "del"])
def test_the_thread_is_gone_when_it_was_ended(end):
    before = threading.active_count()
    node = tdi.Prefetcher(Counts(n=10**6), 2)
    next(node)
    assert threading.active_count() == before + 1
    if end == "reset":
        node.reset(None)
    elif end == "shutdown":
        node.shutdown()
        node.shutdown()
    else:
        del node
    assert threading.active_count() == before


def test_waiting_for_a_source_that_cannot_be_interrupted_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(prefetch_channel, "_STUCK_S", 0.001)
    source = Counts(permits=0)
    node = tdi.Prefetcher(source, 1)
    logged = threading.Event()
    monkeypatch.setattr(caplog.handler, "emit", lambda _: logged.set())
    caplog.set_level(logging.WARNING)
    waiting = running(lambda: is_closed(node))
    assert source.entered.acquire(timeout=JOIN_S)
    ending = running(node.shutdown)
    assert logged.wait(JOIN_S)
    source.permits.release()
    joined(ending)
    joined(waiting)


def test_interrupt_wakes_a_blocked_next_and_a_reset_goes_on():
    source = Counts(permits=1)
    node = tdi.Prefetcher(source, 2)
    assert next(node) == 0
    said = []

    def ask():
        with pytest.raises(ClosedError, match="interrupted") as raised:
            next(node)
        said.append(raised.value)

    asking = running(ask)
    assert source.entered.acquire(timeout=JOIN_S)
    assert source.entered.acquire(timeout=JOIN_S)
    node.interrupt()
    joined(asking)
    with pytest.raises(ClosedError) as again:
        next(node)
    assert [again.value] == said
    source.permits.release(100)
    node.reset(node.state_dict())
    assert list(node) == [1, 2, 3, 4, 5]


class Epochs:
    """A sampler that waits for a permit before its first item."""

    def __init__(self):
        self.permit = threading.Semaphore(0)
        self.entered = threading.Event()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.entered.set()
        assert self.permit.acquire(timeout=JOIN_S)
        yield from range(self.epoch, self.epoch + 3)


def test_an_item_that_was_made_but_not_handed_out_does_not_count_as_an_epoch():
    sampler = Epochs()
    node = tdi.Prefetcher(SamplerWrapper(sampler), 2)
    asking = running(lambda: is_closed(node))
    assert sampler.entered.wait(JOIN_S)
    node.interrupt()
    joined(asking)
    sampler.permit.release(100)
    node.reset(None)
    assert list(node) == [0, 1, 2]
    node.reset(None)
    assert list(node) == [1, 2, 3]


class EmptyState(Counts):
    def get_state(self):
        return {}

    def reset(self, initial_state=None):
        self.was_given = initial_state
        super().reset(None)


def test_an_empty_state_of_the_source_is_handed_on():
    node = tdi.Prefetcher(EmptyState(), 1)
    node.reset({"source": {}})
    assert node.source.was_given == {}
    assert node.state_dict() == {"source": {}}


def test_none_is_an_item_like_others():
    assert list(tdi.Prefetcher(IterableWrapper([None, 1, None]), 2)) == [None, 1, None]


class RefusesOnce(Counts):
    def reset(self, initial_state=None):
        if initial_state == {"upcoming": -1}:
            raise KeyError("no such place")
        super().reset(initial_state)


def test_after_a_reset_that_failed_every_next_fails_until_one_works():
    node = tdi.Prefetcher(RefusesOnce(), 2)
    assert next(node) == 0
    with pytest.raises(KeyError) as raised:
        node.reset({"source": {"upcoming": -1}})
    for _ in range(2):
        with pytest.raises(KeyError) as again:
            next(node)
        assert again.value is raised.value
    node.reset({"source": {"upcoming": 4}})
    assert list(node) == [4, 5]


@pytest.mark.parametrize(
    "state, found",
    [
        ({"snapshot": {}, "steps_since_snapshot": 2}, "'snapshot', 'steps_since_snapshot'"),
        ({}, r"\[\]"),
        ([1], "list"),
    ],
)
def test_the_state_of_another_node_is_refused(state, found):
    node = tdi.Prefetcher(Counts(), 2)
    assert next(node) == 0
    with pytest.raises(StateError, match=rf"'source', but this one has .*{found}"):
        node.reset(state)
    assert list(node) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("prefetch_factor", [0, -1, True])
def test_at_least_one_item_is_made_ahead(prefetch_factor):
    with pytest.raises(PlanError, match="prefetch_factor is"):
        tdi.Prefetcher(Counts(), prefetch_factor)


def test_items_are_not_kept_once_they_were_handed_out():
    class Item:
        pass

    node = tdi.Prefetcher(IterableWrapper(Item() for _ in range(9)), 1)
    seen = [weakref.ref(item) for item in node]
    gc.collect()
    assert [ref() for ref in seen] == [None] * 9


def test_an_interrupt_while_the_thread_is_waited_for_does_not_let_it_be_overtaken(monkeypatch):
    """Ctrl-C in `stop` ends the wait, and the next reset has to wait again."""
    source = Gated()
    node = tdi.Prefetcher(source, 1)
    monkeypatch.setattr(prefetch_channel, "is_exiting", interrupting_once(source.gate))
    assert next(node) == 0
    source.entered.wait()
    with pytest.raises(KeyboardInterrupt):
        node.reset()
    node.reset()
    assert not source.was_overtaken
    node.shutdown()


class Gated(BaseNode):
    """Its second item comes once the gate is open; notes who came in while somebody was inside."""

    def __init__(self):
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()
        self.n_inside, self.was_overtaken, self.n = 0, False, 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.was_overtaken |= self.n_inside > 0
        self.n = 0

    def next(self):
        self.n_inside += 1
        if self.n:
            self.entered.set()
            self.gate.wait()
        self.n_inside -= 1
        self.n += 1
        return self.n - 1

    def get_state(self):
        return {"n": self.n}


def interrupting_once(gate):
    calls = []

    def is_exiting():
        calls.append(None)
        if len(calls) == 1:
            raise KeyboardInterrupt
        gate.set()
        return False

    return is_exiting


@pytest.mark.parametrize("end", ["reset", "shutdown", "del"])
def test_the_end_reaches_a_mix_that_begins_a_pass_over_a_stalled_store(monkeypatch, end):
    """The mix resets the nodes of its source, by which they forget that they were woken."""
    stalls, begun, all_woken = threading.Event(), threading.Event(), threading.Event()
    pool = tdi.ChunkPool(100)  # no room to keep chunks: the second pass reads again
    store = NeverAnswers(small_store(), lambda key: stalls.is_set() and is_chunk(key))
    sources = {
        "a": make_source("a", n=22, store=store, pool=pool, block_chunks=1),
        "b": make_source("b", n=200, block_chunks=1),
    }
    begin_pass = tdi.MixNode._begin_pass

    def begin(mix, branch, cursor):
        pool.clear()
        stalls.set()
        begun.set()
        assert all_woken.wait(JOIN_S)
        begin_pass(mix, branch, cursor)

    def is_exiting():
        all_woken.set()
        return False

    monkeypatch.setattr(tdi.MixNode, "_begin_pass", begin)
    monkeypatch.setattr(prefetch_channel, "is_exiting", is_exiting)
    mix = tdi.MixNode(sources, {"a": 10, "b": 0.5}, stop="cycle")
    node = tdi.Prefetcher(mix, 50)
    next(node)
    assert begun.wait(JOIN_S)
    with promptly(JOIN_S), shut_down(mix):
        if end == "del":
            del node
        else:
            getattr(node, end)()


@pytest.fixture
def no_cyclic_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ["close", "del"])
def test_a_loader_that_is_through_is_freed_with_its_last_reference(no_cyclic_collection, end):
    loader = make_loader(prefetch_factor=2)
    for _ in loader:
        pass
    parts = [weakref.ref(part) for part in (loader, loader.chain.gather, loader.chain.fetcher)]
    if end == "close":
        loader.close()
    del loader
    assert [part() for part in parts] == [None] * 3


def test_nodes_that_failed_and_were_shut_down_are_freed_with_the_error(no_cyclic_collection):
    def fails(batch):
        raise LookupError("no such thing in this batch")

    node = tdi.Prefetcher(make_gather(transforms=[fails]), 2)
    parts = [weakref.ref(part) for part in (node, node.source, node.source.source)]
    try:
        list(node)
    except LookupError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert "_run" in frames
    else:
        pytest.fail("nothing was raised")
    for found in list(walk(node)):
        found.shutdown()
    del node, found
    assert [part() for part in parts] == [None] * 3
