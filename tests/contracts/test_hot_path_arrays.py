"""What an epoch copies once all is warm: each row once, and into no fresh array.

Nothing is timed. Each count is also taken of a library into which a fault is planted that makes it
slower and changes no value: a check that passes then is none.
"""

import tracemalloc

import numpy as np
import pytest

from tests.contracts.hot_paths import (
    FIELD,
    PATHS,
    STORED,
    all_views,
    keep_files_fast,
    make_stores,
    store_of,
    warm,
)
from torchdata_insitu.fetch import decoder
from torchdata_insitu.fetch.object_reads import ObjectReads
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.gather import batch_buffers, row_copy
from torchdata_insitu.gather.row_copy import RowCopy
from torchdata_insitu.nodes.batch_memory import BatchMemory

# The lists, numbers and small arrays of an epoch: half of a stored chunk, and less than a batch.
MOST_TRACED_BYTES = STORED["shards"] * int(np.prod(FIELD)) * 4 // 2


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory)


@pytest.fixture(autouse=True)
def fast_files(monkeypatch):
    keep_files_fast(monkeypatch)


# No fresh array


def traced_peak(stores, path):
    """The most that is made anew at a time in a warm epoch, of what Python and NumPy allocate."""
    store = store_of(stores, path)
    # One thread: another would grow its buffers when it first comes to decode.
    with warm(store, all_views(store), decode_threads=1) as loader:
        tracemalloc.start()
        try:
            for batch in loader:
                del batch
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("path", PATHS)
def test_a_warm_epoch_makes_no_array_of_the_size_of_a_chunk_or_batch(stores, path):
    assert traced_peak(stores, path) < MOST_TRACED_BYTES


def gathers_twice(monkeypatch):
    copy = RowCopy.copy

    def through_another(self, regions, rows, out):
        own = np.empty_like(out)
        copy(self, regions, rows, own)
        out[...] = own

    monkeypatch.setattr(RowCopy, "copy", through_another)


def decodes_twice(monkeypatch):
    unpack = decoder.unpack

    def through_another(stages, stored, n_bytes, target, scratch):
        own = np.empty(n_bytes, np.uint8)
        target[...] = unpack(stages, stored, n_bytes, own, scratch)
        return target

    monkeypatch.setattr(decoder, "unpack", through_another)


def reads_into_new_memory(monkeypatch):
    def new(self, n_bytes, *, keep=0):
        larger = np.empty(n_bytes + (1 << 20), np.uint8)
        larger[:keep] = self._encoded[:keep]
        self._encoded = larger
        return larger

    monkeypatch.setattr(ThreadBuffers, "encoded", new)


def copies_payloads(monkeypatch):
    read = ObjectReads.__call__
    monkeypatch.setattr(ObjectReads, "__call__", lambda self, job: read(self, job).copy())


def recycles_nothing(monkeypatch):
    monkeypatch.setattr(batch_buffers, "_n_references", lambda *_: 99)


@pytest.mark.parametrize(
    "path, fault",
    [
        ("files", gathers_twice),
        ("files", decodes_twice),
        ("files", reads_into_new_memory),
        ("files", recycles_nothing),
        ("objects", copies_payloads),
        ("shard objects", copies_payloads),
    ],
)
def test_a_fresh_array_a_chunk_or_a_batch_is_found(stores, path, fault, monkeypatch):
    fault(monkeypatch)
    assert traced_peak(stores, path) > MOST_TRACED_BYTES


def addresses(batch):
    return {(name, tensor.data_ptr()) for name, tensor in batch.items()}


def new_addresses(stores):
    """Where batches of a warm epoch lie and none of the epochs before did."""
    store = store_of(stores, "files")
    with warm(store, all_views(store)) as loader:
        kept = list(loader)
        known = set().union(*map(addresses, kept))
        del kept
        found = set()
        for batch in loader:
            found |= addresses(batch)
        return found - known


def test_batches_come_in_memory_that_earlier_ones_had(stores):
    assert not new_addresses(stores)


def test_batches_in_new_memory_are_found(stores, monkeypatch):
    recycles_nothing(monkeypatch)
    assert new_addresses(stores)


# One copy of a row


class CopiesCounted:
    """NumPy as the row copy sees it, with each copy of rows noted.

    `take` is all that moves rows there.
    """

    def __init__(self, monkeypatch):
        self.copies = []
        monkeypatch.setattr(row_copy, "np", self)

    def __getattr__(self, name):
        return getattr(np, name)

    def take(self, region, rows, **options):
        out = options["out"]
        self.copies.append((out.ctypes.data, out.nbytes, len(rows)))
        return np.take(region, rows, **options)


def check_copies(loader, copies):
    """One copy a view for each batch, and one more where a batch goes on in the next segment."""
    planner = loader.chain.planner
    # Kept, so that no address is that of two batches.
    batches = list(loader)
    n_parts = 0
    for segment in planner.plan.segments(planner.start_of(2), *planner.ranks):
        is_open = not segment.cuts or segment.cuts[-1].stop < len(segment.draws)
        n_parts += len(segment.cuts) + is_open
    views = planner.views
    assert n_parts < 2 * len(batches)
    assert len(copies) == n_parts * len(views)
    n_draws = sum(len(batch["sample_index"]) for batch in batches)
    n_rows = n_draws * sum(len(view.offsets) * len(view.arrays) for view in views.values())
    assert sum(n for _, _, n in copies) == n_rows
    places = [
        (batch[name].data_ptr(), batch[name].data_ptr() + batch[name].nbytes)
        for batch in batches
        for name in views
    ]
    for start, n_bytes, _ in copies:
        assert any(first <= start and start + n_bytes <= stop for first, stop in places)


def copied_rows(stores, monkeypatch):
    store = store_of(stores, "files")
    with warm(store, all_views(store)) as loader:
        counted = CopiesCounted(monkeypatch)
        check_copies(loader, counted.copies)


def test_rows_are_copied_once_and_into_the_batch_itself(stores, monkeypatch):
    copied_rows(stores, monkeypatch)


def copies_draw_by_draw(monkeypatch):
    copy = RowCopy.copy

    def by_draw(self, regions, rows, out):
        for number in range(len(rows)):
            copy(self, regions, rows[number : number + 1], out[number : number + 1])

    monkeypatch.setattr(RowCopy, "copy", by_draw)


def clones_batches(monkeypatch):
    made = BatchMemory.batch

    def cloned(self, start, stop):
        return {name: tensor.clone() for name, tensor in made(self, start, stop).items()}

    monkeypatch.setattr(BatchMemory, "batch", cloned)


@pytest.mark.parametrize("fault", [copies_draw_by_draw, gathers_twice, clones_batches])
def test_another_copy_of_rows_is_found(stores, fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        copied_rows(stores, monkeypatch)
