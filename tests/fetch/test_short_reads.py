"""Systems that return less than was asked for, as network file systems do."""

import os

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec

from tests.contracts.hot_paths import keep_files_fast
from tests.each_case import each_case
from tests.fetch.loads import Loads, fetching, load, one_array
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch import local_files
from torchdata_insitu.fetch.local_files import fill_from_file, open_file, read_file
from torchdata_insitu.testing import make_store

NOISE = np.random.default_rng(0).integers(0, 255, (24, 60, 20)).astype("u1")
CODECS = {"plain": "none", "zstd": "zstd", "blosc": "blosc", "gzip": "gzip"}


class ShortReads:
    """Returns at most so many bytes from a read."""

    def __init__(self, monkeypatch, most=None):
        self.most = most
        self._readv = os.readv
        monkeypatch.setattr(local_files.os, "readv", self)

    def __call__(self, file, buffers):
        left, given = self.most, []
        for buffer in buffers:
            view = memoryview(buffer)
            given.append(view if left is None else view[:left])
            left = None if left is None else left - len(given[-1])
        return self._readv(file, given)


@pytest.fixture
def reads(monkeypatch):
    keep_files_fast(monkeypatch)
    return ShortReads(monkeypatch)


def grown(buffer, n_bytes):
    larger = np.empty(2 * n_bytes, np.uint8)
    larger[:n_bytes] = buffer[:n_bytes]
    return larger


def content_of(n_bytes):
    return (np.arange(n_bytes) * 7 % 251).astype("u1").tobytes()


def opened(folder, n_bytes):
    (folder / "file").write_bytes(content_of(n_bytes))
    return open_file(str(folder), "file")


@each_case("n_bytes", [0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000])
@each_case("most", [None, 1, 7, 64])
def test_a_file_is_read_whole_whatever_its_size(tmp_path, reads, most, n_bytes):
    """Also of exactly the size of the buffer, or of the buffer as it has grown."""
    reads.most = most
    file = opened(tmp_path, n_bytes)
    try:
        found = read_file(file, np.empty(64, np.uint8), grown)
        assert found.tobytes() == content_of(n_bytes)
    finally:
        os.close(file)


@each_case("n_bytes", [0, 1, 63, 64, 65, 128, 1000])
@each_case("most", [None, 1, 7, 63, 65])
def test_a_target_is_filled_and_the_size_of_the_file_told(tmp_path, reads, most, n_bytes):
    reads.most = most
    file = opened(tmp_path, n_bytes)
    target = np.full(64, 0xA5, np.uint8)
    try:
        assert fill_from_file(file, memoryview(target)) == n_bytes
        content = content_of(n_bytes)[:64]
        assert target.tobytes() == content + b"\xa5" * (64 - len(content))
    finally:
        os.close(file)


def stored(path, codec, chunks=(1, 60, 20)):
    if codec == "crc":
        group = zarr.open_group(path, mode="w")
        array = group.create_array(
            "t", shape=NOISE.shape, chunks=chunks, dtype="u1", compressors=[Crc32cCodec()]
        )
        array[...] = NOISE
        return group.store
    return make_store({"t": NOISE}, chunks=chunks, codec=CODECS[codec], path=path)


@pytest.mark.parametrize("codec", [*CODECS, "crc"])
@pytest.mark.parametrize("most", [100, 1000])
def test_chunks_come_out_right_and_none_is_read_twice(tmp_path, reads, codec, most):
    store = stored(tmp_path / "store", codec)
    array = one_array(store)
    reads.most = most
    for n_threads in (1, 3):
        with fetching(store, array, decode_threads=n_threads) as fetcher:
            loads = Loads(array)
            fetcher.submit(loads.loads)
            np.testing.assert_array_equal(loads.wait().values, NOISE)
            assert fetcher.counts_of(array).n_retries == 0


@pytest.mark.parametrize("codec", ["plain", "zstd", "blosc"])
def test_tiles_that_pass_through_scratch_come_out_right(tmp_path, reads, codec):
    store = stored(tmp_path / "store", codec, chunks=(3, 25, 20))
    reads.most = 100
    np.testing.assert_array_equal(load(store).values, NOISE)


@pytest.mark.parametrize("codec", [*CODECS, "crc"])
@pytest.mark.parametrize("most", [None, 100])
def test_a_damaged_file_is_an_error_and_the_others_are_right(tmp_path, reads, codec, most):
    store = stored(tmp_path / "store", codec)
    path = tmp_path / "store/t/c/5/0/0"
    path.write_bytes(path.read_bytes()[:-20])
    reads.most = most
    loads = load(store, options={"decode_threads": 2})
    assert list(loads.errors) == [5]
    assert isinstance(loads.errors[5], DecodeError)
    assert f"{path.stat().st_size} bytes are stored" in str(loads.errors[5])
    for run, slot in zip(loads.runs, loads.slots, strict=True):
        if run != 5:
            np.testing.assert_array_equal(slot[0], NOISE[run])
