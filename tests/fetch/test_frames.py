"""Headers state what the encoders were given."""

import contextlib

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_insitu.fetch.frames import (
    FrameError,
    blosc_stated_size,
    lz4_stated_size,
    zstd_stated_size,
)

# Around the sizes at which the zstd header takes a longer field.
SIZES = [1, 2, 255, 256, 257, 65_535, 65_791, 65_792, 70_000, 200_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("level", [-5, 1, 19])
def test_zstd_header_states_the_size(size, checksum, level):
    content = np.arange(size).astype("u1")
    frame = numcodecs.Zstd(level=level, checksum=checksum).encode(content)
    assert zstd_stated_size(memoryview(frame)) == size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cname", ["lz4", "zstd", "zlib"])
def test_blosc_header_states_the_size(size, cname):
    content = np.arange(size).astype("u1")
    frame = numcodecs.Blosc(cname=cname).encode(content)
    assert blosc_stated_size(memoryview(frame)) == size


@pytest.mark.parametrize("size", SIZES)
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


@pytest.mark.parametrize("payload", [b"", b"\x01\x00\x00\x00"])
def test_lz4_payload_without_content_is_an_error(payload):
    with pytest.raises(FrameError):
        lz4_stated_size(memoryview(payload))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(payload):
    view = memoryview(payload)
    zstd_stated_size(view)
    zstd_stated_size(memoryview(b"\x28\xb5\x2f\xfd" + payload))
    for stated_size in (blosc_stated_size, lz4_stated_size):
        with contextlib.suppress(FrameError):
            assert stated_size(view) >= 0
