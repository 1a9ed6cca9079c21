"""Zarr's own metadata object of an array, rebuilt without I/O."""

import json

from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from torchdata_insitu.geometry.array_geometry import ArrayGeometry

StoredMetadata = ArrayV2Metadata | ArrayV3Metadata


def stored_metadata(array: ArrayGeometry) -> StoredMetadata:
    """The metadata object from which Zarr derives chunk keys, codecs and the fill value."""
    document = json.loads(array.metadata)
    if array.zarr_format == 2:  # noqa: PLR2004
        return ArrayV2Metadata.from_dict(document)
    return ArrayV3Metadata.from_dict(document)
