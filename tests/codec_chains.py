"""Every codec and filter that Zarr and numcodecs have, in chains as writers make them."""

import lzma
from dataclasses import dataclass, field
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ScaleOffset,
    TransposeCodec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import MemoryStore


@dataclass(frozen=True)
class Chain:
    """How an array of three axes is written, and how it says that it is read."""

    zarr_format: int
    options: dict[str, Any]
    way: str
    """Beginning of what `describe` says."""
    dtype: str = "<i4"
    exact: bool = field(default=True)
    """Whether the values that were written come back."""


def _zarrs(names: str) -> str:
    return f"Zarr's codecs {names}, through scratch"


def _blosc_chains() -> dict[str, Chain]:
    cnames = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    shuffles = {"none": 0, "bytes": 1, "bits": 2, "auto": -1}
    return {
        f"2 blosc {cname}, shuffle {name}": Chain(
            2, {"compressors": numcodecs.Blosc(cname=cname, shuffle=number)}, "blosc, "
        )
        for cname in cnames
        for name, number in shuffles.items()
    } | {
        f"3 blosc {cname} {shuffle}": Chain(
            3, {"compressors": BloscCodec(cname=cname, shuffle=shuffle)}, "blosc, "
        )
        for cname in cnames
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    }


_CHECKSUMS = ("CRC32", "CRC32C", "Adler32", "Fletcher32", "JenkinsLookup3")
_RAW_LZMA = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 1}]}

CHAINS: dict[str, Chain] = {
    **_blosc_chains(),
    # Format 2: compressors.
    "2 none": Chain(2, {"compressors": None}, "uncompressed, "),
    "2 zstd": Chain(2, {"compressors": numcodecs.Zstd()}, "zstd, "),
    "2 zstd checksum": Chain(2, {"compressors": numcodecs.Zstd(checksum=True)}, "zstd, "),
    "2 lz4": Chain(2, {"compressors": numcodecs.LZ4()}, "lz4, "),
    "2 zlib": Chain(2, {"compressors": numcodecs.Zlib()}, "zlib, "),
    "2 gzip": Chain(2, {"compressors": numcodecs.GZip()}, "gzip, "),
    "2 bz2": Chain(2, {"compressors": numcodecs.BZ2()}, "bz2, "),
    "2 lzma": Chain(2, {"compressors": numcodecs.LZMA()}, "lzma, "),
    "2 lzma alone": Chain(
        2, {"compressors": numcodecs.LZMA(format=lzma.FORMAT_ALONE)}, _zarrs("LZMA")
    ),
    "2 lzma raw": Chain(2, {"compressors": numcodecs.LZMA(**_RAW_LZMA)}, _zarrs("LZMA")),
    "2 base64": Chain(2, {"compressors": numcodecs.Base64()}, _zarrs("Base64")),
    "2 shuffle as compressor": Chain(2, {"compressors": numcodecs.Shuffle(4)}, _zarrs("Shuffle")),
    # Format 2: order and byte order.
    "2 F order": Chain(2, {"order": "F", "compressors": None}, "uncompressed (F order), "),
    "2 F order, zstd": Chain(2, {"order": "F"}, "zstd (F order), "),
    "2 big-endian": Chain(2, {}, "zstd (byte-swapped), ", ">i2"),
    "2 big-endian, F order": Chain(2, {"order": "F"}, "zstd (F order, byte-swapped), ", ">f8"),
    "2 F order, delta": Chain(
        2,
        {"order": "F", "filters": [numcodecs.Delta(">i4")]},
        _zarrs("Delta -> Zstd"),
        ">i4",
    ),
    # Format 2: filters.
    "2 delta": Chain(2, {"filters": [numcodecs.Delta("<i4")]}, _zarrs("Delta -> Zstd")),
    "2 delta as i2, no compressor": Chain(
        2,
        {"filters": [numcodecs.Delta("<i4", astype="<i2")], "compressors": None},
        _zarrs("Delta"),
    ),
    "2 fixedscaleoffset": Chain(
        2,
        {
            "filters": [numcodecs.FixedScaleOffset(3, 4, "<f4", "<i2")],
            "compressors": numcodecs.Blosc(),
        },
        _zarrs("FixedScaleOffset -> Blosc"),
        "<f4",
    ),
    "2 quantize": Chain(
        2,
        {"filters": [numcodecs.Quantize(1, "<f8", "<f4")]},
        _zarrs("Quantize -> Zstd"),
        "<f8",
        exact=False,
    ),
    "2 bitround": Chain(
        2, {"filters": [numcodecs.BitRound(5)]}, _zarrs("BitRound -> Zstd"), "<f4", exact=False
    ),
    "2 packbits": Chain(2, {"filters": [numcodecs.PackBits()]}, _zarrs("PackBits -> Zstd"), "|b1"),
    "2 shuffle": Chain(
        2,
        {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.Zlib()},
        _zarrs("Shuffle -> Zlib"),
    ),
    "2 shuffle of bytes": Chain(2, {"filters": [numcodecs.Shuffle(1)]}, _zarrs("Shuffle -> Zstd")),
    "2 astype": Chain(
        2, {"filters": [numcodecs.AsType("<i2", "<i8")]}, _zarrs("AsType -> Zstd"), "<i8"
    ),
    "2 base64 as filter": Chain(2, {"filters": [numcodecs.Base64()]}, _zarrs("Base64 -> Zstd")),
    **{
        f"2 {name.lower()}": Chain(
            2, {"filters": [getattr(numcodecs, name)()]}, _zarrs(f"{name} -> Zstd")
        )
        for name in _CHECKSUMS
    },
    "2 crc32 at the end": Chain(
        2, {"filters": [numcodecs.CRC32("end")], "compressors": None}, _zarrs("CRC32")
    ),
    "2 fletcher32 as compressor": Chain(
        2, {"compressors": numcodecs.Fletcher32()}, _zarrs("Fletcher32")
    ),
    "2 compression as filter": Chain(
        2,
        {"filters": [numcodecs.Delta("<i4"), numcodecs.Blosc()], "compressors": None},
        _zarrs("Delta -> Blosc"),
    ),
    "2 many": Chain(
        2,
        {
            "filters": [
                numcodecs.FixedScaleOffset(0, 1, "<f8", "<i8"),
                numcodecs.Delta("<i8", "<i4"),
                numcodecs.Shuffle(4),
                numcodecs.CRC32(),
            ],
            "compressors": numcodecs.LZ4(),
        },
        _zarrs("FixedScaleOffset -> Delta -> Shuffle -> CRC32 -> LZ4"),
        "<f8",
    ),
    # Format 3: what Zarr has itself.
    "3 none": Chain(3, {"compressors": ()}, "uncompressed, "),
    "3 zstd": Chain(3, {"compressors": ZstdCodec()}, "zstd, "),
    "3 zstd checksum": Chain(3, {"compressors": ZstdCodec(checksum=True)}, "zstd, "),
    "3 gzip": Chain(3, {"compressors": GzipCodec()}, "gzip, "),
    "3 crc32c": Chain(3, {"compressors": Crc32cCodec()}, "crc32c, "),
    "3 zstd, crc32c": Chain(3, {"compressors": (ZstdCodec(), Crc32cCodec())}, "zstd + crc32c, "),
    "3 crc32c, blosc": Chain(3, {"compressors": (Crc32cCodec(), BloscCodec())}, "crc32c + blosc, "),
    "3 crc32c around gzip": Chain(
        3,
        {"compressors": (Crc32cCodec(), Crc32cCodec(), GzipCodec(), Crc32cCodec())},
        "crc32c + crc32c + gzip + crc32c, ",
    ),
    "3 two compressions": Chain(
        3,
        {"compressors": (BloscCodec(), GzipCodec())},
        _zarrs("BytesCodec -> BloscCodec -> GzipCodec"),
    ),
    "3 big-endian": Chain(
        3, {"serializer": BytesCodec(endian="big")}, "zstd (byte-swapped), ", "<f8"
    ),
    "3 bytes": Chain(3, {}, "zstd, ", "|u1"),
    "3 transpose": Chain(
        3, {"filters": TransposeCodec(order=(2, 0, 1))}, "zstd (axes stored as 2, 0, 1), "
    ),
    "3 transpose to F order": Chain(
        3,
        {"filters": TransposeCodec(order=(2, 1, 0)), "compressors": ()},
        "uncompressed (F order), ",
    ),
    "3 transpose to nothing": Chain(3, {"filters": TransposeCodec(order=(0, 1, 2))}, "zstd, "),
    "3 transpose twice": Chain(
        3,
        {"filters": (TransposeCodec(order=(1, 2, 0)), TransposeCodec(order=(0, 2, 1)))},
        "zstd (axes stored as 1, 0, 2), ",
    ),
    "3 transpose, big-endian, crc32c": Chain(
        3,
        {
            "filters": TransposeCodec(order=(1, 2, 0)),
            "serializer": BytesCodec(endian="big"),
            "compressors": (BloscCodec(), Crc32cCodec()),
        },
        "blosc + crc32c (axes stored as 1, 2, 0, byte-swapped), ",
        "<i2",
    ),
    "3 scale_offset": Chain(
        3,
        {"filters": ScaleOffset(offset=-7, scale=3)},
        _zarrs("ScaleOffset -> BytesCodec -> ZstdCodec"),
    ),
    "3 scale_offset of floats": Chain(
        3,
        {"filters": ScaleOffset(offset=2, scale=0.5), "compressors": ()},
        _zarrs("ScaleOffset -> BytesCodec"),
        "<f4",
    ),
    # Format 3: what Zarr takes from numcodecs.
    **{
        f"3 numcodecs {name.lower()}": Chain(
            3, {"compressors": getattr(of_numcodecs, name)()}, f"{name.lower()}, "
        )
        for name in ("Blosc", "LZ4", "Zstd", "Zlib", "GZip", "BZ2", "LZMA")
    },
    **{
        f"3 numcodecs {name.lower()}": Chain(
            3,
            {"compressors": (getattr(of_numcodecs, name)(), ZstdCodec())},
            _zarrs(f"BytesCodec -> {name} -> ZstdCodec"),
        )
        for name in _CHECKSUMS
    },
    "3 numcodecs shuffle": Chain(
        3,
        {"compressors": (of_numcodecs.Shuffle(), of_numcodecs.Zlib())},
        _zarrs("BytesCodec -> Shuffle -> Zlib"),
    ),
    "3 numcodecs lzma alone": Chain(
        3,
        {"compressors": of_numcodecs.LZMA(format=lzma.FORMAT_ALONE)},
        _zarrs("BytesCodec -> LZMA"),
    ),
    "3 numcodecs delta": Chain(
        3,
        {"filters": of_numcodecs.Delta(dtype="<i4", astype="<i2")},
        _zarrs("Delta -> BytesCodec -> ZstdCodec"),
    ),
    "3 numcodecs fixedscaleoffset": Chain(
        3,
        {"filters": of_numcodecs.FixedScaleOffset(offset=3, scale=4, dtype="<f4", astype="<i2")},
        _zarrs("FixedScaleOffset -> BytesCodec -> ZstdCodec"),
        "<f4",
    ),
    "3 numcodecs quantize": Chain(
        3,
        {"filters": of_numcodecs.Quantize(digits=1)},
        _zarrs("Quantize -> BytesCodec -> ZstdCodec"),
        "<f4",
        exact=False,
    ),
    "3 numcodecs bitround": Chain(
        3,
        {"filters": of_numcodecs.BitRound(keepbits=5)},
        _zarrs("BitRound -> BytesCodec -> ZstdCodec"),
        "<f4",
        exact=False,
    ),
    "3 numcodecs packbits": Chain(
        3,
        {"filters": of_numcodecs.PackBits()},
        _zarrs("PackBits -> BytesCodec -> ZstdCodec"),
        "|b1",
    ),
    "3 numcodecs astype": Chain(
        3,
        {"filters": of_numcodecs.AsType(encode_dtype="<i2", decode_dtype="<i8")},
        _zarrs("AsType -> BytesCodec -> ZstdCodec"),
        "<i8",
    ),
    "3 transpose, delta": Chain(
        3,
        {"filters": (TransposeCodec(order=(1, 2, 0)), of_numcodecs.Delta(dtype="<i4"))},
        _zarrs("TransposeCodec -> Delta -> BytesCodec -> ZstdCodec"),
    ),
}
"""By name, which begins with the format."""


def numbers(shape, dtype):
    """Values of which every filter above keeps what it says it keeps."""
    values = np.arange(np.prod(shape)).reshape(shape) * 7 % 1000
    return values % 3 == 0 if np.dtype(dtype).kind == "b" else values.astype(dtype)


def written(chain, shape, chunks, *, name="t", missing=(), shards=None):
    """A store with one array, and what Zarr reads of it.

    Args:
        chain: How to write it.
        shape: Of the array.
        chunks: Of the stored chunks.
        name: Of the array.
        missing: Coordinates of stored chunks that are left out.
        shards: Shape of the shards that the stored chunks lie in.
    """
    store = MemoryStore()
    array = zarr.create_array(
        store,
        name=name,
        shape=shape,
        chunks=chunks,
        dtype=chain.dtype,
        zarr_format=chain.zarr_format,
        shards=shards,
        **chain.options,
    )
    values = numbers(shape, chain.dtype)
    for number in np.ndindex(*(-(-size // step) for size, step in zip(shape, chunks, strict=True))):
        place = tuple(
            slice(n * step, (n + 1) * step) for n, step in zip(number, chunks, strict=True)
        )
        if number in missing:
            values[place] = 0
        else:
            array[place] = values[place]
    stored = zarr.open_array(store, path=name, mode="r")[...]
    assert not chain.exact or np.array_equal(stored, values)
    return store, stored
