"""Which codecs an array was written with, as far as they are known here."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numcodecs
import numpy as np
from zarr import codecs as zarr_codecs
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from torchdata_insitu.fetch.stored_metadata import StoredMetadata


class _Codec(Protocol):
    def decode(self, buf: Any, out: Any = None) -> Any: ...


# Exact classes, since a subclass or a replacement registered under the same name may decode
# differently; decoding depends on none of their settings.
_V2_COMPRESSIONS: dict[type, str] = {
    numcodecs.Zstd: "zstd",
    numcodecs.Blosc: "blosc",
    numcodecs.LZ4: "lz4",
    numcodecs.GZip: "gzip",
    numcodecs.Zlib: "zlib",
}
_V3_COMPRESSIONS: dict[type, str] = {
    zarr_codecs.ZstdCodec: "zstd",
    zarr_codecs.BloscCodec: "blosc",
    zarr_codecs.GzipCodec: "gzip",
    zarr_numcodecs.Zstd: "zstd",
    zarr_numcodecs.Blosc: "blosc",
    zarr_numcodecs.LZ4: "lz4",
    zarr_numcodecs.GZip: "gzip",
    zarr_numcodecs.Zlib: "zlib",
}
_CODECS: dict[str, _Codec] = {
    "zstd": numcodecs.Zstd(),
    "blosc": numcodecs.Blosc(),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(),
    "zlib": numcodecs.Zlib(),
}


@dataclass(frozen=True)
class CodecChain:
    """A chain of codecs that is decoded here: one compression at most over plain numbers."""

    compression: str | None
    """"zstd", "blosc", "lz4", "gzip", "zlib", or None for plain bytes."""
    checksum: bool
    """Whether 4 bytes of CRC-32C end what is stored."""
    dtype: np.dtype[Any]
    """Dtype of the decompressed bytes, in the byte order they are stored in."""
    order: Literal["C", "F"]
    """How the decompressed bytes fill the stored chunk."""

    @property
    def codec(self) -> _Codec | None:
        """The decompressor, None for plain bytes."""
        return None if self.compression is None else _CODECS[self.compression]

    @property
    def as_in_memory(self) -> bool:
        """Whether the decompressed bytes are the array in memory: native byte order, C order."""
        return self.order == "C" and self.dtype.isnative

    def __str__(self) -> str:
        text = self.compression or "uncompressed"
        return f"{text} with crc32c" if self.checksum else text


def known_chain(metadata: StoredMetadata) -> CodecChain | None:
    """The chain of an array, or None where Zarr has to decode it.

    Whatever is not recognised for certain is None, so that values never depend on this function.
    """
    chain = _v2_chain(metadata) if isinstance(metadata, ArrayV2Metadata) else _v3_chain(metadata)
    return chain if chain is not None and chain.dtype.kind in "biufc" else None


def _v2_chain(metadata: ArrayV2Metadata) -> CodecChain | None:
    compressor = metadata.compressor
    compression = _V2_COMPRESSIONS.get(type(compressor))
    if metadata.filters or (compressor is not None and compression is None):
        return None
    dtype = metadata.dtype.to_native_dtype()
    return CodecChain(compression, checksum=False, dtype=dtype, order=metadata.order)


def _v3_chain(metadata: ArrayV3Metadata) -> CodecChain | None:
    serializer, *rest = metadata.codecs
    if type(serializer) is not zarr_codecs.BytesCodec:
        return None
    checksum = bool(rest) and type(rest[-1]) is zarr_codecs.Crc32cCodec
    if checksum:
        rest.pop()
    compression = _V3_COMPRESSIONS.get(type(rest[0])) if rest else None
    if len(rest) > 1 or (rest and compression is None):
        return None
    dtype = metadata.data_type.to_native_dtype()
    if serializer.endian is not None:
        dtype = dtype.newbyteorder(">" if serializer.endian == "big" else "<")
    return CodecChain(compression, checksum, dtype, "C")


def outermost_compression(metadata: StoredMetadata) -> str | None:
    """The compression whose frame the stored bytes are, also in a chain that Zarr decodes."""
    if isinstance(metadata, ArrayV2Metadata):
        return _V2_COMPRESSIONS.get(type(metadata.compressor))
    last = metadata.codecs[-1]
    return _V3_COMPRESSIONS.get(type(last)) if isinstance(last, BytesBytesCodec) else None
