"""Zarr's event loop belongs to everybody: a pass that is stalled costs others nothing."""

import asyncio
import gc
import statistics
import threading

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import _get_loop, sync
from zarr.storage import WrapperStore

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY
from tests.fake_stores import NeverAnswers, Raises, is_chunk
from tests.small_loaders import eventually
from torchdata_insitu.testing import FaultServer, make_store

SHAPE, CHUNKS = (40, 2), (2, 2)
LONG = tdi.RetryPolicy(first_delay_s=1000, longest_delay_s=1000, budget_s=10**6)


class Handles:
    """Counts what event loops call."""

    def __init__(self, monkeypatch):
        self.n_called = 0
        original = asyncio.events.Handle._run

        def counted(handle):
            self.n_called += 1
            return original(handle)

        monkeypatch.setattr(asyncio.events.Handle, "_run", counted)

    def during(self, call):
        before = self.n_called
        call()
        return self.n_called - before


class Unrelated:
    """Somebody else who reads through Zarr."""

    def __init__(self):
        self.store = make_store({"v": (6, 2)}, chunks=(1, 2))

    def read(self):
        assert zarr.open_array(self.store, path="v")[5, 1] == 11
        assert sync(self.store.get("v/c/0/0", default_buffer_prototype())) is not None


def loader_over(store, **options):
    views = tdi.open_arrays(store, "t")
    return tdi.build_loader(store, views, batch_size=4, budget_bytes=PLENTY, **options)


class Stalled:
    """A loader of which a thread waits for a batch, on every way of reading there is."""

    def __init__(self, kind, max_inflight=32):
        inner = make_store({"t": SHAPE}, chunks=CHUNKS)
        self.server = None
        retry = None
        if kind == "loop":
            self.store = NeverAnswers(inner)
        elif kind == "retrying":
            self.store, retry = Raises(inner, lambda: ConnectionResetError("by peer")), LONG
        else:
            self.server = FaultServer(inner)
            self.server.up()
            self.store = tdi.open_store(self.server.url)
            self.server.fail(is_chunk, stall=True)
        self.loader = loader_over(self.store, max_inflight=max_inflight, retry=retry)
        self.is_stalled = {
            "loop": lambda: self.store.n_waiting == 20,
            "retrying": lambda: len(self.waiting_to_retry) == 20,
            "obstore": lambda: self.server.n_stalled == 20,
        }[kind]
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()
        eventually(self.is_stalled)

    @property
    def waiting_to_retry(self):
        (fetcher,) = self.loader.chain.fetcher._fetchers.values()
        return fetcher._engine._retries._waiting

    def ask(self):
        with pytest.raises(tdi.errors.ClosedError):
            next(iter(self.loader))

    def end(self):
        self.loader.close()
        self.thread.join()
        if self.server is not None:
            self.server.release()
            eventually(lambda: not self.server.n_stalled)
            self.server.close()


@pytest.fixture(params=["loop", "retrying", "obstore"])
def stalled(request):
    passes = []

    def start(**options):
        passes.append(Stalled(request.param, **options))
        return passes[-1]

    yield start
    for each in passes:
        each.end()


def test_a_stalled_pass_has_nothing_called_on_the_loop(stalled, monkeypatch):
    """So that no read of others waits longer, in the median or ever.

    Counted, because times of microseconds differ more from run to run than a guest makes them.
    """
    handles, unrelated = Handles(monkeypatch), Unrelated()

    def per_read():
        return statistics.median(handles.during(unrelated.read) for _ in range(21))

    per_read()
    alone = per_read()
    stalled()
    # What a read leaves to be called behind it is counted with it or with the next one.
    assert per_read() <= 1.1 * alone
    idle = threading.Event()
    assert min(handles.during(lambda: idle.wait(0.01)) for _ in range(5)) == 0


def test_others_read_while_a_pass_is_stalled_and_after_its_end(stalled):
    loop, executor, config = _get_loop(), _get_loop()._default_executor, dict(zarr.config.config)
    unrelated = Unrelated()
    a_pass = stalled()
    unrelated.read()
    a_pass.loader.close()
    unrelated.read()
    assert _get_loop() is loop
    assert loop.is_running()
    assert loop._default_executor is executor
    assert dict(zarr.config.config) == config


@pytest.mark.parametrize("end", ["close", "interrupt", "reset", "collect"])
def test_tasks_of_others_are_left_alone(stalled, end):
    a_pass = stalled()
    other = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), _get_loop())
    if end == "close":
        a_pass.loader.close()
    elif end == "interrupt":
        a_pass.loader.node.interrupt()
        a_pass.thread.join()
    elif end == "reset":
        a_pass.loader.node.interrupt()
        a_pass.thread.join()
        a_pass.loader.node.reset(None)
    else:
        a_pass.loader.close()
        a_pass.thread.join()
        a_pass.loader = loader_over(a_pass.store)
        gc.collect()
    sync(turns())
    assert not other.done()
    other.cancel()


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


def test_wrappers_are_never_asked_outside_the_loop():
    """`get_sync` of a wrapper goes past a subclass that overrides `get`."""

    class Own(WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            assert asyncio.get_running_loop() is _get_loop()
            return await super().get(key, prototype, byte_range)

        def get_sync(self, *_, **__):
            raise AssertionError("get_sync of a wrapper was used")

    store = make_store({"t": SHAPE}, chunks=CHUNKS)
    views = tdi.open_arrays(store, "t")
    with tdi.build_loader(Own(store), views, batch_size=4, budget_bytes=PLENTY) as loader:
        assert sum(len(batch["t"]) for batch in loader) == 40
