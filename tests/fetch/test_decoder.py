"""Every chain decodes to what Zarr reads, and never to what was in the slot before."""

import gzip
import zlib

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from tests.each_case import each_case
from tests.fake_stores import with_bytes
from tests.fetch.loads import load, one_array, stale_slot
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.requests import RequestTable
from torchdata_insitu.testing import make_store

# Uneven last chunks on every axis, whatever the sample axis.
SHAPE, CHUNKS = (7, 5, 4), (3, 2, 3)

pytestmark = pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")


def numbers(dtype):
    values = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    if np.dtype(dtype).kind == "b":
        return values % 3 == 0
    if np.dtype(dtype).kind == "c":
        return (values - 1j * values[::-1]).astype(dtype)
    return values.astype(dtype)


def store_of(values, chunks=CHUNKS, **options):
    store = MemoryStore()
    zarr.create_array(store, name="t", data=values, chunks=chunks, **options)
    return store


def assert_equal_to_zarr(store, sample_axis):
    expected = np.moveaxis(zarr.open_array(store, path="t")[...], sample_axis, 0)
    got = load(store, sample_axis=sample_axis).values
    assert got.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, expected)


V2 = {
    "none": {"compressors": None},
    "zstd": {"compressors": numcodecs.Zstd()},
    "zstd checksum": {"compressors": numcodecs.Zstd(checksum=True)},
    "blosc lz4 bitshuffle": {"compressors": numcodecs.Blosc(cname="lz4", shuffle=2)},
    "blosc zstd": {"compressors": numcodecs.Blosc(cname="zstd", shuffle=0)},
    "lz4": {"compressors": numcodecs.LZ4()},
    "zlib": {"compressors": numcodecs.Zlib()},
    "gzip": {"compressors": numcodecs.GZip()},
    "bz2": {"compressors": numcodecs.BZ2()},
    "lzma": {"compressors": numcodecs.LZMA()},
    "F order": {"order": "F", "compressors": numcodecs.Zstd()},
    "F order, none": {"order": "F", "compressors": None},
    "F order, filter": {
        "order": "F",
        "filters": [numcodecs.Delta("<f4")],
        "compressors": numcodecs.Zstd(),
    },
    "Delta": {"filters": [numcodecs.Delta("<f4")], "compressors": numcodecs.Blosc()},
    "FixedScaleOffset": {
        "filters": [numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="<f4", astype="<i4")]
    },
    "Quantize": {"filters": [numcodecs.Quantize(digits=1, dtype="<f4")]},
    "Shuffle": {"filters": [numcodecs.Shuffle(elementsize=4)]},
}
V3 = {
    "none": {"compressors": ()},
    "zstd": {"compressors": ZstdCodec()},
    "zstd checksum": {"compressors": ZstdCodec(checksum=True)},
    "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "crc32c": {"compressors": zarr.codecs.Crc32cCodec()},
    "zstd, crc32c": {"compressors": (ZstdCodec(), zarr.codecs.Crc32cCodec())},
    "crc32c, zstd": {"compressors": (zarr.codecs.Crc32cCodec(), ZstdCodec())},
    "two compressions": {"compressors": (zarr.codecs.GzipCodec(), ZstdCodec())},
    "transpose": {"filters": TransposeCodec(order=(2, 0, 1)), "compressors": ZstdCodec()},
    "transpose, blosc": {
        "filters": TransposeCodec(order=(1, 2, 0)),
        "compressors": zarr.codecs.BloscCodec(),
    },
    "big endian": {"serializer": BytesCodec(endian="big"), "compressors": ZstdCodec()},
    "big endian, none": {"serializer": BytesCodec(endian="big"), "compressors": ()},
    "numcodecs lz4": {"compressors": zarr_numcodecs.LZ4()},
    "numcodecs zlib": {"compressors": zarr_numcodecs.Zlib()},
    "numcodecs delta": {"filters": zarr_numcodecs.Delta(dtype="<f4")},
}
EVERY_CHAIN = [
    (zarr_format, options)
    for zarr_format, chains in ((2, V2), (3, V3))
    for options in chains.values()
]


@each_case("zarr_format, options", EVERY_CHAIN)
@pytest.mark.parametrize("sample_axis", [0, 1, 2])
def test_every_chain_decodes_to_what_zarr_reads(zarr_format, options, sample_axis):
    store = store_of(numbers("<f4"), zarr_format=zarr_format, **options)
    assert_equal_to_zarr(store, sample_axis)


@each_case("zarr_format, options", EVERY_CHAIN)
@pytest.mark.parametrize("chunks", [(3, 5, 4), (1, 5, 4), (9, 8, 6)])
def test_every_chain_decodes_whole_fields(zarr_format, options, chunks):
    store = store_of(numbers("<f4"), chunks, zarr_format=zarr_format, **options)
    assert_equal_to_zarr(store, sample_axis=0)


@each_case(
    "dtype", ["?", "u1", "i1", "<u2", "<i2", "<u4", "<u8", "<i8", "<f2", "<f8", "<c8", "<c16"]
)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [CHUNKS, (3, 5, 4)])
def test_every_dtype_decodes_to_what_zarr_reads(zarr_format, dtype, chunks):
    store = store_of(numbers(dtype), chunks, zarr_format=zarr_format)
    assert_equal_to_zarr(store, sample_axis=0)


@each_case("dtype", [">f4", ">i2", ">c8", ">f8", ">u4"])
@each_case("options", [{}, {"compressors": None}, {"order": "F"}])
def test_big_endian_arrays_become_native(dtype, options):
    store = store_of(numbers(dtype), zarr_format=2, **options)
    assert_equal_to_zarr(store, sample_axis=1)


def test_packed_bits_decode():
    store = store_of(numbers("?"), zarr_format=2, filters=[numcodecs.PackBits()])
    assert_equal_to_zarr(store, sample_axis=0)


@pytest.mark.parametrize("compressors", [ZstdCodec(), ()])
def test_sample_axis_behind_axes_of_length_one_needs_no_scratch(compressors):
    values = np.arange(1 * 1 * 6 * 4, dtype="f4").reshape(1, 1, 6, 4)
    store = store_of(values, (1, 1, 4, 4), compressors=compressors)
    assert_equal_to_zarr(store, sample_axis=2)
    assert "straight" in ChunkDecoder(one_array(store, sample_axis=2)).path


@pytest.mark.parametrize(
    "options, chunks, path",
    [
        ({"compressors": ZstdCodec()}, (3, 5, 4), "zstd, straight into the slot"),
        ({"compressors": ()}, (3, 5, 4), "uncompressed, straight into the slot"),
        ({"compressors": ZstdCodec()}, (3, 5, 2), "zstd, through scratch"),
        ({"compressors": ZstdCodec()}, (3, 5, 9), "zstd, through scratch"),
        (
            {"compressors": (ZstdCodec(), zarr.codecs.Crc32cCodec())},
            (3, 5, 4),
            "zstd + crc32c, straight into the slot",
        ),
        (
            {"filters": TransposeCodec(order=(2, 1, 0)), "compressors": ZstdCodec()},
            (3, 5, 4),
            "zstd (F order), through scratch",
        ),
    ],
)
def test_path_says_how_chunks_are_decoded(options, chunks, path):
    store = store_of(numbers("f4"), chunks, **options)
    assert ChunkDecoder(one_array(store)).path == path


# Sizes and damage: one array of two chunks whose whole field is one stored chunk.
FIELD = np.arange(6 * 8, dtype="<i4").reshape(6, 8)
STORED = (3, 8)
EXPECTED_BYTES = 3 * 8 * 4


def encoders():
    return {
        "zstd": numcodecs.Zstd().encode,
        "blosc": numcodecs.Blosc(cname="lz4").encode,
        "lz4": numcodecs.LZ4().encode,
        "gzip": numcodecs.GZip().encode,
        "zlib": numcodecs.Zlib().encode,
        "none": bytes,
    }


COMPRESSORS = {
    "zstd": numcodecs.Zstd(),
    "blosc": numcodecs.Blosc(cname="lz4"),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(),
    "zlib": numcodecs.Zlib(),
    "none": None,
}
# Two chunks of 3 x 8; with tiles, of 3 x 4 twice.
LAYOUTS = pytest.mark.parametrize("chunks", [(3, 8), (3, 4)], ids=["straight", "scratch"])


def damaged(codec, change, chunks):
    """A v2 store whose first stored chunk holds other bytes."""
    store = store_of(FIELD, chunks, zarr_format=2, compressors=COMPRESSORS[codec])
    payload = sync(store.get("t/0.0", default_buffer_prototype())).to_bytes()
    return with_bytes(store, {"t/0.0": change(payload)}), payload


def first_error(store):
    loads = load(store)
    assert list(loads.errors) == [0], loads.errors
    np.testing.assert_array_equal(loads.slots[1], FIELD[3:])
    return loads.errors[0]


DAMAGE = {
    "half": lambda b: b[: len(b) // 2],
    "one byte less": lambda b: b[:-1],
    "empty": lambda _: b"",
    "three bytes": lambda b: b[:3],
    "a web page": lambda _: b"<html>please log in</html>",
}


@LAYOUTS
@each_case("codec", COMPRESSORS)
@each_case("damage", DAMAGE)
def test_damaged_chunk_is_a_decode_error_that_says_where(codec, chunks, damage):
    store, payload = damaged(codec, DAMAGE[damage], chunks)
    error = first_error(store)
    assert isinstance(error, DecodeError)
    text = str(error)
    for fact in ("'t'", "'t/0.0'", "(0, 0)", f"{len(DAMAGE[damage](payload))} bytes are stored"):
        assert fact in text


@LAYOUTS
@each_case("codec", COMPRESSORS)
@each_case("n_rows", [1, 2, 4, 7])
def test_chunk_of_another_decoded_size_is_a_decode_error(codec, chunks, n_rows):
    columns = chunks[1]
    values = np.full((n_rows, columns), 9, "<i4")
    store, _ = damaged(codec, lambda _: encoders()[codec](values), chunks)
    error = first_error(store)
    assert isinstance(error, DecodeError)
    assert f"{values.nbytes} bytes instead of {3 * columns * 4}" in str(error)


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_short_chunk_never_shows_what_was_in_the_slot(codec):
    short, _ = damaged(codec, lambda _: encoders()[codec](np.zeros((2, 8), "<i4")), STORED)
    array = one_array(short)
    slot = stale_slot(array)
    payload = sync(short.get("t/0.0", default_buffer_prototype())).to_bytes()
    with pytest.raises(DecodeError):
        ChunkDecoder(array).decode(payload, RequestTable(array).requests(0)[0], slot)


def zstd_frames(*pieces, with_size=True):
    """Concatenated zstd frames, of which the first may leave its size out."""
    frames = [bytes(numcodecs.Zstd().encode(piece)) for piece in pieces]
    if not with_size:
        frames[0] = zstd_frame_without_size(pieces[0])
    return b"".join(frames)


def zstd_frame_without_size(values):
    """One raw block in a frame whose header states no content size (RFC 8878, 3.1.1)."""
    content = bytes(values)
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([0b0000_0000, 0x58]) + block + content


@LAYOUTS
@pytest.mark.parametrize("with_size", [True, False])
def test_concatenated_zstd_frames_decode_together(chunks, with_size):
    want = FIELD[:3, : chunks[1]]
    flat = np.ascontiguousarray(want).reshape(-1)
    store, _ = damaged(
        "zstd", lambda _: zstd_frames(flat[:5], flat[5:], with_size=with_size), chunks
    )
    np.testing.assert_array_equal(load(store).values, FIELD)


@LAYOUTS
@each_case("with_size", [True, False])
@each_case("more", [1, 24, 1000])
def test_zstd_frame_behind_a_whole_chunk_is_a_decode_error(chunks, with_size, more):
    flat = np.ascontiguousarray(FIELD[:3, : chunks[1]]).reshape(-1)
    extra = np.ones(more, "<i4")
    store, _ = damaged("zstd", lambda _: zstd_frames(flat, extra, with_size=with_size), chunks)
    assert isinstance(first_error(store), DecodeError)


@LAYOUTS
def test_frame_without_a_size_behind_a_whole_chunk_is_a_decode_error(chunks):
    flat = np.ascontiguousarray(FIELD[:3, : chunks[1]]).reshape(-1)
    extra = zstd_frame_without_size(np.ones(5, "<i4"))
    store, _ = damaged("zstd", lambda _: zstd_frames(flat) + extra, chunks)
    assert isinstance(first_error(store), DecodeError)


@LAYOUTS
def test_zstd_frame_without_a_size_decodes(chunks):
    flat = np.ascontiguousarray(FIELD[:3, : chunks[1]]).reshape(-1)
    store, _ = damaged("zstd", lambda _: zstd_frame_without_size(flat), chunks)
    np.testing.assert_array_equal(load(store).values, FIELD)


@LAYOUTS
def test_concatenated_gzip_members_decode_together(chunks):
    content = np.ascontiguousarray(FIELD[:3, : chunks[1]]).tobytes()
    store, _ = damaged(
        "gzip", lambda _: gzip.compress(content[:20]) + gzip.compress(content[20:]), chunks
    )
    np.testing.assert_array_equal(load(store).values, FIELD)


def test_zlib_of_another_level_decodes():
    content = np.ascontiguousarray(FIELD[:3]).tobytes()
    store, _ = damaged("zlib", lambda _: zlib.compress(content, 9), STORED)
    np.testing.assert_array_equal(load(store).values, FIELD)


@LAYOUTS
def test_blosc_payload_shorter_than_its_header_states_is_not_read_past_its_end(chunks):
    """numcodecs decodes such a payload from the memory behind it."""
    store, _ = damaged("blosc", lambda b: b[:-3], chunks)
    assert "header states" in str(first_error(store))


def test_cut_blosc_chunk_behind_filters_is_a_decode_error():
    store = store_of(
        FIELD,
        STORED,
        zarr_format=2,
        filters=[numcodecs.Delta("<i4")],
        compressors=numcodecs.Blosc(),
    )
    payload = sync(store.get("t/0.0", default_buffer_prototype())).to_bytes()
    error = first_error(with_bytes(store, {"t/0.0": payload[:-5]}))
    assert isinstance(error, DecodeError)
    assert "header states" in str(error)


def test_wrong_size_behind_codecs_of_zarr_is_a_decode_error():
    codecs = (GzipCodec(), ZstdCodec())
    store = store_of(FIELD, STORED, compressors=codecs)
    short = bytes(numcodecs.Zstd().encode(gzip.compress(bytes(2 * 8 * 4))))
    error = first_error(with_bytes(store, {"t/c/0/0": short}))
    assert isinstance(error, DecodeError)
    assert "'t/c/0/0'" in str(error)


@pytest.mark.parametrize("compressors", [(), (ZstdCodec(),)])
@pytest.mark.parametrize("flip", [0, -1])
def test_checksum_finds_one_flipped_bit(compressors, flip):
    codecs = (*compressors, zarr.codecs.Crc32cCodec())
    store = store_of(FIELD, STORED, compressors=codecs)
    payload = bytearray(sync(store.get("t/c/0/0", default_buffer_prototype())).to_bytes())
    payload[flip] ^= 1
    error = first_error(with_bytes(store, {"t/c/0/0": bytes(payload)}))
    assert "checksum" in str(error)


@LAYOUTS
@pytest.mark.parametrize("codec", ["zstd", "blosc", "none"])
@pytest.mark.parametrize("decode_cf", [True, False])
def test_masks_are_applied_as_xarray_does(codec, chunks, decode_cf):
    xr = pytest.importorskip("xarray")
    values = FIELD.astype("f4")
    values[1, 3] = values[5, 7] = -9
    store = make_store(
        {"t": values},
        chunks=chunks,
        codec=codec,
        dims=("time", "x"),
        attributes={"t": {"missing_value": -9.0}},
    )
    expected = xr.open_zarr(store, consolidated=False, decode_cf=decode_cf)["t"].values
    got = load(store, decode_cf=decode_cf).values
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@LAYOUTS
@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_packed_integers_become_numbers_as_in_xarray(codec, chunks):
    xr = pytest.importorskip("xarray")
    store = make_store(
        {"t": FIELD.astype("i2")},
        chunks=chunks,
        codec=codec,
        dims=("time", "x"),
        attributes={"t": {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": 7}},
    )
    expected = xr.open_zarr(store, consolidated=False)["t"].values
    got = load(store).values
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("options", [{}, {"filters": [numcodecs.Delta(">i2")]}, {"order": "F"}])
def test_packed_big_endian_integers_become_numbers_as_in_xarray(options):
    xr = pytest.importorskip("xarray")
    store = store_of(
        FIELD.astype(">i2"),
        (3, 4),
        zarr_format=2,
        fill_value=7,
        attributes={"_ARRAY_DIMENSIONS": ["time", "x"], "scale_factor": 0.5},
        **options,
    )
    expected = xr.open_zarr(store, consolidated=False)["t"].values
    got = load(store).values
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("fill_value", [0, -9, np.nan, np.inf])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunks_hold_the_fill_value(zarr_format, fill_value):
    store = MemoryStore()
    array = zarr.create_array(
        store,
        name="t",
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="f4",
        zarr_format=zarr_format,
        fill_value=fill_value,
    )
    array[3:6, 0:2] = 5
    assert_equal_to_zarr(store, sample_axis=1)


def test_v2_array_without_fill_value_gets_zeros_as_from_zarr():
    store = MemoryStore()
    zarr.create_array(
        store, name="t", shape=(4, 2), chunks=(2, 2), dtype="i4", zarr_format=2, fill_value=None
    )
    assert_equal_to_zarr(store, sample_axis=0)


def test_missing_chunk_of_a_masked_array_is_nan():
    store = MemoryStore()
    zarr.create_array(
        store,
        name="t",
        shape=(4, 2),
        chunks=(2, 2),
        dtype="f4",
        fill_value=-9,
        attributes={"_FillValue": -9.0},
        dimension_names=("time", "x"),
    )
    assert np.isnan(load(store).values).all()


def test_error_names_sizes_and_keeps_what_the_codec_said():
    store, payload = damaged("zstd", lambda b: b[:-1], STORED)
    error = first_error(store)
    assert f"{EXPECTED_BYTES} decoded bytes expected" in str(error)
    assert f"{len(payload) - 1} bytes are stored" in str(error)
    assert "Zstd" in str(error.__cause__)


def lying(codec, values, stated_bytes):
    """An encoded chunk whose header states another decoded size than its content has."""
    payload = bytearray(encoders()[codec](values))
    if codec == "lz4":
        payload[:4] = stated_bytes.to_bytes(4, "little")
    elif codec == "blosc":
        payload[4:8] = stated_bytes.to_bytes(4, "little")
    else:
        # One segment and a size of 1 byte: what the encoder writes for less than 256 bytes.
        assert payload[4] >> 5 == 1
        payload[5] = stated_bytes
    return bytes(payload)


@LAYOUTS
@each_case("codec", ["zstd", "blosc", "lz4"])
@each_case("n_rows", [1, 2, 4])
def test_header_that_lies_about_the_size_is_a_decode_error(codec, chunks, n_rows):
    values = np.arange(n_rows * chunks[1], dtype="<i4")
    expected = 3 * chunks[1] * 4
    store, _ = damaged(codec, lambda _: lying(codec, values, expected), chunks)
    assert isinstance(first_error(store), DecodeError)
