"""Each kind of fault strikes the keys and the times it was meant for, on every way to read."""

import asyncio
import threading

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import _get_loop, sync

from tests.small_loaders import eventually
from torchdata_insitu.testing import CountingStore, FaultStore, make_store

PROTOTYPE = default_buffer_prototype()
KEYS = [f"t/c/{i}/0" for i in range(3)]


def faulty(fault, **options):
    return FaultStore(make_store({"t": (6, 2)}, chunks=(2, 2), codec="none"), fault, **options)


def bytes_of(store, key, byte_range=None):
    buffer = sync(store.get(key, PROTOTYPE, byte_range))
    return None if buffer is None else buffer.to_bytes()


def good(key):
    return bytes_of(faulty("raise", match=()), key)


def keys_of(store, prefix=""):
    async def listed():
        return [key async for key in store.list_prefix(prefix)]

    return sorted(sync(listed()))


def test_missing_keys_are_in_no_answer_and_no_listing():
    store = faulty("missing", match=KEYS[1])
    np.testing.assert_array_equal(zarr.open_array(store, path="t")[:, 0], [0, 2, 0, 0, 8, 10])
    assert not sync(store.exists(KEYS[1]))
    assert keys_of(store, "t/c/") == [KEYS[0], KEYS[2]]
    assert store.faults == {KEYS[1]: 1}


def test_keys_missing_for_a_time_are_listed():
    store = faulty("missing", times=1)
    assert keys_of(store, "t/c/") == KEYS


def test_folders_list_no_missing_key():
    store = faulty("missing", match="t/c/0/0")

    async def names(prefix):
        return [name async for name in store.list_dir(prefix)]

    assert sync(names("t/c/0")) == []
    assert sync(names("t/c/1")) == ["0"]
    store = faulty("missing")
    assert sorted(sync(names(""))) == ["t", "zarr.json"]
    assert sync(names("t/c/1")) == []


@pytest.mark.parametrize(
    "fault, expected",
    [
        ("cut", lambda whole: whole[:8]),
        (bytes.upper, bytes.upper),
        (lambda whole: whole + b"more", lambda whole: whole + b"more"),
    ],
)
def test_bytes_are_changed(fault, expected):
    assert bytes_of(faulty(fault), KEYS[1]) == expected(good(KEYS[1]))


def test_garbage_has_the_size_and_no_byte_of_the_content():
    found, whole = bytes_of(faulty("garbage"), KEYS[1]), good(KEYS[1])
    assert len(found) == len(whole)
    assert all(byte != other for byte, other in zip(found, whole, strict=True))


@pytest.mark.parametrize(
    "fault, kind, text",
    [
        ("raise", ConnectionError, KEYS[0]),
        (TimeoutError, TimeoutError, KEYS[0]),
        (PermissionError("not yours"), PermissionError, "not yours"),
        (lambda: LookupError("made anew"), LookupError, "made anew"),
    ],
)
def test_errors_are_raised(fault, kind, text):
    store = faulty(fault)
    for _ in range(2):
        with pytest.raises(kind, match=text):
            bytes_of(store, KEYS[0])
    assert store.n_faults == 2


@pytest.mark.parametrize("times, n_bad", [(1, 1), (3, 3), (None, 5)])
def test_faults_are_counted_by_key(times, n_bad):
    store = faulty("missing", times=times)
    for key in KEYS:
        found = [bytes_of(store, key) for _ in range(5)]
        assert found == [None] * n_bad + [good(key)] * (5 - n_bad)
    assert store.faults == dict.fromkeys(KEYS, n_bad)
    assert store.n_faults == 3 * n_bad


def test_metadata_is_spared_unless_asked():
    store = faulty("raise")
    zarr.open_array(store, path="t", mode="r")
    assert store.n_faults == 0
    with pytest.raises(ConnectionError):
        zarr.open_array(faulty("raise", match="t/zarr.json"), path="t", mode="r")


def test_every_way_to_read_is_struck():
    store = faulty("raise")
    some = RangeByteRequest(0, 4)

    async def ranges():
        return [group async for group in store.get_ranges(KEYS[0], [some], prototype=PROTOTYPE)]

    async def many():
        return [item async for item in store._get_many([(KEYS[0], PROTOTYPE, None)])]

    for read in (
        lambda: store.get(KEYS[0], PROTOTYPE, some),
        lambda: store.get_partial_values(PROTOTYPE, [(KEYS[0], some)]),
        many,
    ):
        with pytest.raises(ConnectionError):
            sync(read())
    with pytest.raises(BaseExceptionGroup) as caught:
        sync(ranges())
    assert caught.group_contains(ConnectionError)
    with pytest.raises(TypeError, match="await get"):
        store.get_sync(KEYS[0], prototype=PROTOTYPE)


def test_stalled_reads_go_on_when_released_from_another_thread():
    store = faulty("stall")
    array = zarr.open_array(store, path="t")
    values = []
    thread = threading.Thread(target=lambda: values.append(array[:, 0]))
    thread.start()
    eventually(lambda: store.n_stalled == 3)
    store.release()
    thread.join(10)
    np.testing.assert_array_equal(values[0], 2 * np.arange(6))
    assert (store.n_stalled, store.most_stalled, store.n_cancelled) == (0, 3, 0)
    np.testing.assert_array_equal(array[:, 0], 2 * np.arange(6))


def test_stalled_reads_can_be_cancelled():
    store = faulty("stall")
    reading = asyncio.run_coroutine_threadsafe(store.get(KEYS[0], PROTOTYPE), _get_loop())
    eventually(lambda: store.n_stalled == 1)
    reading.cancel()
    eventually(lambda: store.n_cancelled == 1)
    assert store.n_stalled == 0


def test_faults_can_be_laid_over_each_other_and_counted():
    inner = make_store({"t": (6, 2)}, chunks=(2, 2), codec="none")
    counting = CountingStore(FaultStore(FaultStore(inner, "missing", match=KEYS[0]), "raise"))
    with pytest.raises(ConnectionError):
        bytes_of(counting, KEYS[0])
    assert counting.gets == {KEYS[0]: 1}


@pytest.mark.parametrize("options", [{"fault": "explode"}, {"fault": "cut", "times": 0}])
def test_faults_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"explode|times is 0"):
        faulty(**options)
