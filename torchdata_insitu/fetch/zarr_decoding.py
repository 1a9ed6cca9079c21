"""Decoding by Zarr itself, for every chain that is not known here."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, numpy_buffer_prototype
from zarr.core.chunk_utils import ChunkTransform
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.metadata import ArrayV2Metadata
from zarr.core.sync import sync

from torchdata_insitu.fetch.stored_metadata import StoredMetadata


class ZarrDecoding:
    """Zarr's codecs applied to one stored chunk at a time, from any thread.

    Chains whose codecs all run synchronously stay on the calling thread; the others run on Zarr's
    loop while the calling thread waits.
    """

    def __init__(self, metadata: StoredMetadata, chunk_shape: tuple[int, ...]) -> None:
        self._dtype = metadata.dtype
        self._fill_value = metadata.fill_value
        if isinstance(metadata, ArrayV2Metadata):
            codecs: Any = [V2Codec(filters=metadata.filters, compressor=metadata.compressor)]
            self._config = ArrayConfig.from_dict({"order": metadata.order})
        else:
            codecs = metadata.codecs
            self._config = ArrayConfig.from_dict({"order": "C"})
        # Named here and not taken from zarr.config: a pipeline that somebody plugs in may only read
        # whole selections from stores.
        pipeline = BatchedCodecPipeline.from_codecs(codecs)
        self._pipeline = pipeline.evolve_from_array_spec(self._spec(chunk_shape))
        try:
            self._transform: ChunkTransform | None = ChunkTransform(codecs=tuple(self._pipeline))
        except TypeError:
            self._transform = None

    def decode(self, payload: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """The stored chunk of this shape, in Zarr's axis order and dtype.

        Whatever a codec raises is passed on.
        """
        buffer = cpu.Buffer.from_array_like(payload)
        spec = self._spec(shape)
        if self._transform is not None:
            return np.asarray(self._transform.decode_chunk(buffer, spec).as_numpy_array())
        (chunk,) = sync(self._decode_on_loop(buffer, spec))
        return np.asarray(chunk.as_numpy_array())

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
        names = [type(codec).__name__ for codec in self._pipeline]
        where = "" if self._transform is not None else ", on Zarr's loop"
        return f"Zarr's codecs {' -> '.join(names)}{where}"
