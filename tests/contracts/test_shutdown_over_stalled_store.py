"""A store that never answers holds nobody: every way out returns promptly and leaves nothing."""

import asyncio
import gc
import itertools
import os
import signal
import threading

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted, our_threads
from tests.contracts.watchdog import promptly
from tests.fake_stores import NeverAnswers, is_chunk
from torchdata_insitu.errors import ClosedError
from torchdata_insitu.testing import make_store

N_SAMPLES, CHUNK = 40, 4
# The blocks are the chunks 0; 1 and 2; 3 and 4; 5 and 6; 7 and 8; 9.
FIRST_STALLED = 7
VALUES = counted((N_SAMPLES, 2))


class Stalled:
    """A store whose chunks from some number on never come, and loaders over it."""

    def __init__(self, first_stalled):
        # Set by the first read that does not come.
        self.reached = threading.Event()
        self._first_stalled = first_stalled
        self.store = NeverAnswers(make_store({"t": VALUES}, chunks=(CHUNK, 2)), self._stalls)
        self.views = {"x": tdi.open_arrays(self.store)["t"]}
        self.pool = tdi.ChunkPool(PLENTY)

    def _stalls(self, key):
        if not is_chunk(key) or int(key.split("/")[2]) < self._first_stalled:
            return False
        self.reached.set()
        return True

    def loader(self, **options):
        options = {"batch_size": CHUNK, "shuffle": False, "block_chunks": 2, **options}
        return tdi.build_loader(self.store, self.views, pool=self.pool, **options)

    def is_held(self):
        return self.pool.n_passes or self.pool.n_in_use or our_threads()

    def check_nothing_is_left_soon(self):
        """After a collection, which may have to leave the rest to another thread."""
        gc.collect()
        with promptly():
            while self.is_held():
                os.sched_yield()
        self.check_nothing_is_left()

    def check_nothing_is_left(self):
        assert not self.is_held()
        with promptly():
            sync(self._no_read_waits())
        check_zarr_reads()

    async def _no_read_waits(self):
        # Cancelled tasks end in the next turns of the loop.
        while self.store.n_waiting:  # noqa: ASYNC110 - the fake store has no event for it
            await asyncio.sleep(0)

    def check_it_works_once_the_store_answers(self, loader):
        sync(self.store.answer())
        with promptly(30):
            check_rest(loader, 0)
            loader.close()


def check_rest(batches, n_before):
    """The batches left of an epoch, from a batch on."""
    seen = n_before
    for batch in batches:
        anchors = batch["sample_index"].tolist()
        assert anchors == list(range(seen, seen + len(anchors)))
        np.testing.assert_array_equal(batch["x"].numpy(), VALUES[anchors])
        seen += len(anchors)
    assert seen == N_SAMPLES


def check_zarr_reads():
    """Zarr's loop serves somebody else."""
    values = counted((6, 2))
    store = make_store({"other": values}, chunks=(2, 2))
    with promptly():
        assert sync(store.get("other/c/0/0", default_buffer_prototype())) is not None
        np.testing.assert_array_equal(zarr.open_array(store, path="other")[...], values)


def thread_of(call):
    """What `call` raised, from a thread of its own."""
    raised = []

    def run():
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


prefetch = pytest.mark.parametrize("prefetch_factor", [0, 2])


@prefetch
def test_close_before_the_first_batch(prefetch_factor):
    stalled = Stalled(0)
    loader = stalled.loader(prefetch_factor=prefetch_factor)
    iter(loader)
    with promptly():
        loader.close()
        loader.close()
    assert not stalled.reached.is_set()
    stalled.check_nothing_is_left()
    stalled.check_it_works_once_the_store_answers(loader)


@prefetch
@pytest.mark.parametrize("lanes", [1, 3])
def test_close_wakes_a_next_that_waits_on_another_thread(prefetch_factor, lanes):
    stalled = Stalled(0)
    loader = stalled.loader(prefetch_factor=prefetch_factor, lanes=lanes)
    batches = iter(loader)
    thread, raised = thread_of(lambda: next(batches))
    with promptly():
        stalled.reached.wait()
        check_zarr_reads()
        loader.close()
        thread.join()
    assert [type(error) for error in raised] == [ClosedError]
    stalled.check_nothing_is_left()
    with pytest.raises(ClosedError):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    assert loader.position == 0


@prefetch
@pytest.mark.parametrize("n_before", range(7))
def test_close_after_some_batches_while_reading_ahead(prefetch_factor, n_before):
    """Batches are chunks, and batch 7 would be the first to need one that never comes."""
    stalled = Stalled(FIRST_STALLED)
    loader = stalled.loader(prefetch_factor=prefetch_factor)
    with promptly():
        taken = list(itertools.islice(loader, n_before + 1))
        stalled.reached.wait()
        check_zarr_reads()
        state = loader.state_dict()
        loader.close()
    assert len(taken) == n_before + 1
    stalled.check_nothing_is_left()
    assert loader.state_dict() == state
    sync(stalled.store.answer())
    loader.load_state_dict(state)
    with promptly(30):
        check_rest(loader, (n_before + 1) * CHUNK)
        loader.close()
    stalled.check_nothing_is_left()


@prefetch
@pytest.mark.parametrize("n_before", [0, 1, 6])
def test_deleting_the_loader_ends_everything(prefetch_factor, n_before):
    stalled = Stalled(FIRST_STALLED)
    loader = stalled.loader(prefetch_factor=prefetch_factor)
    with promptly():
        for _ in itertools.islice(loader, n_before + 1):
            pass
        stalled.reached.wait()
        del loader
    stalled.check_nothing_is_left_soon()


@prefetch
def test_break_and_forget(prefetch_factor):
    stalled = Stalled(FIRST_STALLED)

    def train():
        for batch in stalled.loader(prefetch_factor=prefetch_factor):
            assert batch["sample_index"][0] == 0
            stalled.reached.wait()
            break

    with promptly():
        train()
    stalled.check_nothing_is_left_soon()


@prefetch
def test_abandoned_iterator_over_slow_store(prefetch_factor):
    """A new pass does not wait for the reads of the old one, and loses nothing to it."""
    stalled = Stalled(FIRST_STALLED)
    loader = stalled.loader(prefetch_factor=prefetch_factor)
    with promptly():
        for epoch in range(5):
            older = iter(loader)
            assert next(older)["sample_index"][0] == 0
            assert loader.epoch == epoch
            stalled.reached.wait()
        newer = iter(loader)
        assert next(newer)["sample_index"][0] == 0
        with pytest.raises(ClosedError):
            next(older)
    sync(stalled.store.answer())
    with promptly(30):
        check_rest(newer, CHUNK)
        loader.close()
    stalled.check_nothing_is_left()


@prefetch
def test_ctrl_c_while_waiting(prefetch_factor):
    stalled = Stalled(0)
    loader = stalled.loader(prefetch_factor=prefetch_factor)
    batches = iter(loader)
    main = threading.main_thread().ident

    def interrupt():
        stalled.reached.wait()
        signal.pthread_kill(main, signal.SIGINT)

    thread, _ = thread_of(interrupt)
    with promptly():
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        thread.join()
        # What was interrupted is no end of the epoch.
        with pytest.raises(ClosedError):
            next(batches)
        loader.close()
    stalled.check_nothing_is_left()
    stalled.check_it_works_once_the_store_answers(loader)


@prefetch
def test_a_with_block_left_by_an_error(prefetch_factor):
    stalled = Stalled(FIRST_STALLED)

    def train():
        with stalled.loader(prefetch_factor=prefetch_factor) as loader:
            for _ in loader:
                stalled.reached.wait()
                raise ZeroDivisionError

    with promptly(), pytest.raises(ZeroDivisionError):
        train()
    stalled.check_nothing_is_left()


@prefetch
def test_restoring_a_state_does_not_wait_for_the_old_pass(prefetch_factor):
    stalled = Stalled(FIRST_STALLED)
    loader = stalled.loader(prefetch_factor=prefetch_factor)
    with promptly():
        for _ in itertools.islice(loader, 2):
            pass
        state = loader.state_dict()
        for _ in itertools.islice(loader, 1):
            pass
        stalled.reached.wait()
        loader.load_state_dict(state)
        assert next(iter(loader))["sample_index"][0] == 2 * CHUNK
        loader.close()
    stalled.check_nothing_is_left()


@pytest.mark.parametrize("name", ["fetcher", "pool_node", "gather", "prefetcher"])
@pytest.mark.parametrize("verb", ["shutdown", "interrupt"])
def test_every_node_can_be_ended(name, verb):
    stalled = Stalled(0)
    loader = stalled.loader()
    chain = loader.chain
    nodes = {
        "fetcher": chain.fetcher,
        "pool_node": chain.pool_node,
        "gather": chain.gather,
        "prefetcher": loader.node,
    }
    thread, raised = thread_of(lambda: next(loader.node))
    with promptly():
        stalled.reached.wait()
        for node in nodes.values():
            node.interrupt()
        thread.join()
        assert [type(error) for error in raised] == [ClosedError]
        getattr(nodes[name], verb)()
        getattr(nodes[name], verb)()
        loader.close()
    stalled.check_nothing_is_left()
