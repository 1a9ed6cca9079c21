"""A server that does not answer holds nobody, although its reads cannot be cancelled."""

import gc
import itertools
import os
import signal
import threading
import time

import pytest

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY
from tests.contracts.watchdog import promptly
from tests.small_loaders import eventually
from torchdata_insitu.errors import ClosedError
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.testing import FaultServer, make_store

N, CHUNK = 40, 4


def stalls_from(first):
    return lambda key: "/c/" in key and int(key.split("/")[2]) >= first


@pytest.fixture
def server():
    with FaultServer(make_store({"t": (N, 2)}, chunks=(CHUNK, 2))) as server:
        yield server
        server.release()


@pytest.fixture
def make(server):
    def make(first, **options):
        server.fail(stalls_from(first), stall=True)
        store = tdi.open_store(server.url)
        options = {"batch_size": CHUNK, "shuffle": False, "block_chunks": 2, **options}
        return tdi.build_loader(
            store, tdi.open_arrays(store, "t"), budget_bytes=PLENTY, max_inflight=4, **options
        )

    return make


def reader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("insitu-read")]


def check_it_goes_on(server, loader, n_before):
    """Reads that are back make room for new ones."""
    server.release()
    with promptly(30):
        seen = [batch["sample_index"].tolist() for batch in loader]
    assert list(itertools.chain(*seen)) == list(range(n_before, N))
    loader.close()


prefetch = pytest.mark.parametrize("prefetch_factor", [0, 2])


@prefetch
def test_ctrl_c_and_close_take_less_than_a_second(server, make, prefetch_factor):
    loader = make(0, prefetch_factor=prefetch_factor)
    main = threading.main_thread().ident

    def interrupt():
        assert server.wait_for(lambda s: s.n_stalled == 4)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with promptly():
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < 1
        thread.join()
    assert loader.chain.pool_node.pool.n_passes == 0
    check_it_goes_on(server, loader, 0)


@prefetch
@pytest.mark.parametrize("n_before", [0, 3])
def test_closing_while_reading_ahead(server, make, prefetch_factor, n_before):
    loader = make(6, prefetch_factor=prefetch_factor)
    with promptly():
        taken = list(itertools.islice(loader, n_before + 1))
        state = loader.state_dict()
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < 1
    assert len(taken) == n_before + 1
    loader.load_state_dict(state)
    check_it_goes_on(server, loader, CHUNK * (n_before + 1))


def test_closing_wakes_who_waits_on_another_thread(server, make):
    loader = make(0)
    raised = []

    def ask():
        try:
            next(iter(loader))
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    with promptly():
        assert server.wait_for(lambda s: s.n_stalled == 4)
        loader.close()
        thread.join()
    assert len(raised) == 1


@prefetch
def test_a_loader_that_is_forgotten_leaves_only_reads_that_block(server, make, prefetch_factor):
    loader = make(6, prefetch_factor=prefetch_factor)
    store, pool = loader.chain.fetcher.store, loader.chain.pool_node.pool
    for _ in itertools.islice(loader, 4):
        pass
    del loader, _
    gc.collect()
    with promptly():
        while pool.n_passes or len(reader_threads()) > server.n_stalled:
            os.sched_yield()
    server.release()
    eventually(lambda: not reader_threads())
    assert (limiter_of(store).n_inflight, limiter_of(store).n_bytes) == (0, 0)
