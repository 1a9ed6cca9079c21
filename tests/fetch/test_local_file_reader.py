"""Files are read whole, whatever the system returns at a time, and errors say which."""

import contextlib
import functools
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

from tests.fetch.loads import Loads, fetching, load, one_array
from tests.small_loaders import eventually
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch import local_file_reader, read_waits
from torchdata_insitu.fetch.chunk_fetcher import Cancelled
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.read_waits import ThreadTime
from torchdata_insitu.testing import make_store


def folder(path, codec="none", chunks=(2, 3), shape=(6, 3), **options):
    return make_store({"t": shape}, chunks=chunks, codec=codec, path=path, **options)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("n_pieces", [1, 2, 5])
def test_reads_that_return_less_than_asked_for_are_continued(tmp_path, codec, n_pieces):
    store = folder(tmp_path, codec)
    expected = zarr.open_array(store, path="t")[...]
    path = tmp_path / "t/c/0/0"
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    array = one_array(store)
    with fetching(store, array, decode_threads=1) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        with path.open("wb", buffering=0) as writer:
            # A pipe hands over what is in it, so that each piece is a read of its own at the most.
            for piece in np.array_split(np.frombuffer(content, np.uint8), n_pieces):
                writer.write(piece.tobytes())
        np.testing.assert_array_equal(loads.wait().values, expected)


@pytest.mark.parametrize("codec", ["zstd", "blosc", "none"])
@pytest.mark.parametrize("chunks", [(1, 70_000), (1, 40_000)])
def test_files_larger_than_the_buffer_are_read_whole(tmp_path, codec, chunks):
    noise = np.random.default_rng(0).integers(0, 2**62, (3, 70_000))
    store = make_store({"t": noise}, chunks=chunks, codec=codec, path=tmp_path)
    assert (tmp_path / "t/c/0/0").stat().st_size > 300_000
    np.testing.assert_array_equal(load(store).values, noise)


def test_file_of_exactly_the_size_of_the_buffer_is_read_whole(tmp_path):
    values = np.arange(2 * 65_536, dtype="u1").reshape(2, 65_536)
    store = make_store({"t": values}, chunks=(1, 40_000), codec="none", path=tmp_path)
    (tmp_path / "t/c/0/0").write_bytes(bytes(65_536))
    loads = load(store)
    assert isinstance(loads.errors[0], DecodeError)
    np.testing.assert_array_equal(loads.slots[1][0], values[1])


@pytest.mark.parametrize("chunks", [(2, 3), (2, 2)], ids=["straight", "scratch"])
@pytest.mark.parametrize("change", [-1, 1, 4, 100_000])
def test_plain_file_of_another_size_is_a_decode_error(tmp_path, chunks, change):
    store = folder(tmp_path, chunks=chunks)
    path = tmp_path / "t/c/1/0"
    content = path.read_bytes()
    changed = content[:change] if change < 0 else content + bytes(change)
    path.write_bytes(changed)
    loads = load(store)
    assert list(loads.errors) == [1]
    error = loads.errors[1]
    assert isinstance(error, DecodeError)
    assert f"{len(changed)} bytes are stored, {len(content)} decoded bytes expected" in str(error)
    assert "'t/c/1/0'" in str(error)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_is_in_the_way_of_a_file_is_missing_as_it_is_to_zarr(tmp_path, codec):
    store = folder(tmp_path, codec)
    for run in "12":
        (tmp_path / f"t/c/{run}/0").unlink()
    (tmp_path / "t/c/1/0").mkdir()
    (tmp_path / "t/c/2").rmdir()
    (tmp_path / "t/c/2").touch()
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        np.testing.assert_array_equal(loads.wait().values, zarr.open_array(store, path="t")[...])
        assert fetcher.n_missing == {"t": 2}


def test_what_is_in_the_way_of_a_file_is_an_error_where_nothing_may_be_missing(tmp_path):
    store = folder(tmp_path)
    path = tmp_path / "t/c/1/0"
    path.unlink()
    path.mkdir()
    error = load(store, options={"on_missing": "raise"}).errors[1]
    assert isinstance(error, ReadError)
    for fact in ("'t'", "'t/c/1/0'", "(1, 0)"):
        assert fact in str(error)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read anything")
def test_forbidden_file_is_a_read_error(tmp_path):
    store = folder(tmp_path)
    (tmp_path / "t/c/1/0").chmod(0)
    error = load(store).errors[1]
    assert isinstance(error.__cause__, PermissionError)


def test_folder_given_by_a_relative_path_is_found(tmp_path, monkeypatch):
    folder(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    store = LocalStore("store")
    np.testing.assert_array_equal(load(store).values, zarr.open_array(store, path="t")[...])


def test_read_past_a_damaged_chunk_leaves_no_bytes_of_it_behind(tmp_path):
    """One thread reads a long chunk and then a short one into the same buffer."""
    noise = np.random.default_rng(0).integers(0, 255, (2, 9000)).astype("u1")
    store = make_store({"t": noise}, chunks=(1, 9000), path=tmp_path)
    (tmp_path / "t/c/1/0").write_bytes((tmp_path / "t/c/1/0").read_bytes()[:-2000])
    array = one_array(store)
    with fetching(store, array, decode_threads=1) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert isinstance(loads.errors[1], DecodeError)
    np.testing.assert_array_equal(loads.slots[0][0], noise[0])


def test_threads_have_buffers_of_their_own(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (40, 3000)).astype("u1")
    store = make_store({"t": noise}, chunks=(1, 2000), path=tmp_path)
    array = one_array(store)
    with fetching(store, array, decode_threads=4) as fetcher:
        loads = Loads(array)
        halves = [
            threading.Thread(target=fetcher.submit, args=(loads.loads[i::2],)) for i in (0, 1)
        ]
        for half in halves:
            half.start()
        for half in halves:
            half.join()
        np.testing.assert_array_equal(loads.wait().values, noise)


class SlowClock:
    """The time of a thread whose every measured read waits two milliseconds at first."""

    def __init__(self):
        self.waited_s = 0.0
        self.wait_s = 0.002

    def __call__(self):
        self.waited_s += self.wait_s
        return ThreadTime(self.waited_s, int(self.waited_s * 1e6))


@pytest.fixture
def make_slow(monkeypatch):
    """Lets the readers that are made from now on see slow files, by the clock it returns."""

    def make():
        clock = SlowClock()
        waits = functools.partial(read_waits.ReadWaits, clock)
        monkeypatch.setattr(local_file_reader, "ReadWaits", waits)
        return clock

    return make


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc"])
def test_slow_files_are_read_on_threads_of_their_own(tmp_path, codec, make_slow):
    noise = np.random.default_rng(0).integers(0, 255, (200, 300)).astype("u1")
    store = make_store({"t": noise}, chunks=(1, 200), codec=codec, path=tmp_path)
    array = one_array(store)
    make_slow()
    with fetching(store, array, max_inflight=5, decode_threads=2) as fetcher:
        assert fetcher.describe(array).startswith("local files; ")
        for _ in range(2):
            loads = Loads(array)
            fetcher.submit(loads.loads)
            np.testing.assert_array_equal(loads.wait().values, noise)
        assert fetcher.describe(array).startswith(
            "local files that answer slowly, on up to 5 reader threads; "
        )
        assert fetcher.n_reads == {"t": 2 * 2 * 200}
        assert limiter_of(store).n_inflight == limiter_of(store).n_bytes == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_files_may_answer_fast_and_slowly_in_turns(tmp_path, codec, make_slow):
    noise = np.random.default_rng(0).integers(0, 255, (100, 300)).astype("u1")
    store = make_store({"t": noise}, chunks=(1, 100), codec=codec, path=tmp_path)
    array = one_array(store)
    clock = make_slow()
    seen = set()
    with fetching(store, array, max_inflight=3, decode_threads=2) as fetcher:
        for turn in range(8):
            clock.wait_s = 0.002 if turn % 2 == 0 else 0.0
            # No turn waits for the one before: reads are under way on both kinds of thread.
            turns = [Loads(array) for _ in range(2)]
            for loads in turns:
                fetcher.submit(loads.loads)
            seen.add("slowly" in fetcher.describe(array))
            for loads in turns:
                np.testing.assert_array_equal(loads.wait().values, noise)
            seen.add("slowly" in fetcher.describe(array))
        assert fetcher.n_reads == {"t": 8 * 2 * 300}
        assert seen == {False, True}
        assert limiter_of(store).n_inflight == limiter_of(store).n_bytes == 0


def test_slow_files_may_be_missing_damaged_or_larger_than_they_were(tmp_path, make_slow):
    noise = np.random.default_rng(0).integers(0, 255, (100, 300)).astype("u1")
    store = make_store({"t": noise}, chunks=(1, 300), path=tmp_path)
    array = one_array(store)
    make_slow()
    with fetching(store, array) as fetcher:
        for _ in range(2):
            first = Loads(array)
            fetcher.submit(first.loads)
            first.wait()
        assert "slowly" in fetcher.describe(array)
        (tmp_path / "t/c/1/0").unlink()
        (tmp_path / "t/c/2/0").write_bytes(b"garbage")
        (tmp_path / "t/c/3/0").unlink()
        (tmp_path / "t/c/3/0").mkdir()
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
        assert fetcher.n_missing == {"t": 2}
    assert (loads.slots[1] == 0).all()
    assert isinstance(loads.errors[2], DecodeError)
    assert (loads.slots[3] == 0).all()
    assert sorted(loads.errors) == [2]


def read_whole(files, name):
    return files(SimpleNamespace(key=name, span=None))


def test_memory_for_files_is_used_again_and_small_files_leave_that_of_large_ones(tmp_path):
    (tmp_path / "small").write_bytes(b"s" * 100)
    (tmp_path / "large").write_bytes(b"l" * 10_000)
    files = local_file_reader._WholeFiles(str(tmp_path), read_waits.ReadWaits())
    first = [read_whole(files, name) for name in ("small", "large", "small")]
    memory = {id(payload.base) for payload in first}
    for payload in reversed(first):
        files.give_back(payload)
    for _ in range(5):
        again = [read_whole(files, name) for name in ("small", "small", "large")]
        assert [bytes(payload[:1]) for payload in again] == [b"s", b"s", b"l"]
        assert {id(payload.base) for payload in again} == memory
        for payload in again:
            files.give_back(payload)


def test_spare_memory_for_files_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(local_file_reader, "MOST_BYTES", 1000)
    (tmp_path / "small").write_bytes(b"s" * 99)
    (tmp_path / "large").write_bytes(b"l" * 499)
    (tmp_path / "huge").write_bytes(b"h" * 4999)
    files = local_file_reader._WholeFiles(str(tmp_path), read_waits.ReadWaits())
    for payload in [read_whole(files, name) for name in 5 * ["small"] + 5 * ["large"]]:
        files.give_back(payload)
        assert sum(buffer.size for buffer in files._spare) == files._spare_bytes <= 1000
    # The cheapest to make again went first; one that is read alone is kept alone.
    assert [buffer.size for buffer in files._spare] == [500, 500]
    files.give_back(read_whole(files, "huge"))
    assert [buffer.size for buffer in files._spare] == [5000]
    files.forget()
    assert (files._spare, files._spare_bytes) == ([], 0)


def feed_waiting(pipes):
    """Write into the pipes that have a reader, and forget those."""
    for path, content in list(pipes.items()):
        with contextlib.suppress(OSError):
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, content)
            os.close(pipe)
            del pipes[path]


@pytest.mark.parametrize("max_inflight", [1, 2, 3])
def test_decode_threads_read_no_more_files_at_a_time_than_allowed(tmp_path, max_inflight):
    """Files are pipes, whose readers wait for a writer."""
    store = folder(tmp_path, shape=(12, 3), codec="none")
    expected = zarr.open_array(store, path="t")[...]
    paths = [tmp_path / f"t/c/{run}/0" for run in range(6)]
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
        os.mkfifo(path)
    array = one_array(store)
    with fetching(store, array, max_inflight=max_inflight, decode_threads=3) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        limiter = limiter_of(store)
        eventually(lambda: limiter.n_inflight == max_inflight)
        if max_inflight < 3:
            eventually(lambda: fetcher._engine._reader._parked)
        left = dict(zip(paths, contents, strict=True))
        # In the order in which their readers come, which is any.
        eventually(lambda: not (feed_waiting(left) or left))
        np.testing.assert_array_equal(loads.wait().values, expected)
        eventually(lambda: limiter.n_inflight == 0)


def test_parked_jobs_end_at_once_when_they_are_cancelled(tmp_path):
    store = folder(tmp_path, shape=(12, 3), codec="none")
    path = tmp_path / "t/c/0/0"
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    array = one_array(store)
    with fetching(store, array, max_inflight=1, decode_threads=2) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        # The thread that has another file may be the first to ask; then that one is read before.
        parked = fetcher._engine._reader._parked
        eventually(lambda: len(parked) + len(loads.ends) == 5)
        read_before = set(loads.ends)
        fetcher.cancel()
        assert sorted(loads.ends) == [1, 2, 3, 4, 5]
        later = Loads(array, [1, 2])
        fetcher.submit(later.loads)
        with path.open("wb") as writer:
            writer.write(content)
        assert not later.wait().errors
        loads.wait()
    cancelled = [error for run, error in loads.ends.items() if run not in read_before]
    assert {type(error) for error in cancelled} == {Cancelled}


def test_two_fetchers_of_one_folder_share_its_limit(tmp_path):
    store = folder(tmp_path, shape=(40, 3))
    array = one_array(store)
    with (
        fetching(store, array, max_inflight=1, decode_threads=2) as one,
        fetching(store, array, max_inflight=1, decode_threads=2) as other,
    ):
        for _ in range(20):
            loads = [Loads(array), Loads(array)]
            one.submit(loads[0].loads)
            other.submit(loads[1].loads)
            for each in loads:
                assert not each.wait().errors
        eventually(lambda: limiter_of(store).n_inflight == 0)
