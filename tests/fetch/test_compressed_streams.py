"""Streams decode to all of their content, whole, and never to more than is asked for."""

import bz2
import contextlib
import gzip
import lzma
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each_case import each_case
from torchdata_insitu.fetch.compressed_streams import STREAMS, decompressed_pieces
from torchdata_insitu.fetch.frames import FrameError

COMPRESS = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "lzma": lzma.compress,
}
REPEATABLE = ["gzip", "bz2", "lzma"]
CONTENT = bytes(range(250)) * 400
KINDS = (FrameError, zlib.error, OSError, lzma.LZMAError, EOFError)

every_format = pytest.mark.parametrize("name", COMPRESS)


def decompressed(name, payload, most=10**6):
    return b"".join(decompressed_pieces(name, np.frombuffer(payload, np.uint8), most))


def test_every_format_is_tested():
    assert set(COMPRESS) == STREAMS


@every_format
@each_case("size", [0, 1, 65_535, 65_536, 65_537, 100_000])
def test_content_comes_back(name, size):
    content = CONTENT[:size]
    assert decompressed(name, COMPRESS[name](content), most=size) == content


@every_format
def test_cut_stream_is_an_error(name):
    payload = COMPRESS[name](CONTENT)
    for n_bytes in {*range(1, 40), *range(40, len(payload), 37), len(payload) - 1}:
        with pytest.raises((FrameError, EOFError)):
            decompressed(name, payload[:n_bytes])


@every_format
def test_no_bytes_have_no_content(name):
    assert decompressed(name, b"") == b""


@every_format
@each_case("most", [0, 1, 99, len(CONTENT) - 1])
def test_longer_content_is_an_error(name, most):
    with pytest.raises(FrameError, match=f"more than {most} bytes"):
        decompressed(name, COMPRESS[name](CONTENT), most)


@pytest.mark.parametrize("name", REPEATABLE)
@pytest.mark.parametrize("n_streams", [2, 3, 1100])
def test_streams_behind_each_other_are_one_content(name, n_streams):
    size = -(-len(CONTENT) // n_streams)
    parts = [CONTENT[size * n : size * (n + 1)] for n in range(n_streams)]
    payload = b"".join(map(COMPRESS[name], parts))
    assert decompressed(name, payload, len(CONTENT)) == CONTENT
    with pytest.raises(FrameError, match="more than"):
        decompressed(name, payload, len(CONTENT) - 1)
    with pytest.raises((FrameError, EOFError)):
        decompressed(name, payload[:-1])


@pytest.mark.parametrize("name", REPEATABLE)
def test_second_stream_that_is_longer_than_what_is_looked_at_at_once(name):
    noise = np.random.default_rng(0).bytes(300_000)
    payload = COMPRESS[name](b"first") + COMPRESS[name](noise) + COMPRESS[name](b"last")
    assert decompressed(name, payload) == b"first" + noise + b"last"


@pytest.mark.parametrize("name", ["gzip", "lzma"])
@pytest.mark.parametrize("n_nulls", [4, 512, 200_000])
def test_padding_may_follow_a_stream(name, n_nulls):
    padded = COMPRESS[name](b"first") + bytes(n_nulls)
    assert decompressed(name, padded) == b"first"
    assert decompressed(name, padded + COMPRESS[name](b"last")) == b"firstlast"


@each_case(
    "name, behind",
    [
        *((name, b"garbage") for name in COMPRESS),
        *((name, bytes(8) + b"x") for name in COMPRESS),
        ("zlib", bytes(8)),
        ("bz2", bytes(8)),
        ("zlib", zlib.compress(b"another")),
    ],
)
def test_what_follows_a_stream_and_is_none_is_an_error(name, behind):
    with pytest.raises(KINDS):
        decompressed(name, COMPRESS[name](CONTENT) + behind)


@every_format
def test_bomb_takes_no_memory(name):
    n_bytes = 32 * 2**20
    part = bytes(n_bytes if name == "zlib" else 2**20)
    payload = COMPRESS[name](part) * (n_bytes // len(part))
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="more than 1000 bytes"):
            decompressed(name, payload, 1000)
        # xz takes the window that its header asks for, 8 MiB here.
        assert tracemalloc.get_traced_memory()[1] < n_bytes / 2
    finally:
        tracemalloc.stop()


@every_format
@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_an_error(name, payload):
    for given_bytes in (payload, COMPRESS[name](b"content") + payload):
        with contextlib.suppress(*KINDS):
            assert len(decompressed(name, given_bytes, 100)) <= 100
