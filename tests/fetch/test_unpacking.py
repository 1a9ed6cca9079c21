"""Stages are undone to exactly the bytes that are expected, or not at all."""

import contextlib
import tracemalloc
import zlib

import numcodecs
import numpy as np
import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.each_case import each_case
from torchdata_insitu.fetch.codec_chain import CHECKSUM
from torchdata_insitu.fetch.frames import FrameError
from torchdata_insitu.fetch.unpacking import decompress, unpack

ENCODE = {
    "zstd": numcodecs.Zstd().encode,
    "blosc": numcodecs.Blosc(cname="lz4").encode,
    "lz4": numcodecs.LZ4().encode,
    "gzip": numcodecs.GZip().encode,
    "zlib": numcodecs.Zlib().encode,
    "bz2": numcodecs.BZ2().encode,
    "lzma": numcodecs.LZMA().encode,
    CHECKSUM: lambda content: bytes(content) + crc32c(bytes(content)).to_bytes(4, "little"),
}
COMPRESSIONS = [name for name in ENCODE if name != CHECKSUM]
CONTENT = bytes(range(200)) * 5
SIZE = len(CONTENT)
STAGES = [
    (),
    (CHECKSUM,),
    (CHECKSUM, CHECKSUM),
    *((name,) for name in COMPRESSIONS),
    *((name, CHECKSUM) for name in COMPRESSIONS),
    *((CHECKSUM, name) for name in COMPRESSIONS),
    *((CHECKSUM, CHECKSUM, name, CHECKSUM, CHECKSUM) for name in COMPRESSIONS),
]
LIMIT = 2**20

every_chain = each_case("stages", STAGES)
every_compression = pytest.mark.parametrize("name", COMPRESSIONS)
into_target = each_case("with_target", [True, False])


def encoded(stages, content=CONTENT):
    for stage in stages:
        content = bytes(ENCODE[stage](content))
    return content


def unpacked(stages, payload, n_bytes=SIZE, *, with_target=True):
    target = np.full(n_bytes, 0xA5, np.uint8) if with_target else None
    stored = np.frombuffer(payload, np.uint8)
    got = unpack(stages, stored, n_bytes, target, lambda size: np.full(size, 0xA5, np.uint8))
    assert got is target or not with_target
    return got.tobytes()


@every_chain
@into_target
def test_content_comes_back(stages, with_target):
    assert unpacked(stages, encoded(stages), with_target=with_target) == CONTENT


@every_chain
@into_target
@each_case("n_bytes", [1, 3, SIZE - 1, SIZE + 1, 4 * SIZE])
def test_content_of_another_size_is_an_error(stages, with_target, n_bytes):
    with pytest.raises(FrameError, match=r"bytes|Size|size"):
        unpacked(stages, encoded(stages), n_bytes, with_target=with_target)


@every_chain
@into_target
def test_cut_payload_is_an_error(stages, with_target):
    payload = encoded(stages)
    for n_bytes in range(len(payload)):
        with pytest.raises(FrameError):
            unpacked(stages, payload[:n_bytes], with_target=with_target)


@every_chain
@each_case("behind", [b"x", b"garbage", b"\1" * 100])
def test_bytes_behind_the_payload_are_an_error(stages, behind):
    with pytest.raises(FrameError):
        unpacked(stages, encoded(stages) + behind)


@each_case("stages", [chain for chain in STAGES if chain[-1:] == (CHECKSUM,)])
def test_checksum_finds_any_flipped_bit(stages):
    payload = encoded(stages)
    for number in range(len(payload)):
        flipped = bytearray(payload)
        flipped[number] ^= 1 << number % 8
        with pytest.raises(FrameError, match="checksum"):
            unpacked(stages, bytes(flipped))


@every_compression
def test_checksum_inside_finds_other_content(name):
    inside = bytearray(encoded((CHECKSUM,)))
    inside[7] ^= 1
    with pytest.raises(FrameError, match="checksum"):
        unpacked((CHECKSUM, name), encoded((name,), bytes(inside)))


def zstd_without_size(content, *, repeated=0):
    """A frame whose header states no content size: raw blocks, or one byte many times."""
    blocks = [content[start : start + 65_536] for start in range(0, len(content), 65_536)]
    parts = [(len(block) << 3, block) for block in blocks]
    parts += [(65_536 << 3 | 2, b"\0")] * repeated
    parts[-1] = (parts[-1][0] | 1, parts[-1][1])
    body = b"".join(header.to_bytes(3, "little") + block for header, block in parts)
    return b"\x28\xb5\x2f\xfd\x00\x58" + body


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
HALVES = CONTENT[:400], CONTENT[400:]


@into_target
@pytest.mark.parametrize(
    "payload",
    [
        zstd_without_size(CONTENT),
        zstd_without_size(HALVES[0]) + encoded(["zstd"], HALVES[1]),
        encoded(["zstd"], HALVES[0]) + zstd_without_size(HALVES[1]),
        encoded(["zstd"], HALVES[0]) + encoded(["zstd"], HALVES[1]),
        SKIPPABLE + encoded(["zstd"]),
        encoded(["zstd"], HALVES[0]) + SKIPPABLE + encoded(["zstd"], HALVES[1]),
        encoded(["zstd"], b"") + encoded(["zstd"]),
    ],
    ids=["no size", "no size first", "no size last", "two", "skippable first", "between", "empty"],
)
def test_row_of_zstd_frames_decodes_together(payload, with_target):
    assert unpacked(("zstd",), payload, with_target=with_target) == CONTENT
    for n_bytes in (SIZE - 1, SIZE + 1, 2 * SIZE):
        with pytest.raises(FrameError):
            unpacked(("zstd",), payload, n_bytes, with_target=with_target)
    with pytest.raises(FrameError):
        unpacked(("zstd",), payload[:-1], with_target=with_target)


BOMBS = {
    "zstd": zstd_without_size(b"", repeated=2**10),
    "zstd, size stated": encoded(["zstd"], bytes(2**26)),
    "gzip": encoded(["gzip"], bytes(2**22)) * 16,
    "zlib": zlib.compress(bytes(2**26)),
    "bz2": encoded(["bz2"], bytes(2**22)) * 16,
    "lz4": b"\xff\xff\xff\x7f" + encoded(["lz4"])[4:],
    "lz4, negative": b"\xff\xff\xff\xff" + encoded(["lz4"])[4:],
    "blosc": encoded(["blosc"])[:4] + b"\xff\xff\xff\x7f" + encoded(["blosc"])[8:],
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_takes_no_memory(name):
    compression = name.partition(",")[0]
    calls = [lambda: unpacked((compression,), BOMBS[name])]
    if name != "zstd":
        payload = np.frombuffer(BOMBS[name], np.uint8)
        calls.append(lambda: decompress(compression, payload, 10_000))
    tracemalloc.start()
    try:
        for call in calls:
            with pytest.raises(FrameError):
                call()
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


@every_compression
def test_compression_of_unknown_size_is_undone(name):
    payload = np.frombuffer(encoded((name,)), np.uint8)
    assert decompress(name, payload, SIZE).tobytes() == CONTENT
    with pytest.raises(FrameError, match=f"more than {SIZE - 1}"):
        decompress(name, payload, SIZE - 1)
    for n_bytes in range(1, payload.size):
        with pytest.raises(FrameError):
            decompress(name, payload[:n_bytes], SIZE)


def test_what_a_codec_said_is_the_cause():
    payload = bytearray(encoded(["zstd"]))
    payload[-3] ^= 255
    with pytest.raises(FrameError, match="zstd says") as caught:
        unpacked(("zstd",), bytes(payload[:-1]))
    assert "Zstd" in str(caught.value.__cause__)


@every_compression
@given(st.binary(max_size=60))
def test_any_bytes_are_content_or_an_error(name, payload):
    for given_bytes in (payload, encoded((name,))[:20] + payload):
        stored = np.frombuffer(given_bytes, np.uint8)
        with contextlib.suppress(FrameError):
            assert len(unpacked((name,), given_bytes, 100)) == 100
        with contextlib.suppress(FrameError):
            decompress(name, stored, 100)
