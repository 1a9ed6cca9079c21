"""Chunks of uneven sizes, such as calendar months, on any axis."""

import json

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.refusals import refused
from tests.contracts.zarr_oracle import check_batches
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.testing import CountingStore, check_resume

MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
YEAR = sum(MONTHS)
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


class Written:
    """The values that were written: Zarr reads uneven grids only where that is turned on."""

    def __init__(self, values, axis=0):
        self.values = np.moveaxis(values, axis, 0)

    def view(self, names, offsets, anchors, *, stacked, windowed):
        assert len(names) == 1
        assert not stacked
        steps = [self.values[np.array(anchors) + offset] for offset in offsets]
        return np.stack(steps, 1) if windowed else steps[0]


def write(store, values, chunks, **options):
    options = {"name": "t", "compressors": [ZSTD], "fill_value": 0, **options}
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            store, shape=values.shape, chunks=chunks, dtype=values.dtype, **options
        )
        array[...] = values
    return store


def check(store, values, *, axis=0, offsets=(0,), **options):
    t = tdi.open_arrays(store, sample_axis=axis)["t"]
    options = {"batch_size": 5, "block_chunks": 4, "budget_bytes": PLENTY, **options}
    counting = CountingStore(store)
    with tdi.build_loader(counting, {"x": t.window(*offsets)}, **options) as loader:
        planned = loader.expected_reads
        check_batches(loader, Written(values, axis))
        reads = loader.stats().reads["t"]
    assert reads == counting.reads("t/") <= planned
    if offsets == (0,):
        assert reads == planned == t.n_chunks * t.stored_per_chunk
    return t


@pytest.mark.parametrize("compressor", [None, ZSTD])
@pytest.mark.parametrize("shuffle", [True, False])
def test_calendar_months_on_the_sample_axis(compressor, shuffle):
    values = counted((YEAR, 3, 4), "f4", first=1)
    compressors = [compressor] if compressor else None
    store = write(zarr.storage.MemoryStore(), values, [MONTHS, [3], [4]], compressors=compressors)
    t = check(store, values, shuffle=shuffle)
    assert t.sample_chunks.all_edges().tolist() == [0, *np.cumsum(MONTHS)]
    check(store, values, offsets=(-1, 0, 30), shuffle=shuffle)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("place", ["memory", "folder"])
def test_uneven_chunks_on_every_axis(axis, place, tmp_path):
    values = counted((20, 17, 9), "i4", first=1)
    store = zarr.storage.MemoryStore()
    if place == "folder":
        store = zarr.storage.LocalStore(tmp_path / "store.zarr")
    write(store, values, [[1, 7, 7, 5], [10, 7], [2, 3, 4]])
    check(store, values, axis=axis)
    if place == "folder":
        where = str(tmp_path / "store.zarr")
        views = tdi.open_arrays(where, sample_axis=axis)
        with tdi.build_loader(where, views, batch_size=4, budget_bytes=PLENTY) as loader:
            check_batches(loader, Written(values, axis))


def test_a_last_chunk_that_reaches_past_the_array():
    values = counted((60, 6), "f4", first=1)
    store = write(zarr.storage.MemoryStore(), values, [[10, 20, 30], [2, 4]])
    with zarr.config.set({"array.rectilinear_chunks": True}):
        zarr.open_array(store, path="t", mode="r+").resize((45, 5))
    t = check(store, values[:45, :5])
    assert t.sample_chunks.edges == (0, 10, 30, 45)
    assert t.rows_per_chunk == 30


def test_equal_sizes_are_a_step():
    values = counted((50, 5), "f4", first=1)
    store = write(zarr.storage.MemoryStore(), values, [[10, 10, 10, 10, 10], [5]])
    assert check(store, values).sample_chunks.step == 10


def test_months_beside_days():
    months, days = counted((YEAR, 3), "f4", first=1), counted((YEAR, 2), "f4", first=10**5)
    store = write(zarr.storage.MemoryStore(), months, [MONTHS, [3]], name="monthly")
    array = zarr.create_array(store, name="daily", shape=(YEAR, 2), chunks=(1, 2), dtype="f4")
    array[...] = days
    arrays = tdi.open_arrays(store)
    splits = tdi.split_by_chunk(arrays, {"train": 0.7, "val": 0.3})
    found = []
    for split in splits.values():
        options = {"split": split, "batch_size": 4, "budget_bytes": PLENTY}
        with tdi.build_loader(store, arrays, **options) as loader:
            planned = loader.plan.reads()
            for batch in loader:
                anchors = batch["sample_index"].numpy()
                found += anchors.tolist()
                assert np.array_equal(batch["monthly"].numpy(), months[anchors])
                assert np.array_equal(batch["daily"].numpy(), days[anchors])
            assert loader.stats().reads == planned
    assert sorted(found) == list(range(YEAR))


def test_every_position_resumes():
    values = counted((59, 3), "f4", first=1)
    store = write(zarr.storage.MemoryStore(), values, [[31, 28], [3]])
    views = tdi.open_arrays(store)
    check_resume(lambda: tdi.build_loader(store, views, batch_size=8, budget_bytes=PLENTY))


def test_shards_of_uneven_sizes():
    values = counted((60, 6), "f4", first=1)
    codec = zarr.codecs.ShardingCodec(chunk_shape=(10, 3), codecs=[zarr.codecs.BytesCodec()])
    store = write(
        zarr.storage.MemoryStore(),
        values,
        [[10, 30, 20], [6]],
        serializer=codec,
        compressors=None,
    )
    t = tdi.open_arrays(store)["t"]
    assert t.sample_chunks.step == 10
    with tdi.build_loader(store, {"x": t}, batch_size=4, budget_bytes=PLENTY) as loader:
        check_batches(loader, Written(values))
        assert loader.stats().reads == {"t": 12}


@pytest.mark.parametrize(
    "sizes, fact",
    [([31, 28], "do not cover"), ([31, -1, 60], "whole numbers"), ([[31, 2, 1]], "pairs")],
)
def test_grids_that_do_not_fit_are_refused_by_name(sizes, fact):
    values = counted((90, 3), "f4")
    store = write(zarr.storage.MemoryStore(), values, [[31, 28, 31], [3]])
    document = store._store_dict["t/zarr.json"].to_bytes().decode()
    content = json.loads(document)
    content["chunk_grid"]["configuration"]["chunk_shapes"] = [sizes, [3]]
    store._store_dict["t/zarr.json"] = zarr.core.buffer.cpu.Buffer.from_bytes(
        json.dumps(content).encode()
    )
    with refused(GeometryError, "'t'", fact):
        tdi.open_arrays(store)
