"""Chains that are not known are decoded by Zarr, also where a codec runs on its loop only."""

from dataclasses import dataclass

import numpy as np
import pytest
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.core.common import parse_named_configuration
from zarr.registry import register_codec
from zarr.storage import MemoryStore

from tests.fake_stores import with_bytes
from tests.fetch.loads import load, one_array
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.decoder import ChunkDecoder


@dataclass(frozen=True)
class Inverts(BytesBytesCodec):
    """Inverts every bit, and can do so on an event loop only."""

    is_fixed_size = True

    @classmethod
    def from_dict(cls, data):
        parse_named_configuration(data, "tests_inverts", require_configuration=False)
        return cls()

    def to_dict(self):
        return {"name": "tests_inverts"}

    async def _decode_single(self, chunk_bytes, chunk_spec):
        return chunk_spec.prototype.buffer.from_array_like(~chunk_bytes.as_numpy_array())

    async def _encode_single(self, chunk_bytes, chunk_spec):
        return chunk_spec.prototype.buffer.from_array_like(~chunk_bytes.as_numpy_array())

    def compute_encoded_size(self, input_byte_length, _chunk_spec):
        return input_byte_length


class FasterGzip(GzipCodec):
    """A replacement of a known codec: what it does is not known."""


@pytest.fixture(autouse=True, scope="module")
def registered():
    register_codec("tests_inverts", Inverts)


@pytest.mark.parametrize("chunks", [(2, 3), (2, 2)])
@pytest.mark.parametrize("compressors", [(Inverts(),), (ZstdCodec(), Inverts())])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_codec_of_the_loop_decodes(chunks, compressors):
    values = np.arange(15, dtype="i4").reshape(5, 3)
    store = MemoryStore()
    zarr.create_array(store, name="t", data=values, chunks=chunks, compressors=compressors)
    assert ChunkDecoder(one_array(store)).path.endswith("on Zarr's loop, through scratch")
    np.testing.assert_array_equal(load(store).values, values)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_failure_of_a_codec_of_the_loop_is_a_decode_error():
    store = MemoryStore()
    zarr.create_array(
        store,
        name="t",
        data=np.arange(12, dtype="i4").reshape(4, 3),
        chunks=(2, 3),
        compressors=(ZstdCodec(), Inverts()),
    )
    loads = load(with_bytes(store, {"t/c/1/0": b"garbage"}))
    assert list(loads.errors) == [1]
    assert isinstance(loads.errors[1], DecodeError)


def test_replaced_codec_is_not_taken_for_the_one_it_replaces(monkeypatch):
    store = MemoryStore()
    values = np.arange(12, dtype="i4").reshape(4, 3)
    zarr.create_array(store, name="t", data=values, chunks=(2, 3), compressors=GzipCodec())
    register_codec("gzip", FasterGzip, qualname="tests.FasterGzip")
    with zarr.config.set({"codecs.gzip": "tests.FasterGzip"}):
        array = one_array(store)
        assert "FasterGzip" in ChunkDecoder(array).path
        np.testing.assert_array_equal(load(store).values, values)
