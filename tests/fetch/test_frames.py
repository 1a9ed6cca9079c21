"""Headers state what the encoders were given."""

import contextlib

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each_case import each_case
from torchdata_insitu.fetch.frames import (
    FrameError,
    blosc_stated_size,
    lz4_stated_size,
    zstd_stated_size,
    zstd_total_size,
)

# Around the sizes at which the zstd header takes a longer field.
SIZES = [1, 2, 255, 256, 257, 65_535, 65_791, 65_792, 70_000, 200_000]


@each_case("size", SIZES)
@each_case("checksum", [True, False])
@each_case("level", [-5, 1, 19])
def test_zstd_header_states_the_size(size, checksum, level):
    content = np.arange(size).astype("u1")
    frame = numcodecs.Zstd(level=level, checksum=checksum).encode(content)
    assert zstd_stated_size(memoryview(frame)) == size


@each_case("size", SIZES)
@each_case("cname", ["lz4", "zstd", "zlib"])
def test_blosc_header_states_the_size(size, cname):
    content = np.arange(size).astype("u1")
    frame = numcodecs.Blosc(cname=cname).encode(content)
    assert blosc_stated_size(memoryview(frame)) == size


@each_case("size", SIZES)
def test_lz4_header_states_the_size(size):
    assert lz4_stated_size(memoryview(numcodecs.LZ4().encode(bytes(size)))) == size


@pytest.mark.parametrize("payload", [b"", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x80", b"x" * 40])
def test_what_is_no_zstd_frame_states_nothing(payload):
    assert zstd_stated_size(memoryview(payload)) is None


def test_skippable_zstd_frame_states_nothing():
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    frame = skippable + bytes(numcodecs.Zstd().encode(b"content"))
    assert zstd_stated_size(memoryview(frame)) is None


@pytest.mark.parametrize("cut", [0, 3, 15, 16, -1])
def test_cut_blosc_frame_is_an_error(cut):
    frame = bytes(numcodecs.Blosc().encode(np.arange(1000)))
    with pytest.raises(FrameError):
        blosc_stated_size(memoryview(frame[:cut]))


def test_bytes_behind_a_blosc_frame_are_an_error():
    frame = bytes(numcodecs.Blosc().encode(np.arange(1000)))
    with pytest.raises(FrameError, match=f"states {len(frame)} stored bytes"):
        blosc_stated_size(memoryview(frame + b"x"))


NO_SIZE = b"\x28\xb5\x2f\xfd\x00\x58" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"
SKIPPABLE = b"\x5f\x2a\x4d\x18\x04\x00\x00\x00abcd"


@each_case("checksum", [True, False])
@each_case("sizes", [(1,), (70_000,), (300, 1, 200_000), (0, 5), (131_072, 131_073)])
def test_zstd_frames_state_their_size_together(sizes, checksum):
    zstd = numcodecs.Zstd(checksum=checksum)
    contents = [
        np.random.default_rng(0).bytes(size // 2) + bytes(size - size // 2) for size in sizes
    ]
    frames = [bytes(zstd.encode(content)) for content in contents]
    assert zstd_total_size(memoryview(b"".join(frames))) == sum(sizes)
    assert zstd_total_size(memoryview(SKIPPABLE.join([b"", *frames, b""]))) == sum(sizes)
    assert zstd_total_size(memoryview(NO_SIZE.join([*frames, b""]))) is None
    for cut in {1, len(frames[-1]) // 2}:
        with pytest.raises(FrameError):
            zstd_total_size(memoryview(b"".join(frames)[:-cut]))


@each_case("behind", [b"x", b"\0" * 20, b"\x28\xb5\x2f", SKIPPABLE[:-1]])
@each_case("frame", [NO_SIZE, bytes(numcodecs.Zstd().encode(b"content"))])
def test_what_is_no_zstd_frame_behind_one_is_an_error(frame, behind):
    with pytest.raises(FrameError):
        zstd_total_size(memoryview(frame + behind))


def test_lz4_payload_that_is_longer_than_a_block_is_an_error():
    # Never touched, so that it takes no memory.
    payload = memoryview(np.empty(0x7E000001, np.uint8))
    with pytest.raises(FrameError, match=r"at most 2113929216 bytes, this one 2113929217"):
        lz4_stated_size(payload)


@pytest.mark.parametrize("payload", [b"", b"\x01\x00\x00\x00"])
def test_lz4_payload_without_content_is_an_error(payload):
    with pytest.raises(FrameError):
        lz4_stated_size(memoryview(payload))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(payload):
    view = memoryview(payload)
    zstd_stated_size(view)
    zstd_stated_size(memoryview(b"\x28\xb5\x2f\xfd" + payload))
    for frames in (payload, b"\x28\xb5\x2f\xfd" + payload, NO_SIZE + payload):
        with contextlib.suppress(FrameError):
            assert (zstd_total_size(memoryview(frames)) or 0) >= 0
    for stated_size in (blosc_stated_size, lz4_stated_size):
        with contextlib.suppress(FrameError):
            assert stated_size(view) >= 0
