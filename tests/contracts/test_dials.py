"""Each dial turns one thing: what it must leave alone is the same at all its settings."""

import dataclasses

import pytest

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, floor_of
from tests.contracts.stalled_loaders import Asking
from tests.contracts.watchdog import promptly
from tests.small_loaders import eventually, flat, ids
from torchdata_insitu.testing import CountingStore, FaultStore, make_store

# Equal lanes cut no chunk.
N_CHUNKS, CHUNK, WIDTH = 96, 4, 6
N_SAMPLES = N_CHUNKS * CHUNK
CHUNK_BYTES = CHUNK * WIDTH * 4
each_budget = pytest.mark.parametrize("n_blocks", [1, 2, None])
each_lanes = pytest.mark.parametrize("lanes", [1, 3])


@pytest.fixture(scope="module")
def inner():
    return make_store({"t": (N_SAMPLES, WIDTH)}, chunks=(CHUNK, WIDTH))


@dataclasses.dataclass
class Epoch:
    """What an epoch gave, and what it cost."""

    order: list[int]
    reads: dict[str, int]
    peak_bytes: int
    n_evicted: int


def budget_of(store, views, n_blocks, options):
    """Of so many blocks of every lane, the floor being one; None for the whole split."""
    if n_blocks is None:
        return PLENTY
    return n_blocks * floor_of(store, views, budget_bytes=PLENTY, **options)[0]


def run(inner, n_blocks=1, **options):
    """One epoch of a loader with a pool of so many blocks."""
    store = CountingStore(inner)
    views = {"x": tdi.open_arrays(store)["t"]}
    options = {"batch_size": 16, "block_chunks": 8, **options}
    pool = tdi.ChunkPool(budget_of(store, views, n_blocks, options))
    store.reset()
    order, peak_bytes = [], 0
    with promptly(60), tdi.build_loader(store, views, pool=pool, **options) as loader:
        for batch in loader:
            order += ids(batch)
            assert batch["x"][:, 0].tolist() == [WIDTH * i for i in ids(batch)]
            peak_bytes = max(peak_bytes, pool.charged_bytes)
            assert pool.n_resident * CHUNK_BYTES <= pool.budget_bytes
        peak_bytes = max(peak_bytes, pool.charged_bytes)
    reads = {key: n for key, n in store.gets.items() if "/c/" in key}
    return Epoch(order, reads, peak_bytes, pool.n_evicted)


def most_in_the_air(inner, n_blocks, n_expected, **options):
    """Reads of a store under way at the same time, and the order of the epoch."""
    store = FaultStore(inner, "stall")
    views = {"x": tdi.open_arrays(store)["t"]}
    options = {"batch_size": 16, "block_chunks": 8, **options}
    pool = tdi.ChunkPool(budget_of(store, views, n_blocks, options))
    with promptly(60), tdi.build_loader(store, views, pool=pool, **options) as loader:
        asking = Asking(loader, is_checked=False)
        eventually(lambda: store.n_stalled >= n_expected)
        store.release()
        asking.join()
    assert asking.error is None
    return store.most_stalled, flat(asking.taken)


def once_each():
    return {f"t/c/{number}/0": 1 for number in range(N_CHUNKS)}


def check_same(epochs, *, residency=True):
    """Order and reads are the same in all epochs, and so is the memory they took."""
    first = epochs[0]
    assert sorted(first.order) == list(range(N_SAMPLES))
    assert first.reads == once_each()
    for epoch in epochs[1:]:
        assert epoch.order == first.order
        assert epoch.reads == first.reads
        if residency:
            assert (epoch.peak_bytes, epoch.n_evicted) == (first.peak_bytes, first.n_evicted)


@each_budget
@each_lanes
def test_max_inflight_changes_neither_order_reads_nor_residency(inner, n_blocks, lanes):
    dials = (1, 8, 64)
    check_same([run(inner, n_blocks, lanes=lanes, max_inflight=dial) for dial in dials])


@pytest.mark.parametrize("dial", [1, 8, 64])
def test_max_inflight_is_what_is_in_the_air(inner, dial):
    at_floor = min(dial, 8)
    found, order = most_in_the_air(inner, 1, at_floor, max_inflight=dial)
    assert found == at_floor
    assert most_in_the_air(inner, None, dial, max_inflight=dial) == (dial, order)
    assert order == run(inner).order


@each_budget
def test_block_chunks_changes_shuffle_span_and_residency_only(inner, n_blocks):
    dials = (1, 4, 16)
    epochs = {dial: run(inner, n_blocks, block_chunks=dial) for dial in dials}
    for dial, epoch in epochs.items():
        assert sorted(epoch.order) == list(range(N_SAMPLES))
        assert epoch.reads == once_each()
        assert 0 < span_of(epoch.order) <= dial * CHUNK
        if n_blocks is not None:
            assert epoch.peak_bytes == n_blocks * dial * CHUNK_BYTES
    assert span_of(epochs[16].order) > 8 * CHUNK
    assert len({epoch.peak_bytes for epoch in epochs.values()}) == (1 if n_blocks is None else 3)


def span_of(order):
    """The most draws from the first of a chunk to its last."""
    places = {}
    for place, sample in enumerate(order):
        places.setdefault(sample // CHUNK, []).append(place)
    return max(found[-1] - found[0] + 1 for found in places.values())


@pytest.mark.parametrize("dial", [1, 4, 16])
def test_block_chunks_does_not_change_what_is_in_the_air(inner, dial):
    found, _ = most_in_the_air(inner, None, 8, max_inflight=8, block_chunks=dial)
    assert found == 8


@each_budget
@each_lanes
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_batch_size_changes_neither_order_reads_nor_residency(
    inner, n_blocks, lanes, prefetch_factor
):
    options = {"lanes": lanes, "prefetch_factor": prefetch_factor}
    check_same([run(inner, n_blocks, batch_size=dial, **options) for dial in (1, 7, 64, 1000)])


@each_budget
def test_prefetch_factor_changes_neither_order_reads_nor_residency(inner, n_blocks):
    check_same([run(inner, n_blocks, prefetch_factor=dial) for dial in (0, 1, 2, 30)])


@each_budget
def test_decode_threads_change_neither_order_reads_nor_residency(inner, n_blocks):
    check_same([run(inner, n_blocks, decode_threads=dial) for dial in (1, 2, 5)])
