"""Tasks on Zarr's loop are cancelled once, also after an interrupt."""

import asyncio

import numpy as np
import pytest
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync
from zarr.storage import WrapperStore

from tests.fake_stores import NeverAnswers, is_chunk
from tests.fetch.loads import Loads, fetching, one_array
from tests.fetch.shard_stores import Index, check_at_rest, sharded, values_of
from tests.small_loaders import eventually
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.zarr_loop_reader import ZarrLoopReader
from torchdata_insitu.testing import make_store


def test_tasks_that_an_interrupt_left_are_cancelled_by_the_next_cancellation(monkeypatch):
    store = NeverAnswers(make_store({"t": (8, 4)}, chunks=(2, 4)))
    array = one_array(store)
    with fetching(store, array, max_inflight=2) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        eventually(lambda: store.n_waiting == 2)

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ZarrLoopReader, "_call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fetcher.cancel()
        fetcher.cancel()
        eventually(lambda: store.n_cancelled == 2)
        limiter = limiter_of(store)
        eventually(lambda: not (limiter.n_inflight or limiter._permits))


class CleansUp(WrapperStore):
    """A read that is cancelled takes a while to clean up behind itself."""

    def __init__(self, store):
        super().__init__(store)
        self.is_cleaning = self.is_clean = False
        self.go_on = asyncio.Event()

    async def get(self, key, prototype, byte_range=None):
        if not is_chunk(key):
            return await super().get(key, prototype, byte_range)
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cleaning = True
            await self.go_on.wait()
            self.is_clean = True


def test_a_task_is_cancelled_once_however_often_that_is_asked_for():
    store = CleansUp(make_store({"t": (2, 4)}, chunks=(2, 4)))
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        eventually(lambda: limiter_of(store).n_inflight == 1)
        fetcher.cancel()
        eventually(lambda: store.is_cleaning)
        fetcher.cancel()

        async def lets_go():
            await asyncio.sleep(0)
            store.go_on.set()

        sync(lets_go())
        eventually(lambda: store.is_clean)
        eventually(lambda: limiter_of(store).n_inflight == 0)


def test_a_store_is_asked_for_the_end_and_for_parts_of_a_shard():
    asked = []

    class Asked(WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            if is_chunk(key):
                asked.append(byte_range)
            return await super().get(key, prototype, byte_range)

    store = Asked(sharded((16, 6), (2, 6), (16, 6), codec="none"))
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array, [3])
        fetcher.submit(loads.loads)
        np.testing.assert_array_equal(loads.wait().values, values_of(store)[6:8])
    suffix, part = asked[:2]
    assert suffix == SuffixByteRequest(Index(8).n_bytes)
    assert isinstance(part, RangeByteRequest)
    assert part.end - part.start == 48


def test_the_loop_outlives_a_store_that_raises_an_interrupt_for_a_part():
    class Interrupted(WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            if byte_range is not None:
                raise KeyboardInterrupt
            return await super().get(key, prototype, byte_range)

    store = Interrupted(sharded((16, 6), (2, 6), (16, 6)))
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array, [3])
        fetcher.submit(loads.loads)
        loads.wait()
        # The whole shard is asked for instead.
        np.testing.assert_array_equal(loads.values, values_of(store)[6:8])
        check_at_rest(store)
