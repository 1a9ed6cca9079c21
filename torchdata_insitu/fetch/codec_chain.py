"""Which codecs an array was written with, as far as they are known here."""

from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
from numpy.typing import NDArray
from zarr import codecs as zarr_codecs
from zarr.abc.codec import Codec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.core.metadata import ArrayV2Metadata
from zarr.registry import get_numcodec

from torchdata_insitu.fetch.stored_metadata import StoredMetadata

CHECKSUM = "crc32c"
"""The stage that is a checksum of 4 bytes behind what it covers."""

# Exact classes, since a subclass or a replacement registered under the same name may decode
# differently; decoding depends on none of their settings, but for those of LZMA.
_COMPRESSIONS: dict[type, str] = {
    numcodecs.Zstd: "zstd",
    numcodecs.Blosc: "blosc",
    numcodecs.LZ4: "lz4",
    numcodecs.GZip: "gzip",
    numcodecs.Zlib: "zlib",
    numcodecs.BZ2: "bz2",
    numcodecs.LZMA: "lzma",
    zarr_codecs.ZstdCodec: "zstd",
    zarr_codecs.BloscCodec: "blosc",
    zarr_codecs.GzipCodec: "gzip",
}
# These ask the registry of numcodecs for what decodes.
_OF_NUMCODECS: tuple[type, ...] = (
    zarr_numcodecs.Zstd,
    zarr_numcodecs.Blosc,
    zarr_numcodecs.LZ4,
    zarr_numcodecs.GZip,
    zarr_numcodecs.Zlib,
    zarr_numcodecs.BZ2,
    zarr_numcodecs.LZMA,
)
_FORMAT_XZ = 1


@dataclass(frozen=True)
class CodecChain:
    """A chain of codecs that is decoded here: one compression at most over plain values."""

    stages: tuple[str, ...]
    """What was done to the bytes of the values, in the order of writing: one compression at most
    ("zstd", "blosc", "lz4", "gzip", "zlib", "bz2", "lzma"), and `CHECKSUM` before or after it."""
    dtype: np.dtype[Any]
    """Dtype of the decompressed bytes, in the byte order they are stored in."""
    axes: tuple[int, ...] | None
    """Axes of the array in the order in which the decompressed bytes hold them, the slowest first;
    None where that is the array's own order."""

    @property
    def as_in_memory(self) -> bool:
        """Whether the decompressed bytes are the array in memory: native byte order, C order."""
        return self.axes is None and self.dtype.isnative

    def array(self, content: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """The decompressed bytes as a stored chunk, in Zarr's axis order; nothing is copied.

        Args:
            content: All bytes of the stored chunk.
            shape: Of the stored chunk, in Zarr's axis order.
        """
        values = content.view(self.dtype)
        if self.axes is None:
            return values.reshape(shape)
        stored = values.reshape([shape[axis] for axis in self.axes])
        return stored.transpose(np.argsort(self.axes))

    def __str__(self) -> str:
        text = " + ".join(self.stages) or "uncompressed"
        axes = self.axes
        if axes is None:
            order = ""
        elif axes == tuple(reversed(range(len(axes)))):
            order = "F order"
        else:
            order = f"axes stored as {', '.join(map(str, axes))}"
        notes = [note for note in (order, "" if self.dtype.isnative else "byte-swapped") if note]
        return f"{text} ({', '.join(notes)})" if notes else text


def known_chain(
    metadata: StoredMetadata, codecs: tuple[Codec, ...] | None = None
) -> CodecChain | None:
    """The chain of an array, or None where Zarr has to decode it.

    Whatever is not recognised for certain is None, so that values never depend on this function.

    Args:
        metadata: Of the array.
        codecs: Of what is decoded, where they are not all codecs of the array: those of the chunks
            inside a shard.
    """
    if isinstance(metadata, ArrayV2Metadata):
        chain = _v2_chain(metadata)
    else:
        dtype = metadata.data_type.to_native_dtype()
        chain = _v3_chain(metadata.codecs if codecs is None else codecs, dtype, metadata.ndim)
    return chain if chain is not None and _is_plain(chain.dtype) else None


def known_compression(codec: object) -> str | None:
    """The name of a compression that is decoded here, None for every other codec.

    Args:
        codec: A codec of numcodecs or of Zarr.
    """
    if type(codec) in _OF_NUMCODECS:
        codec = get_numcodec(codec.codec_config)  # type: ignore[attr-defined]
    name = _COMPRESSIONS.get(type(codec))
    if name == "lzma" and (codec.format, codec.filters) != (_FORMAT_XZ, None):  # type: ignore[attr-defined]
        return None
    return name


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of a value are the value in memory: numbers, times, or fields of them."""
    return dtype.kind in "biufcmM" or (dtype.names is not None and not dtype.hasobject)


def _v2_chain(metadata: ArrayV2Metadata) -> CodecChain | None:
    compression = known_compression(metadata.compressor)
    if metadata.filters or (metadata.compressor is not None and compression is None):
        return None
    stages = () if compression is None else (compression,)
    n_axes = len(metadata.shape)
    axes = tuple(reversed(range(n_axes))) if metadata.order == "F" and n_axes > 1 else None
    return CodecChain(stages, metadata.dtype.to_native_dtype(), axes)


def _v3_chain(codecs: tuple[Codec, ...], dtype: np.dtype[Any], n_axes: int) -> CodecChain | None:
    own = axes = tuple(range(n_axes))
    rest = list(codecs)
    serializer = rest.pop(0)
    while type(serializer) is zarr_codecs.TransposeCodec:
        axes = tuple(axes[number] for number in serializer.order)
        serializer = rest.pop(0)
    if type(serializer) is not zarr_codecs.BytesCodec:
        return None
    stages = tuple(
        CHECKSUM if type(codec) is zarr_codecs.Crc32cCodec else known_compression(codec)
        for codec in rest
    )
    known = tuple(stage for stage in stages if stage is not None)
    if len(known) < len(stages) or sum(stage != CHECKSUM for stage in known) > 1:
        return None
    if serializer.endian is not None:
        dtype = dtype.newbyteorder(">" if serializer.endian == "big" else "<")
    return CodecChain(known, dtype, None if axes == own else axes)
