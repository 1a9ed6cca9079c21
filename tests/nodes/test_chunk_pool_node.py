import asyncio
import threading

import numpy as np
import pytest
import zarr
from zarr.storage import WrapperStore

import torchdata_insitu as tdi
from tests.fake_stores import Lacks, NeverAnswers, only
from tests.small_loaders import ONE_TRY, PLENTY, N, raises_once, shut_down, small_store, views_of
from torchdata_insitu.errors import ClosedError, PlanError, ReadError

JOIN_S = 20


def make_pool_node(store, *, retry=None, **plan):
    plan = {"batch_size": 4, "block_chunks": 1, "shuffle": False, **plan}
    pool = tdi.ChunkPool(PLENTY)
    planner = tdi.ChunkPlanner(views_of(store), **plan)
    return tdi.ChunkPoolNode(tdi.AsyncChunkFetcher(planner, store, pool, retry=retry), pool)


def rows(item):
    samples = item.segment.draws[:, 0]
    found = item.regions[0][item.lookups[0].rows(samples)].copy()
    item.release()
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_of_every_segment_are_those_of_the_store(shuffle):
    store = small_store()
    whole = zarr.open_array(store, path="t2m")[:]
    n_draws = 0
    with shut_down(make_pool_node(store, shuffle=shuffle, block_chunks=2)) as node:
        for item in node:
            np.testing.assert_array_equal(rows(item), whole[item.segment.draws[:, 0]])
            n_draws += len(item.segment.draws)
        assert node.wait_s > 0
    assert n_draws == N


def test_the_fetcher_has_to_fill_the_same_pool():
    store = small_store()
    planner = tdi.ChunkPlanner(views_of(store), batch_size=4)
    fetcher = tdi.AsyncChunkFetcher(planner, store, tdi.ChunkPool(PLENTY))
    with pytest.raises(PlanError, match=r"1 AsyncChunkFetchers .* same ChunkPool"):
        tdi.ChunkPoolNode(fetcher, tdi.ChunkPool(PLENTY))
    with pytest.raises(PlanError, match="0 AsyncChunkFetchers"):
        tdi.ChunkPoolNode(planner, tdi.ChunkPool(PLENTY))


def test_interrupt_wakes_a_next_that_waits_for_chunks():
    store = NeverAnswers(small_store(), only("t2m/c/1/0/0"))
    with shut_down(make_pool_node(store)) as node:
        rows(next(node))
        state = node.state_dict()
        said = []

        def ask():
            with pytest.raises(ClosedError, match="interrupted") as raised:
                next(node)
            said.append(raised.value)

        asking = threading.Thread(target=ask)
        asking.start()
        while node._awaited is None and asking.is_alive():
            pass
        node.interrupt()
        asking.join(JOIN_S)
        with pytest.raises(ClosedError) as again:
            next(node)
        assert [again.value] == said
        zarr.core.sync.sync(store.answer())
        assert node.state_dict() == state
        node.reset(state)
        assert next(node).segment.draws[:, 0].tolist() == [4, 5, 6, 7]


def test_an_interrupt_that_comes_before_next_is_not_lost():
    with shut_down(make_pool_node(NeverAnswers(small_store()))) as node:
        state = node.state_dict()
        node.interrupt()
        with pytest.raises(ClosedError, match="interrupted"):
            next(node)
        assert node.state_dict() == state


class ListsForEver(WrapperStore):
    """No chunk exists, and the keys of the store are never listed."""

    def __init__(self, store):
        super().__init__(Lacks(store))
        self.is_listing = threading.Event()

    async def list_prefix(self, prefix):
        self.is_listing.set()
        await asyncio.Event().wait()
        yield prefix


def test_interrupting_and_shutting_down_end_a_search_for_missing_chunks():
    store = ListsForEver(small_store())
    for verb in ("interrupt", "shutdown"):
        with shut_down(make_pool_node(store)) as node:
            said = []

            def ask(node=node, said=said):
                with pytest.raises(ClosedError, match="looking for chunks was interrupted"):
                    next(node)
                said.append("closed")

            asking = threading.Thread(target=ask)
            asking.start()
            assert store.is_listing.wait(JOIN_S)
            for found in (node, node.source):
                getattr(found, verb)()
            asking.join(JOIN_S)
            assert said == ["closed"]
            store.is_listing.clear()


def test_an_error_names_array_and_key_and_the_segment_can_be_asked_for_again():
    store, once = raises_once(small_store(), "t2m/c/2/0/0")
    with shut_down(make_pool_node(store, retry=ONE_TRY)) as node:
        for _ in range(2):
            rows(next(node))
        state = node.state_dict()
        with pytest.raises(ReadError, match="array 't2m', key 't2m/c/2/0/0'") as raised:
            next(node)
        assert raised.value.__cause__ is once.error
        assert node.state_dict() == state
        node.reset(state)
        found = np.concatenate([rows(item)[:, 0, 0] / 6 for item in node])
        assert found.tolist() == list(range(8, N))
