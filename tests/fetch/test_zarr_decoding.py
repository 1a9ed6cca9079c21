"""Chains that are not known are decoded by Zarr, also where a codec runs on its loop only."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import zarr
from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import parse_named_configuration
from zarr.core.sync import sync
from zarr.registry import register_codec
from zarr.storage import MemoryStore

from tests.fake_stores import with_bytes
from tests.fetch.loads import load, one_array
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.zarr_decoding import ZarrDecoding


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


@dataclass(frozen=True)
class InvertsAtOnce(Inverts):
    """The same on the calling thread."""

    def to_dict(self):
        return {"name": "tests_inverts_at_once"}

    @classmethod
    def from_dict(cls, _data):
        return cls()

    def _decode_sync(self, chunk_bytes, chunk_spec):
        assert threading.current_thread().name.startswith(("insitu-", "MainThread"))
        return chunk_spec.prototype.buffer.from_array_like(~chunk_bytes.as_numpy_array())

    def _encode_sync(self, chunk_bytes, chunk_spec):
        return chunk_spec.prototype.buffer.from_array_like(~chunk_bytes.as_numpy_array())


@dataclass(frozen=True)
class Reshapes(ArrayArrayCodec):
    """Gives back a chunk of another shape or dtype than was written."""

    what: str
    is_fixed_size = True

    @classmethod
    def from_dict(cls, data):
        return cls(data["configuration"]["what"])

    def to_dict(self):
        return {"name": "tests_reshapes", "configuration": {"what": self.what}}

    def _decode_sync(self, chunk_array, chunk_spec):
        values = chunk_array.as_numpy_array()
        changed = {
            "flat": lambda: values.reshape(-1),
            "turned": lambda: values.reshape(values.shape[::-1]),
            "one row": lambda: values[:1],
            "float": lambda: values.view("f4"),
            "short": lambda: values.astype("i2"),
            "swapped": lambda: values.astype(">i4"),
        }
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(changed[self.what]())

    def _encode_sync(self, chunk_array, _chunk_spec):
        return chunk_array

    async def _decode_single(self, chunk_array, chunk_spec):
        return self._decode_sync(chunk_array, chunk_spec)

    async def _encode_single(self, chunk_array, _chunk_spec):
        return chunk_array

    def compute_encoded_size(self, input_byte_length, _chunk_spec):
        return input_byte_length


class FasterGzip(GzipCodec):
    """A replacement of a known codec: what it does is not known."""


@pytest.fixture(autouse=True, scope="module")
def registered():
    register_codec("tests_inverts", Inverts)
    register_codec("tests_inverts_at_once", InvertsAtOnce)
    register_codec("tests_reshapes", Reshapes)


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


@pytest.mark.parametrize("chunks", [(2, 3), (2, 2)])
@pytest.mark.parametrize("compressors", [(InvertsAtOnce(),), (ZstdCodec(), InvertsAtOnce())])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_codec_of_a_user_runs_where_it_is_called(chunks, compressors):
    values = np.arange(15, dtype="i4").reshape(5, 3)
    store = MemoryStore()
    zarr.create_array(store, name="t", data=values, chunks=chunks, compressors=compressors)
    path = ChunkDecoder(one_array(store)).path
    assert path.endswith("-> InvertsAtOnce, through scratch")
    np.testing.assert_array_equal(load(store).values, values)


@pytest.mark.parametrize("what", ["flat", "turned", "one row", "float", "short"])
def test_codec_that_gives_another_chunk_is_an_error(what):
    store = MemoryStore()
    values = np.arange(24, dtype="i4").reshape(6, 4)
    zarr.create_array(store, name="t", data=values, chunks=(3, 4), filters=Reshapes(what))
    errors = load(store).errors
    assert sorted(errors) == [0, 1]
    assert all(isinstance(error, DecodeError) for error in errors.values())
    assert "Reshapes -> BytesCodec -> ZstdCodec say" in str(errors[0])
    assert "it decodes to" in str(errors[0])


def test_codec_may_give_either_byte_order():
    store = MemoryStore()
    values = np.arange(24, dtype="i4").reshape(6, 4)
    zarr.create_array(store, name="t", data=values, chunks=(3, 4), filters=Reshapes("swapped"))
    np.testing.assert_array_equal(load(store).values, values)


@pytest.mark.parametrize("in_shards", [False, True])
def test_codecs_may_be_those_of_the_chunks_in_a_shard(in_shards):
    values = np.arange(24, dtype="i4").reshape(6, 4)
    codecs = (BytesCodec(), GzipCodec(), ZstdCodec())
    store = MemoryStore()
    chunk = zarr.create_array(
        store, name="chunk", data=values, chunks=(6, 4), compressors=(GzipCodec(), ZstdCodec())
    )
    payload = sync(store.get("chunk/c/0/0", default_buffer_prototype())).as_numpy_array()
    if in_shards:
        metadata = zarr.create_array(
            MemoryStore(),
            shape=(12, 4),
            chunks=(12, 4),
            dtype="i4",
            serializer=ShardingCodec(chunk_shape=(6, 4), codecs=codecs),
            compressors=(),
        ).metadata
        decoding = ZarrDecoding(metadata, (6, 4), codecs)
    else:
        decoding = ZarrDecoding(chunk.metadata, (6, 4))
    assert str(decoding) == "Zarr's codecs BytesCodec -> GzipCodec -> ZstdCodec"
    np.testing.assert_array_equal(decoding.decode(payload, (6, 4)), values, strict=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pipeline_that_somebody_plugged_in_is_not_asked():
    values = np.arange(12, dtype="i4").reshape(4, 3)
    store = MemoryStore()
    codecs = (GzipCodec(), ZstdCodec())
    zarr.create_array(store, name="t", data=values, chunks=(2, 3), compressors=codecs)
    with zarr.config.set({"codec_pipeline.path": "nowhere.Pipeline"}):
        np.testing.assert_array_equal(load(store).values, values)
