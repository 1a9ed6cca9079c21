"""Files are read whole or in part, whatever the system returns at a time."""

import os

import numpy as np
import pytest

from tests.each_case import each_case
from torchdata_insitu.fetch import local_files
from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.local_files import fill_span, open_file, read_span

CONTENT = bytes(range(100))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    file = open_file(str(tmp_path), "file")
    yield file
    os.close(file)


@pytest.fixture(params=[1, 7, None])
def at_a_time(request, monkeypatch):
    """The most bytes that the system returns at a time."""
    most, preadv = request.param, os.preadv

    def short(file, buffers, offset):
        return preadv(file, [memoryview(buffers[0])[:most]], offset)

    monkeypatch.setattr(local_files.os, "preadv", short)


@each_case(
    "span",
    [
        ByteSpan(0, 100),
        ByteSpan(10, 30),
        ByteSpan(99, 100),
        ByteSpan(50, 50),
        ByteSpan.last(30),
        ByteSpan.last(100),
        ByteSpan.last(130),  # as a slice it begins at the beginning, too
        ByteSpan(90, 130),
        ByteSpan(100, 130),
        ByteSpan(1000, 1030),
        ByteSpan(40, 2**62),
    ],
)
@pytest.mark.usefixtures("at_a_time")
def test_a_span_is_read_as_far_as_the_file_goes(file, span):
    found = read_span(file, span)
    assert found.tobytes() == CONTENT[span.start : span.stop or None]
    # A damaged index may state any size.
    assert found.base is None or found.base.size <= len(CONTENT)


@pytest.mark.usefixtures("at_a_time")
@pytest.mark.parametrize("start, size, n_bytes", [(0, 100, 100), (5, 20, 20), (90, 20, 10)])
def test_a_buffer_is_filled_from_a_place_on(file, start, size, n_bytes):
    target = np.full(size, 0xA5, np.uint8)
    assert fill_span(file, start, memoryview(target)) == n_bytes
    assert target.tobytes() == CONTENT[start : start + n_bytes] + b"\xa5" * (size - n_bytes)


def test_an_empty_file_has_nothing_in_any_span(tmp_path):
    (tmp_path / "empty").touch()
    file = open_file(str(tmp_path), "empty")
    try:
        for span in (ByteSpan.last(10), ByteSpan(0, 10), ByteSpan(10, 20)):
            assert read_span(file, span).size == 0
    finally:
        os.close(file)


def test_a_part_of_a_folder_is_an_error(tmp_path):
    file = open_file(str(tmp_path), ".")
    try:
        with pytest.raises(IsADirectoryError):
            read_span(file, ByteSpan(0, 10))
    finally:
        os.close(file)


@pytest.mark.parametrize("key", ["none", "none/below", "file/below"])
def test_there_is_no_file_where_zarr_finds_none(tmp_path, key):
    (tmp_path / "file").touch()
    assert open_file(str(tmp_path), key) is None
