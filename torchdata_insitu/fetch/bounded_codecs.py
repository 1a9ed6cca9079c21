"""Known compressions in the place of Zarr's, for chains whose other codecs Zarr runs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs.compat import ensure_contiguous_ndarray
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer

from torchdata_insitu.fetch.codec_chain import known_compression
from torchdata_insitu.fetch.unpacking import decompress


def bounded(codecs: tuple[Codec, ...], most: int) -> tuple[Codec, ...]:
    """The codecs of an array, where what decompresses checks sizes before it decodes.

    numcodecs reads past the end of a cut blosc frame, allocates whatever a header asks for, and
    follows a stream of a few kilobytes through gigabytes.

    Args:
        codecs: Of one array, or of what is inside a shard.
        most: Bytes to which one compression may decode.
    """
    return tuple(_bounded(codec, most) for codec in codecs)


def codec_names(codecs: tuple[Codec, ...]) -> str:
    """The classes of codecs, in the order of writing.

    Example:
        >>> import numcodecs
        >>> codec_names((V2Codec(filters=(numcodecs.Delta("<i4"),), compressor=numcodecs.BZ2()),))
        'Delta -> BZ2'
    """
    names: list[str] = []
    for codec in codecs:
        parts = (*(codec.filters or ()), codec.compressor) if type(codec) is V2Codec else (codec,)
        names += [type(part).__name__ for part in parts if part is not None]
    return " -> ".join(names)


def _bounded(codec: Codec, most: int) -> Codec:
    if type(codec) is V2Codec:
        filters = tuple(_bounded_numcodec(part, most) for part in codec.filters or ())
        return V2Codec(filters=filters, compressor=_bounded_numcodec(codec.compressor, most))
    name = known_compression(codec)
    return codec if name is None else _BoundedCodec(name, most)


def _bounded_numcodec(codec: Any, most: int) -> Any:
    name = known_compression(codec)
    return codec if name is None else _BoundedNumcodec(name, most)


@dataclass(frozen=True)
class _BoundedNumcodec:
    """In the chain of an array of format 2, of which Zarr asks nothing else than to decode."""

    name: str
    most: int

    def decode(self, payload: Any) -> Any:
        stored = ensure_contiguous_ndarray(payload).view(np.uint8)
        return decompress(self.name, stored, self.most)


@dataclass(frozen=True)
class _BoundedCodec(BytesBytesCodec):
    """In the chain of an array of format 3."""

    name: str
    most: int
    is_fixed_size = False

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        content = decompress(self.name, chunk_bytes.as_numpy_array(), self.most)
        return chunk_spec.prototype.buffer.from_array_like(content)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_bytes, chunk_spec)

    def _encode_sync(self, _chunk_bytes: Buffer, _chunk_spec: ArraySpec) -> Buffer | None:
        # Zarr decodes without its loop only what can encode too.
        raise NotImplementedError

    def compute_encoded_size(self, _input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        raise NotImplementedError
