"""Shards that are files: opened for each stored chunk, and read into its slot where they can be."""

import errno
import os
import threading

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

from tests.fetch.loads import WAIT_S, Loads, fetching, one_array
from tests.fetch.shard_stores import Index, check_at_rest, files_of, sharded, values_of
from tests.small_loaders import eventually
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch import local_shards
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.shard_index import ShardIndexes

SHAPE, CHUNKS, SHARDS = (16, 6), (2, 6), (8, 6)
KEY = "t/c/0/0"
INDEX = Index(4)
QUICK = RetryPolicy(attempts=3, first_delay_s=1e-4)


def folder(path, source):
    for key, content in files_of(source).items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(content)
    return LocalStore(path)


def loaded(fetcher, array, runs=None):
    loads = Loads(array, runs)
    fetcher.submit(loads.loads)
    return loads.wait()


@pytest.fixture(params=["none", "zstd"])
def source(request):
    return sharded(SHAPE, CHUNKS, SHARDS, codec=request.param)


@pytest.fixture
def plain():
    return sharded(SHAPE, CHUNKS, SHARDS, codec="none")


def test_plain_bytes_are_read_into_the_slot(tmp_path, plain, monkeypatch):
    store = folder(tmp_path, plain)
    array = one_array(store)
    decoded = []
    monkeypatch.setattr(ChunkDecoder, "decode", lambda *args: decoded.append(args))
    with fetching(store, array) as fetcher:
        np.testing.assert_array_equal(loaded(fetcher, array).values, values_of(plain))
    assert decoded == []


def test_each_stored_chunk_is_a_request(tmp_path, source):
    store = folder(tmp_path, source)
    array = one_array(store)
    with fetching(store, array) as fetcher:
        np.testing.assert_array_equal(loaded(fetcher, array).values, values_of(source))
        assert fetcher.counts_of(array).n_requests == fetcher.n_reads["t"] == 8
        check_at_rest(store)


def test_several_threads_may_read_one_index_at_the_same_time(tmp_path, source, monkeypatch):
    store = folder(tmp_path, source)
    array = one_array(store)
    meet = threading.Barrier(4)
    read_span = local_shards.read_span

    def together(file, span):
        meet.wait(WAIT_S)
        return read_span(file, span)

    monkeypatch.setattr(local_shards, "read_span", together)
    with fetching(store, array, decode_threads=4) as fetcher:
        np.testing.assert_array_equal(
            loaded(fetcher, array, range(4)).values, values_of(source)[:8]
        )
        stored = sum(size for _, size in INDEX.of((tmp_path / KEY).read_bytes()))
        assert fetcher.bytes_read == 4 * INDEX.n_bytes + stored
        assert fetcher.n_reads == {"t": 4}


def test_an_index_that_is_not_kept_is_read_again(tmp_path, source, monkeypatch):
    """Two shards in turn, and room for the index of one."""
    store = folder(tmp_path, source)
    array = one_array(store)
    keep = ShardIndexes.keep

    def alone(indexes, key, index):
        indexes._most_bytes = 1
        keep(indexes, key, index)

    monkeypatch.setattr(ShardIndexes, "keep", alone)
    values = values_of(source)
    with fetching(store, array, decode_threads=1) as fetcher:
        for runs in ([0, 4, 1, 5], [4, 0]):
            expected = [values[2 * run : 2 * run + 2] for run in runs]
            found = loaded(fetcher, array, runs).values
            np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize("on_missing", ["fill", "raise"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_folder_in_place_of_a_shard_is_missing(tmp_path, source, on_missing, is_known):
    store = folder(tmp_path, source)
    array = one_array(store)
    with fetching(store, array, on_missing=on_missing, retry=QUICK) as fetcher:
        if is_known:
            loaded(fetcher, array, [1])
        (tmp_path / KEY).unlink()
        (tmp_path / KEY).mkdir()
        loads = loaded(fetcher, array, [1, 2])
        if on_missing == "fill":
            assert (loads.values == 0).all()
            assert fetcher.n_missing == {"t": 2}
        else:
            for error in loads.errors.values():
                assert isinstance(error, ReadError)
                assert "attempts" not in str(error)
        assert fetcher.counts_of(array).n_retries == 0
        check_at_rest(store)


@pytest.mark.parametrize("what", ["read_span", "fill_span"])
@pytest.mark.parametrize("times", [1, 10**9])
def test_a_file_system_that_fails_is_asked_again(tmp_path, source, monkeypatch, what, times):
    store = folder(tmp_path, source)
    array = one_array(store)
    left = [times]
    read = getattr(local_shards, what)

    def fails(*args):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "input/output error")
        return read(*args)

    monkeypatch.setattr(local_shards, what, fails)
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, [1])
        counts = fetcher.counts_of(array)
        if times == 1:
            np.testing.assert_array_equal(loads.values, values_of(source)[2:4])
            assert (counts.n_reads, counts.n_found, counts.n_retries) == (1, 1, 1)
        else:
            error = loads.errors[1]
            assert isinstance(error, ReadError)
            for fact in ("after 3 attempts in ", "'t'", repr(KEY), "input/output"):
                assert fact in str(error)
        check_at_rest(store)


def test_what_may_not_be_read_is_asked_for_once(tmp_path, source, monkeypatch):
    store = folder(tmp_path, source)
    array = one_array(store)
    asked = []

    def forbidden(root, key):
        asked.append(key)
        raise PermissionError(errno.EACCES, "not yours", f"{root}/{key}")

    monkeypatch.setattr(local_shards, "open_file", forbidden)
    with fetching(store, array, retry=QUICK) as fetcher:
        error = loaded(fetcher, array, [1]).errors[1]
    assert isinstance(error.__cause__, PermissionError)
    assert asked == [KEY]


def test_a_file_that_gets_shorter_under_its_reader_is_damaged(tmp_path, source, monkeypatch):
    store = folder(tmp_path, source)
    array = one_array(store)
    fill_span = local_shards.fill_span
    monkeypatch.setattr(
        local_shards, "fill_span", lambda file, start, target: fill_span(file, start, target[:-1])
    )
    with fetching(store, array, retry=QUICK) as fetcher:
        error = loaded(fetcher, array, [1]).errors[1]
        assert isinstance(error, DecodeError)
        for fact in ("after 2 attempts in ", "'t'", repr(KEY), "chunk (1, 0)", "the file ends"):
            assert fact in str(error)
        check_at_rest(store)


def test_reads_that_become_slow_bring_no_more_than_was_wanted(tmp_path, monkeypatch):
    """Jobs of one shard wait while files get slow: none of them reads all of it."""
    noise = np.random.default_rng(0).random((64, 500))
    source = sharded((64, 500), (2, 500), (64, 500), dtype="f8", codec="none")
    zarr.open_array(source, path="t")[...] = noise
    store = folder(tmp_path, source)
    array = one_array(store)
    opened, begun = threading.Event(), threading.Event()
    open_file = local_shards.open_file

    def waits(root, key):
        begun.set()
        assert opened.wait(WAIT_S)
        return open_file(root, key)

    monkeypatch.setattr(local_shards, "open_file", waits)
    with fetching(store, array, decode_threads=1) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        assert begun.wait(WAIT_S)
        waits_of_reads = fetcher._engine._reader._waits
        monkeypatch.setattr(waits_of_reads, "_judge", lambda _: None)
        waits_of_reads.is_slow = True
        opened.set()
        np.testing.assert_array_equal(loads.wait().values, noise)
        assert fetcher.n_reads == {"t": 32}
        assert fetcher.bytes_read == noise.nbytes + 32 * Index(32).n_bytes
        check_at_rest(store)


@pytest.mark.parametrize("max_inflight", [1, 2])
def test_no_more_files_are_open_than_are_allowed(tmp_path, source, monkeypatch, max_inflight):
    store = folder(tmp_path, source)
    array = one_array(store)
    lock, opened = threading.Lock(), []
    most = []
    open_file, close = local_shards.open_file, os.close

    def counts(root, key):
        with lock:
            opened.append(open_file(root, key))
            most.append(len(opened))
            return opened[-1]

    def closes(file):
        with lock:
            if file in opened:
                opened.remove(file)
        close(file)

    monkeypatch.setattr(local_shards, "open_file", counts)
    monkeypatch.setattr(local_shards.os, "close", closes)
    with fetching(store, array, max_inflight=max_inflight, decode_threads=4) as fetcher:
        for _ in range(5):
            np.testing.assert_array_equal(loaded(fetcher, array).values, values_of(source))
        eventually(lambda: not opened)
    assert max(most) <= max_inflight
