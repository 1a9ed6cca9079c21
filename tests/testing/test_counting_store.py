"""Every way to read a key counts once."""

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from torchdata_insitu.testing import CountingStore, make_store


def counting():
    return CountingStore(make_store({"t": (6, 2), "group/u": (6, 2)}, chunks=(2, 2)))


def test_chunks_read_by_zarr_are_counted():
    store = counting()
    np.testing.assert_array_equal(zarr.open_array(store, path="t")[1:4, 0], [2, 4, 6])
    assert store.gets["t/zarr.json"] >= 1
    assert (store.gets["t/c/0/0"], store.gets["t/c/1/0"], store.gets["t/c/2/0"]) == (1, 1, 0)


def test_reads_leave_metadata_out_and_keep_to_the_prefix():
    store = counting()
    zarr.open_array(store, path="t")[...]
    zarr.open_array(store, path="group/u")[:2]
    assert (store.reads(), store.reads("t/"), store.reads("group/")) == (4, 3, 1)


def test_partial_and_direct_reads_are_counted():
    store = counting()
    prototype = default_buffer_prototype()
    sync(store.get_partial_values(prototype, [("t/c/0/0", None), ("t/c/1/0", None)]))
    store.get_sync("t/c/0/0", prototype=prototype)
    assert store.gets["t/c/0/0"] == 2
    assert store.gets["t/c/1/0"] == 1


def test_reads_of_many_keys_are_counted():
    store = counting()
    prototype = default_buffer_prototype()

    async def read():
        wanted = [(f"t/c/{run}/0", prototype, None) for run in range(4)]
        return {key: buffer async for key, buffer in store._get_many(wanted)}

    read = sync(read())
    assert read["t/c/3/0"] is None
    assert read["t/c/0/0"] is not None
    assert store.reads("t/") == 4


def test_missing_keys_are_counted():
    store = counting()
    assert sync(store.get("t/c/9/9", default_buffer_prototype())) is None
    assert store.reads("t/") == 1


def test_reset_counts_from_zero():
    store = counting()
    zarr.open_array(store, path="t")[...]
    store.reset()
    assert not store.gets


def test_read_only_copies_count_into_the_same_numbers():
    store = counting()
    zarr.open_array(store, path="t", mode="r")[:2]
    assert store.gets["t/c/0/0"] == 1
