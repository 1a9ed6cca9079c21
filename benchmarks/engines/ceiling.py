"""The same keys read by obstore and decoded by Zarr, and nothing else."""

from typing import Any

import numpy as np
import obstore
import obstore.store
from numpy.typing import NDArray
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.chunk_utils import ChunkTransform
from zarr.core.codec_pipeline import BatchedCodecPipeline

from benchmarks.engines.bare_decode import BareDecode
from benchmarks.engines.engine import Task
from benchmarks.stored_keys import StoredArray, StoredKey


class Ceiling(BareDecode):
    """`obstore.get` and Zarr's `ChunkTransform`, one thread per core.

    A shard is read once, as a whole, and its stored chunks are decoded one by one.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._store = obstore.store.LocalStore(task.path)
        self._specs = {name: _spec(of) for name, of in self._arrays.items()}
        self._transforms = {
            name: _transform(of, self._specs[name]) for name, of in self._arrays.items()
        }

    def read(self, key: StoredKey) -> NDArray[np.uint8]:
        """See `BareDecode.read`."""
        return np.frombuffer(obstore.get(self._store, key.key).bytes(), np.uint8)

    def decode(self, of: StoredArray, payload: NDArray[np.uint8]) -> NDArray[Any]:
        """See `BareDecode.decode`."""
        buffer = cpu.Buffer.from_array_like(payload)
        decoded = self._transforms[of.name].decode_chunk(buffer, self._specs[of.name])
        return np.asarray(decoded.as_numpy_array())


def _spec(of: StoredArray) -> ArraySpec:
    return ArraySpec(
        shape=of.chunks,
        dtype=of.array.metadata.dtype,
        fill_value=of.array.metadata.fill_value,
        config=ArrayConfig.from_dict({"order": "C"}),
        prototype=default_buffer_prototype(),
    )


def _transform(of: StoredArray, spec: ArraySpec) -> ChunkTransform:
    pipeline = BatchedCodecPipeline.from_codecs(of.codecs).evolve_from_array_spec(spec)
    return ChunkTransform(codecs=tuple(pipeline))
