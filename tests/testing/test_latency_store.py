"""Reads take as long as asked, all wait at the same time, and everything is counted."""

import asyncio
import statistics
import time

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from torchdata_insitu.testing import LatencyStore, make_store

PROTOTYPE = default_buffer_prototype()
CHUNK_BYTES = 2 * 2 * 4


def late(latency_s=0.0, **options):
    inner = make_store({"t": (12, 2), "u": (4, 2)}, chunks=(2, 2), codec="none")
    return LatencyStore(inner, latency_s, **options)


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_chunks_wait_side_by_side():
    store = late(0.05)
    array = zarr.open_array(store, path="t")
    passed = seconds(lambda: np.testing.assert_array_equal(array[:, 0], 2 * np.arange(12)))
    assert 0.05 <= passed < 6 * 0.05
    assert (store.most_inflight, store.inflight) == (6, 0)
    assert store.gets == {f"t/c/{i}/0": 1 for i in range(6)}
    assert store.bytes == 6 * CHUNK_BYTES


def test_metadata_is_not_delayed_unless_asked():
    assert seconds(lambda: zarr.open_array(late(30.0), path="t")) < 10
    store = late(0.01, match=lambda _: True)
    zarr.open_array(store, path="t")
    assert store.gets["t/zarr.json"]


def test_only_keys_that_match_wait():
    store = late(30.0, match="u/c/0/0")
    zarr.open_array(store, path="t")[...]
    assert not store.gets


def test_bandwidth_is_shared_by_all_reads():
    store = late(bandwidth=CHUNK_BYTES / 0.02)
    array = zarr.open_array(store, path="t")
    assert 6 * 0.02 <= seconds(lambda: array[...]) < 3


def test_log_normal_latencies_depend_on_seed_and_key_only():
    first, second, other = (late((0.03, 0.5), seed=seed) for seed in (1, 1, 2))
    keys = [f"t/c/{i}/0" for i in range(2000)]
    drawn = [first.latency_of(key) for key in keys]
    assert drawn == [second.latency_of(key) for key in reversed(keys)][::-1]
    assert drawn != [other.latency_of(key) for key in keys]
    assert statistics.median(drawn) == pytest.approx(0.03, rel=0.1)
    assert statistics.stdev(np.log(drawn)) == pytest.approx(0.5, rel=0.1)


def test_wait_can_be_cancelled():
    store = late(30.0)

    async def give_up():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.get("t/c/0/0", PROTOTYPE)

    sync(give_up())
    assert (store.inflight, store.most_inflight, store.bytes) == (0, 1, 0)


def test_read_only_copies_share_the_counts():
    store = late()
    zarr.open_array(store, path="t", mode="r")[:2]
    assert store.gets == {"t/c/0/0": 1}


def test_reset_counts_from_zero():
    store = late()
    zarr.open_array(store, path="t")[...]
    store.reset()
    assert (store.gets, store.most_inflight, store.bytes) == ({}, 0, 0)


@pytest.mark.parametrize(
    "options", [{"latency_s": -1}, {"latency_s": (0.1, -1)}, {"latency_s": 0, "bandwidth": 0}]
)
def test_times_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"latency_s is|bandwidth is"):
        late(**options)
