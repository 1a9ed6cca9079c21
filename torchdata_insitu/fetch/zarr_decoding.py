"""Decoding by Zarr itself, for every chain that is not known here."""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import Codec
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, numpy_buffer_prototype
from zarr.core.chunk_utils import ChunkTransform
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.metadata import ArrayV2Metadata
from zarr.core.sync import sync
from zarr.errors import ZarrUserWarning

from torchdata_insitu.fetch.bounded_codecs import bounded, codec_names
from torchdata_insitu.fetch.frames import FrameError
from torchdata_insitu.fetch.stored_metadata import StoredMetadata

# To what one compression inside a chain may decode: no codec makes a number 16 times as long, and
# what a codec adds to a chunk is small.
_LONGEST_TIMES = 16
_LONGEST_MORE = 65_536


class ZarrDecoding:
    """Zarr's codecs applied to one stored chunk at a time, from any thread.

    Chains whose codecs all run synchronously stay on the calling thread; the others run on Zarr's
    loop while the calling thread waits.

    Args:
        metadata: Of the array.
        chunk_shape: Of what is decoded, in Zarr's axis order.
        codecs: Of what is decoded, where they are not all codecs of the array: those of the chunks
            inside a shard.
    """

    def __init__(
        self,
        metadata: StoredMetadata,
        chunk_shape: tuple[int, ...],
        codecs: tuple[Codec, ...] | None = None,
    ) -> None:
        self._dtype = metadata.dtype
        self._fill_value = metadata.fill_value
        if isinstance(metadata, ArrayV2Metadata):
            chain: tuple[Codec, ...] = (
                V2Codec(filters=metadata.filters, compressor=metadata.compressor),
            )
            self._config = ArrayConfig.from_dict({"order": metadata.order})
        else:
            chain = metadata.codecs if codecs is None else codecs
            self._config = ArrayConfig.from_dict({"order": "C"})
        self._names = codec_names(chain)
        size = math.prod(chunk_shape) * metadata.dtype.to_native_dtype().itemsize
        chain = bounded(chain, _LONGEST_TIMES * size + _LONGEST_MORE)
        # Named here and not taken from zarr.config: a pipeline that somebody plugs in may only read
        # whole selections from stores.
        with warnings.catch_warnings():
            # That codecs around a shard rule out partial reads: here, the shard is the chunk.
            warnings.simplefilter("ignore", ZarrUserWarning)
            pipeline = BatchedCodecPipeline.from_codecs(chain)
        self._pipeline = pipeline.evolve_from_array_spec(self._spec(chunk_shape))
        try:
            self._transform: ChunkTransform | None = ChunkTransform(codecs=tuple(self._pipeline))
        except TypeError:
            self._transform = None

    def decode(self, payload: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """The stored chunk of this shape, in Zarr's axis order and dtype.

        Whatever a codec raises is passed on. Compressions that are known are bounded, see
        `bounded`; the other codecs allocate what they like.

        Raises:
            FrameError: The codecs gave something else than such a chunk.
        """
        buffer = cpu.Buffer.from_array_like(payload)
        spec = self._spec(shape)
        if self._transform is not None:
            decoded = self._transform.decode_chunk(buffer, spec)
        else:
            (decoded,) = sync(self._decode_on_loop(buffer, spec))
        chunk = np.asarray(decoded.as_numpy_array())
        dtype = self._dtype.to_native_dtype()
        # Zarr would convert other numbers, and they would be those of another array.
        if chunk.shape != shape or chunk.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise FrameError(f"it decodes to {chunk.dtype} of shape {chunk.shape}")
        return chunk

    async def _decode_on_loop(self, buffer: cpu.Buffer, spec: ArraySpec) -> Any:
        return await self._pipeline.decode([(buffer, spec)])

    def _spec(self, shape: tuple[int, ...]) -> ArraySpec:
        return ArraySpec(
            shape=shape,
            dtype=self._dtype,
            fill_value=self._fill_value,
            config=self._config,
            prototype=numpy_buffer_prototype(),
        )

    def __str__(self) -> str:
        where = "" if self._transform is not None else ", on Zarr's loop"
        return f"Zarr's codecs {self._names}{where}"
