"""Compressions in chains that Zarr decodes check sizes first, as those decoded here do."""

import tracemalloc
import zlib

import numcodecs
import numpy as np
import pytest
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.codecs._v2 import V2Codec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.codec_chains import CHAINS, Chain, written
from tests.each_case import each_case
from tests.fake_stores import with_bytes
from tests.fetch.loads import load
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.bounded_codecs import bounded, codec_names

SHAPE, CHUNKS = (6, 4, 5), (3, 4, 5)
SIZE = 3 * 4 * 5 * 4

pytestmark = pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")


def first_error(chain, payload):
    """What the first chunk of an array raises that holds these bytes."""
    store, stored = written(chain, SHAPE, CHUNKS)
    key = "t/0.0.0" if chain.zarr_format == 2 else "t/c/0/0/0"
    loads = load(with_bytes(store, {key: payload}))
    assert list(loads.errors) == [0]
    np.testing.assert_array_equal(loads.slots[1], stored[3:])
    return loads.errors[0]


def filtered(codec, **options):
    """Of format 2, with a filter that makes it Zarr's."""
    return Chain(2, {"filters": [numcodecs.Shuffle(4)], "compressors": codec, **options}, "Zarr's")


def twice(inner, outer):
    return Chain(3, {"compressors": (inner, outer)}, "Zarr's")


HUGE = {
    "lz4": (filtered(numcodecs.LZ4()), b"\xff\xff\xff\x7f" + bytes(40)),
    "blosc": (
        filtered(numcodecs.Blosc()),
        (b := bytes(numcodecs.Blosc().encode(bytes(SIZE))))[:4] + b"\xff\xff\xff\x7f" + b[8:],
    ),
    "zstd": (filtered(numcodecs.Zstd()), bytes(numcodecs.Zstd().encode(bytes(2**26)))),
    "zlib": (filtered(numcodecs.Zlib()), zlib.compress(bytes(2**26))),
    "gzip": (filtered(numcodecs.GZip()), bytes(numcodecs.GZip().encode(bytes(2**22))) * 16),
    "bz2": (filtered(numcodecs.BZ2()), bytes(numcodecs.BZ2().encode(bytes(2**22))) * 16),
    "as filter": (
        Chain(2, {"filters": [numcodecs.Zlib(), numcodecs.CRC32()], "compressors": None}, "Zarr's"),
        bytes(numcodecs.CRC32().encode(zlib.compress(bytes(2**26)))),
    ),
    "format 3, outer": (
        twice(ZstdCodec(), of_numcodecs.Zlib()),
        zlib.compress(bytes(numcodecs.Zstd().encode(bytes(SIZE))) + bytes(2**26)),
    ),
    "format 3, inner": (
        twice(of_numcodecs.Zlib(), ZstdCodec()),
        bytes(numcodecs.Zstd().encode(zlib.compress(bytes(2**26)))),
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_chunk_that_would_decode_to_gigabytes_takes_no_memory(name):
    chain, payload = HUGE[name]
    tracemalloc.start()
    try:
        assert isinstance(first_error(chain, payload), DecodeError)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


CUT_BLOSC = bytes(numcodecs.Blosc().encode(np.arange(60, dtype="<i4")))[:-3]


@pytest.mark.parametrize(
    "chain, payload",
    [
        (filtered(numcodecs.Blosc()), CUT_BLOSC),
        (
            Chain(2, {"filters": [numcodecs.Blosc()], "compressors": numcodecs.Zlib()}, "Zarr's"),
            zlib.compress(CUT_BLOSC),
        ),
        (twice(BloscCodec(), GzipCodec()), bytes(numcodecs.GZip().encode(CUT_BLOSC))),
        (twice(of_numcodecs.Blosc(), of_numcodecs.Zlib()), zlib.compress(CUT_BLOSC)),
    ],
    ids=["outermost", "as filter", "format 3", "of numcodecs"],
)
def test_cut_blosc_frame_is_not_read_past_its_end_wherever_it_stands(chain, payload):
    assert "header states" in str(first_error(chain, payload))


def test_names_are_those_of_the_metadata():
    filters = (numcodecs.Delta("<i4"), numcodecs.Zlib())
    assert codec_names((V2Codec(filters=filters, compressor=None),)) == "Delta -> Zlib"
    assert codec_names((BytesCodec(), Crc32cCodec())) == "BytesCodec -> Crc32cCodec"


def test_codecs_that_are_not_known_stay_as_they_are():
    codecs = (BytesCodec(), type("Own", (GzipCodec,), {})(), Crc32cCodec())
    assert bounded(codecs, 100) == codecs


@each_case("name", [name for name in CHAINS if CHAINS[name].way[:4] == "Zarr"])
def test_payloads_are_not_changed(name):
    """They lie in memory of a store, or in memory that a thread uses again."""
    store, stored = written(CHAINS[name], SHAPE, CHUNKS)
    key = "t/0.0.0" if CHAINS[name].zarr_format == 2 else "t/c/0/0/0"
    before = sync(store.get(key, default_buffer_prototype())).to_bytes()
    for _ in range(2):
        np.testing.assert_array_equal(load(store).values, stored)
    assert sync(store.get(key, default_buffer_prototype())).to_bytes() == before
