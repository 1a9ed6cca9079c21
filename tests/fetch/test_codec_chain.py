"""A chain is known for certain, or it is Zarr's."""

import lzma

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import MemoryStore

from tests.codec_chains import CHAINS
from tests.each_case import each_case
from torchdata_insitu.fetch.codec_chain import CodecChain, known_chain, known_compression

SHAPE, CHUNKS = (6, 4, 5), (3, 2, 5)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec"),
    pytest.mark.filterwarnings("ignore:.*not have a Zarr V3 spec"),
]


def metadata_of(zarr_format, dtype="<i4", **options):
    return zarr.create_array(
        MemoryStore(), shape=SHAPE, chunks=CHUNKS, dtype=dtype, zarr_format=zarr_format, **options
    ).metadata


@each_case("name", CHAINS)
def test_chain_is_known_or_it_is_zarrs(name):
    chain = CHAINS[name]
    known = known_chain(metadata_of(chain.zarr_format, chain.dtype, **chain.options))
    assert (known is None) == chain.way.startswith("Zarr's codecs")
    if known is not None:
        assert chain.way == f"{known}, "


FIELDS = [("u", "<f4"), ("flag", "u1")]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["<M8[s]", "<m8[ns]", FIELDS])
def test_times_and_fields_are_bytes_like_numbers(zarr_format, dtype):
    known = known_chain(metadata_of(zarr_format, dtype))
    assert known is not None
    assert known.dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["U4", "S4"])
def test_text_is_zarrs(dtype):
    assert known_chain(metadata_of(2, dtype)) is None


def subclass(kind):
    return type("Other", (kind,), {})


@each_case(
    "kind",
    [
        *(numcodecs.Zstd, numcodecs.Blosc, numcodecs.LZ4, numcodecs.GZip),
        *(numcodecs.Zlib, numcodecs.BZ2, numcodecs.LZMA, ZstdCodec, BloscCodec, GzipCodec),
        *(of_numcodecs.Zstd, of_numcodecs.Zlib, of_numcodecs.LZMA),
    ],
)
def test_subclass_may_decode_otherwise(kind):
    assert known_compression(kind()) is not None
    assert known_compression(subclass(kind)()) is None


@pytest.mark.parametrize(
    "codecs",
    [
        (subclass(BytesCodec)(), ZstdCodec()),
        (BytesCodec(), subclass(Crc32cCodec)()),
        (subclass(TransposeCodec)(order=(2, 1, 0)), BytesCodec()),
        (BytesCodec(), ZstdCodec(), GzipCodec()),
    ],
)
def test_subclass_anywhere_makes_it_zarrs(codecs):
    assert known_chain(metadata_of(3), codecs) is None


@pytest.mark.parametrize("name", ["zlib", "zstd", "blosc"])
def test_what_a_user_registered_with_numcodecs_is_not_known(name, monkeypatch):
    by_name = numcodecs.registry.codec_registry
    own = subclass(by_name[name])
    codec = getattr(of_numcodecs, {"zlib": "Zlib", "zstd": "Zstd", "blosc": "Blosc"}[name])
    assert known_compression(codec()) == name
    monkeypatch.setitem(by_name, name, own)
    assert known_compression(codec()) is None


@pytest.mark.parametrize(
    "settings, name",
    [
        ({}, "lzma"),
        ({"preset": 9, "check": lzma.CHECK_SHA256}, "lzma"),
        ({"format": lzma.FORMAT_ALONE}, None),
        ({"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2}]}, None),
        ({"filters": [{"id": lzma.FILTER_LZMA2}]}, None),
    ],
)
def test_only_xz_of_lzma_is_known(settings, name):
    assert known_compression(numcodecs.LZMA(**settings)) == name
    assert known_compression(of_numcodecs.LZMA(**settings)) == name


def test_codecs_may_be_those_of_the_chunks_in_a_shard():
    inner = (TransposeCodec(order=(1, 0, 2)), BytesCodec(endian="big"), GzipCodec(), Crc32cCodec())
    metadata = metadata_of(3, shards=(6, 4, 5))
    assert known_chain(metadata) is None
    known = known_chain(metadata, inner)
    assert known == CodecChain(("gzip", "crc32c"), np.dtype(">i4"), (1, 0, 2))


@each_case("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0), (1, 0, 2)])
@each_case("dtype", ["<i4", ">i2", "<c8"])
def test_bytes_become_the_array_that_they_were_made_of(axes, dtype):
    values = np.arange(60, dtype=dtype).reshape(3, 4, 5)
    content = np.frombuffer(np.ascontiguousarray(values.transpose(axes)).tobytes(), np.uint8)
    chain = CodecChain((), np.dtype(dtype), None if axes == (0, 1, 2) else axes)
    got = chain.array(content, values.shape)
    np.testing.assert_array_equal(got, values, strict=True)
    assert np.shares_memory(got, content)
    assert chain.as_in_memory == (axes == (0, 1, 2) and np.dtype(dtype).isnative)


@pytest.mark.parametrize("shape", [(7,), (7, 3), (2, 3, 4, 5)])
def test_f_order_is_that_of_numpy(shape):
    values = np.arange(np.prod(shape), dtype="<i4").reshape(shape)
    chain = known_chain(
        zarr.create_array(
            MemoryStore(), shape=shape, chunks=shape, dtype="<i4", zarr_format=2, order="F"
        ).metadata
    )
    content = np.frombuffer(values.tobytes(order="F"), np.uint8)
    np.testing.assert_array_equal(chain.array(content, shape), values)
    assert chain.as_in_memory == (len(shape) == 1)
