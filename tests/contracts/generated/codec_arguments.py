"""Codecs and filters of a case, as Zarr takes them."""

import math
from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np
from zarr import codecs as v3
from zarr.codecs import numcodecs as v3_numcodecs

from tests.contracts.generated.cases import Case

type Codecs = Callable[[np.dtype], list[Any]]

_SCALED = {"scale": 2, "offset": 3}
_BLOSC = [
    (f"blosc {cname} {shuffle}", cname, shuffle)
    for cname in ("lz4", "zstd")
    for shuffle in ("noshuffle", "shuffle", "bitshuffle")
]

_FILTERS_2: dict[str, Codecs] = {
    "none": lambda _: [],
    "delta": lambda dtype: [numcodecs.Delta(dtype=dtype.str)],
    "shuffle": lambda dtype: [numcodecs.Shuffle(elementsize=dtype.itemsize)],
    "delta shuffle": lambda dtype: [
        numcodecs.Delta(dtype=dtype.str),
        numcodecs.Shuffle(elementsize=dtype.itemsize),
    ],
    "fixedscaleoffset": lambda dtype: [
        numcodecs.FixedScaleOffset(dtype=dtype.str, astype=dtype.str, **_SCALED)
    ],
    "astype": lambda dtype: [numcodecs.AsType(encode_dtype="<i8", decode_dtype=dtype.str)],
    "packbits": lambda _: [numcodecs.PackBits()],
    "crc32c": lambda _: [numcodecs.CRC32C()],
    "fletcher32": lambda _: [numcodecs.Fletcher32()],
}
_COMPRESSORS_2: dict[str, Any] = {
    "none": None,
    "zstd": numcodecs.Zstd(level=1),
    "zstd checksum": numcodecs.Zstd(level=1, checksum=True),
    **{
        level: numcodecs.Blosc(
            cname=cname, clevel=3, shuffle=("noshuffle", "shuffle", "bitshuffle").index(shuffle)
        )
        for level, cname, shuffle in _BLOSC
    },
    "gzip": numcodecs.GZip(level=1),
    "zlib": numcodecs.Zlib(level=1),
    "lz4": numcodecs.LZ4(),
    "bz2": numcodecs.BZ2(level=1),
    "lzma": numcodecs.LZMA(preset=0),
}

_ARRAY_FILTERS_3: dict[str, Codecs] = {
    "delta": lambda dtype: [v3_numcodecs.Delta(dtype=dtype.str)],
    "delta shuffle": lambda dtype: [v3_numcodecs.Delta(dtype=dtype.str)],
    "fixedscaleoffset": lambda dtype: [
        v3_numcodecs.FixedScaleOffset(dtype=dtype.str, astype=dtype.str, **_SCALED)
    ],
    "astype": lambda dtype: [v3_numcodecs.AsType(encode_dtype="<i8", decode_dtype=dtype.str)],
    "packbits": lambda _: [v3_numcodecs.PackBits()],
}
_BYTES_FILTERS_3: dict[str, Codecs] = {
    name: lambda dtype: [v3_numcodecs.Shuffle(elementsize=dtype.itemsize)]
    for name in ("shuffle", "delta shuffle")
}
_CHECKSUMS_3: dict[str, Codecs] = {
    "crc32c": lambda _: [v3.Crc32cCodec()],
    "fletcher32": lambda _: [v3_numcodecs.Fletcher32()],
}
_COMPRESSORS_3: dict[str, list[Any]] = {
    "none": [],
    "zstd": [v3.ZstdCodec(level=1)],
    "zstd checksum": [v3.ZstdCodec(level=1, checksum=True)],
    **{
        level: [v3.BloscCodec(cname=cname, clevel=3, shuffle=shuffle)]
        for level, cname, shuffle in _BLOSC
    },
    "gzip": [v3.GzipCodec(level=1)],
    "zlib": [v3_numcodecs.Zlib(level=1)],
    "lz4": [v3_numcodecs.LZ4()],
    "bz2": [v3_numcodecs.BZ2(level=1)],
    "lzma": [v3_numcodecs.LZMA(preset=0)],
}


def stored_dtype(case: Case, dtype: np.dtype) -> np.dtype:
    """The dtype to create the array with: format 3 has the byte order in a codec."""
    return dtype.newbyteorder(">") if case.format == 2 and case.byte_order == "big" else dtype


def codec_arguments(case: Case, dtype: np.dtype) -> dict[str, Any]:
    """Arguments of `zarr.create_array` for codecs and order; the dtype is native."""
    if case.format == 2:
        return {
            "filters": _FILTERS_2[case.filters](stored_dtype(case, dtype)) or None,
            "compressors": _COMPRESSORS_2[case.compressor],
            "order": "F" if case.order == "F" else "C",
        }

    def codecs(table: dict[str, Codecs]) -> list[Any]:
        return table[case.filters](dtype) if case.filters in table else []

    rolled = (*range(1, case.ndim), 0)
    orders = {
        "transposed": [tuple(reversed(range(case.ndim)))],
        "rolled": [rolled],
        "rolled and swapped": [rolled, (*rolled[:-2], *reversed(rolled[-2:]))],
    }
    transposes = [v3.TransposeCodec(order=order) for order in orders.get(case.order, [])]
    compressors = [
        *codecs(_BYTES_FILTERS_3),
        *_COMPRESSORS_3[case.compressor],
        *codecs(_CHECKSUMS_3),
    ]
    return {
        "filters": [*transposes, *codecs(_ARRAY_FILTERS_3)] or None,
        "serializer": v3.BytesCodec(endian=case.byte_order),
        "compressors": compressors or None,
    }


def sharded(arguments: dict[str, Any], case: Case, inner: tuple[int, ...]) -> dict[str, Any]:
    """The same codecs inside shards, and around these the codec that the case has there."""
    codecs = [
        *(arguments["filters"] or ()),
        arguments["serializer"],
        *(arguments["compressors"] or ()),
    ]
    if case.around_shards == "transposed":
        inner = tuple(map(math.gcd, inner, reversed(inner)))
    if case.shards == "nested":
        innermost = tuple(next(n for n in (2, 3, step) if step % n == 0) for step in inner)
        codecs = [_sharding(case, innermost, codecs)]
    axes = tuple(reversed(range(case.ndim)))
    around = {"gzip": [v3.GzipCodec(level=1)], "crc32c": [v3.Crc32cCodec()]}
    return {
        "filters": [v3.TransposeCodec(order=axes)] if case.around_shards == "transposed" else None,
        "serializer": _sharding(case, inner, codecs),
        "compressors": around.get(case.around_shards),
    }


def _sharding(case: Case, inner: tuple[int, ...], codecs: list[Any]) -> v3.ShardingCodec:
    location, *how = case.shard_index.split()
    index: list[Any] = [v3.BytesCodec(endian="big" if how == ["big-endian"] else "little")]
    if how != ["unchecked"]:
        index.append(v3.Crc32cCodec())
    return v3.ShardingCodec(
        chunk_shape=inner, codecs=codecs, index_codecs=index, index_location=location
    )
