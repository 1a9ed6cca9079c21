"""A thousand early breaks, consumers that stop, and what deletion ends."""

import gc
import itertools
import os
import pathlib
import threading

import pytest
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.conftest import new_threads, open_descriptors
from tests.contracts.chains import PLENTY, floor_of
from tests.contracts.stalled_loaders import (
    CHUNK,
    FEW_ROOTS,
    N_SAMPLES,
    ROOTS,
    VALUES,
    batches_from,
    check_values,
    quick_first,
    rest,
    stalled,
)
from tests.contracts.watchdog import promptly
from tests.small_loaders import all_ids, eventually, flat
from torchdata_insitu.testing import CountingStore, make_store

N_CHUNKS = N_SAMPLES // CHUNK
# Reads of chunks that are stalled from this one on: none.
NONE_STALLED = N_CHUNKS
prefetch = pytest.mark.parametrize("prefetch_factor", [0, 2])
# A pass of so few samples would end before its batches are looked at.
pytestmark = pytest.mark.usefixtures("batches_one_by_one")


def resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Breaks:
    """A loader over a store that counts, left over and over after one batch."""

    def __init__(self, budget_bytes, folder=None, **options):
        inner = make_store({"t": VALUES}, chunks=(CHUNK, 2), path=folder)
        self.store = inner if folder else CountingStore(inner)
        self.views = {"x": tdi.open_arrays(self.store)["t"]}
        options = {"batch_size": CHUNK, "block_chunks": 2, **options}
        if budget_bytes == "floor":
            budget_bytes, _ = floor_of(self.store, self.views, budget_bytes=PLENTY, **options)
        self.pool = tdi.ChunkPool(budget_bytes)
        self.loader = tdi.build_loader(self.store, self.views, pool=self.pool, **options)
        self.n_broken = 0
        self.most_in_use = 0

    @property
    def n_reads(self):
        return self.store.reads() if isinstance(self.store, CountingStore) else 0

    def run(self, n_breaks):
        for _ in range(n_breaks):
            for batch in self.loader:
                check_values(batch)
                break
            assert self.loader.epoch == self.n_broken
            assert self.pool.n_passes == 1
            self.most_in_use = max(self.most_in_use, self.pool.n_in_use)
            self.n_broken += 1


def check_breaks_leave_nothing(breaks, n_breaks):
    """Threads, descriptors, memory, leases and passes are as after the first tenth of them.

    Returns:
        Reads of the later ones, where the store counts them.
    """
    threads = set(threading.enumerate())
    breaks.run(n_breaks // 10)
    gc.collect()
    n_threads, descriptors = len(new_threads(threads)), open_descriptors().keys()
    most_in_use, memory, n_reads = breaks.most_in_use, resident_bytes(), breaks.n_reads
    breaks.run(n_breaks - n_breaks // 10)
    gc.collect()
    # A decode thread may have been started meanwhile, for what was read ahead.
    assert len(new_threads(threads)) <= n_threads + 1
    assert len(open_descriptors().keys() - descriptors) <= 1
    assert breaks.most_in_use <= max(most_in_use, N_CHUNKS)
    assert breaks.pool.charged_bytes <= breaks.pool.budget_bytes
    assert resident_bytes() - memory < 2**24
    breaks.loader.close()
    assert (breaks.pool.n_passes, breaks.pool.n_in_use) == (0, 0)
    assert not new_threads(threads)
    return breaks.n_reads - n_reads


@quick_first("prefetch_factor", [0, 2], lambda factor: factor == 2)
@pytest.mark.parametrize("n_breaks", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_breaks_read_nothing_once_all_is_resident(prefetch_factor, n_breaks):
    breaks = Breaks(PLENTY, prefetch_factor=prefetch_factor)
    assert check_breaks_leave_nothing(breaks, n_breaks) == 0
    assert (breaks.pool.n_resident, breaks.pool.n_evicted) == (N_CHUNKS, 0)


@prefetch
def test_breaks_without_room_read_what_they_open(prefetch_factor):
    n_breaks = 100
    n_reads = check_breaks_leave_nothing(Breaks("floor", prefetch_factor=prefetch_factor), n_breaks)
    # The first block is one chunk, the next two are of two, and there is no room for more.
    assert n_reads <= n_breaks * 5


@pytest.mark.slow
@prefetch
@pytest.mark.parametrize("budget_bytes", [PLENTY, "floor"])
def test_a_thousand_breaks_over_local_files(prefetch_factor, budget_bytes, tmp_path):
    check_breaks_leave_nothing(
        Breaks(budget_bytes, tmp_path, prefetch_factor=prefetch_factor), 1_000
    )


@pytest.mark.slow
@pytest.mark.parametrize("root", ["its Mapper", "its ParallelMapper", "Prefetcher of its Mapper"])
def test_breaks_through_nodes_of_others(root):
    with stalled("Zarr's loop", None, NONE_STALLED) as made:
        before = set(threading.enumerate())
        with made.loader(root, shuffle=True) as loader:
            for epoch in range(20):
                for batch in loader:
                    check_values(batch)
                    break
                assert loader.epoch == epoch
                assert made.pool.n_passes == 1
            assert sorted(flat(all_ids(loader))) == list(range(N_SAMPLES))
        del loader
        gc.collect()
        eventually(lambda: not new_threads(before))


# A consumer that stops


@prefetch
@pytest.mark.parametrize("budget_bytes", ["floor", 3 * CHUNK * 8 + 1, PLENTY])
def test_a_consumer_that_stops_stops_the_reading(prefetch_factor, budget_bytes):
    n_chunks = 200
    store = CountingStore(make_store({"t": (n_chunks * CHUNK, 2)}, chunks=(CHUNK, 2)))
    views = {"x": tdi.open_arrays(store)["t"]}
    options = {
        "batch_size": CHUNK,
        "block_chunks": 2,
        "prefetch_factor": prefetch_factor,
        "max_inflight": 4,
    }
    if budget_bytes == "floor":
        budget_bytes, _ = floor_of(store, views, budget_bytes=PLENTY, **options)
    pool = tdi.ChunkPool(budget_bytes)
    with tdi.build_loader(store, views, pool=pool, **options) as loader:
        items = iter(loader)
        seen = [next(items)["sample_index"].tolist() for _ in range(3)]
        is_full = Full(loader, prefetch_factor)
        with promptly():
            eventually(is_full)
        at_rest = store.reads(), pool.n_resident, pool.charged_bytes
        if budget_bytes == PLENTY:
            # Each of the segments that were begun asks twice for what keeps the reads busy.
            assert at_rest[0] <= (3 + prefetch_factor) * 2 * (2 * 4 + 2)
        else:
            assert at_rest[0] <= 3 + prefetch_factor + 3
        for _ in range(200):
            sync(others(store))
        assert (store.reads(), pool.n_resident, pool.charged_bytes) == at_rest
        seen += [batch["sample_index"].tolist() for batch in items]
        assert sorted(flat(seen)) == list(range(n_chunks * CHUNK))
        assert store.reads() == n_chunks


class Full:
    """Whether all that is made ahead was made and every read under way has landed."""

    def __init__(self, loader, n_ahead):
        self._loader = loader
        self._n_ahead = n_ahead

    def __call__(self):
        if self._n_ahead and len(self._loader.node._channel._items) < self._n_ahead:
            return False
        return all(
            resident.is_ready for resident in list(self._loader.chain.fetcher.pool._residency)
        )


async def others(store):
    """A turn of Zarr's loop that reads nothing."""
    assert await store.exists("t/zarr.json")


# Batches are the consumer's


@pytest.mark.parametrize("batch_size", [1, CHUNK, 7, N_SAMPLES])
@pytest.mark.parametrize("shuffle", [True, False])
def test_changes_of_a_batch_in_place_do_not_reach_resident_chunks(batch_size, shuffle):
    store = CountingStore(make_store({"t": VALUES}, chunks=(CHUNK, 2), codec="none"))
    t = tdi.open_arrays(store)["t"]
    views = {"x": t, "w": t.window(0, 1), "s": tdi.stack(t, t)}
    options = {"batch_size": batch_size, "shuffle": shuffle, "block_chunks": 2, "tail": "short"}
    with tdi.build_loader(store, views, budget_bytes=PLENTY, **options) as loader:
        for _ in range(3):
            for batch in loader:
                check_values(batch)
                anchors = batch["sample_index"].numpy()
                assert (batch["w"][:, 1].numpy() == VALUES[anchors + 1]).all()
                assert (batch["s"][:, 1].numpy() == VALUES[anchors]).all()
                for tensor in batch.values():
                    tensor.neg_().sub_(1)
        assert store.reads() == N_CHUNKS


# Deletion


def end_is_soon(pool, before):
    eventually(lambda: (pool.n_passes, pool.n_in_use) == (0, 0))
    with promptly():
        while new_threads(before):
            os.sched_yield()


def live_iterator(made, root):
    return iter(made.loader(root))


def live_loader(made, root):
    loader = made.loader(root)
    return itertools.chain.from_iterable([loader])


def live_chain(made, root):
    """Without a loader."""
    node = ROOTS[root](made.gather())
    node.reset(None)
    return node


def loader_in_a_cycle(made, root):
    loader = made.loader(root)
    loader.itself = [loader]
    return iter(loader)


OWNERS = (live_iterator, live_loader, live_chain, loader_in_a_cycle)


@quick_first("root", FEW_ROOTS, lambda root: "Mapper" not in root)
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("first_stalled", [3, NONE_STALLED])
def test_what_is_deleted_ends_though_its_pool_stays(owner, root, first_stalled):
    """Chunks stay in the pool, and keep nothing of the loader that read them."""
    if owner is live_chain and root.startswith("its") and first_stalled < NONE_STALLED:
        pytest.skip("threads of torchdata's own node end when the store answers")
    before = set(threading.enumerate())
    with stalled("Zarr's loop", None, first_stalled) as made:
        items = owner(made, root)
        assert rest(itertools.islice(items, 2)) == batches_from(0)[:2]
        del items
        gc.collect()
        end_is_soon(made.pool, before)
        assert made.pool.n_resident >= 2


@pytest.mark.parametrize("kind", ["HTTP", "files"])
@pytest.mark.parametrize("root", ["gather", "Prefetcher"])
def test_what_is_deleted_ends_over_other_stores(kind, root, tmp_path):
    before = set(threading.enumerate())
    with stalled(kind, tmp_path, NONE_STALLED) as made:
        items = iter(made.loader(root))
        assert rest(itertools.islice(items, 2)) == batches_from(0)[:2]
        del items
    end_is_soon(made.pool, before)
