"""Zarr's own metadata object of an array, rebuilt without I/O."""

import json

from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.chunk_layout import with_regular_grid

StoredMetadata = ArrayV2Metadata | ArrayV3Metadata


def stored_metadata(array: ArrayGeometry) -> StoredMetadata:
    """The metadata object from which Zarr derives chunk keys, codecs and the fill value."""
    document = with_regular_grid(json.loads(array.metadata))
    if array.zarr_format == 2:  # noqa: PLR2004
        return ArrayV2Metadata.from_dict(document)
    return ArrayV3Metadata.from_dict(document)


def inner_codecs(array: ArrayGeometry, metadata: StoredMetadata) -> tuple[Codec, ...] | None:
    """The codecs of a stored chunk inside a shard; None where those of the array are its own."""
    if array.shards is None or not isinstance(metadata, ArrayV3Metadata):
        return None
    (sharding,) = metadata.codecs
    return sharding.codecs if isinstance(sharding, ShardingCodec) else None


def has_chunks_inside(metadata: StoredMetadata, codecs: tuple[Codec, ...] | None) -> bool:
    """Whether a stored chunk holds further chunks, of which only Zarr sees whether they are there.

    Args:
        metadata: Of the array.
        codecs: As `inner_codecs` gives them.
    """
    if isinstance(metadata, ArrayV2Metadata):
        return False
    chain = metadata.codecs if codecs is None else codecs
    return any(isinstance(codec, ShardingCodec) for codec in chain)
