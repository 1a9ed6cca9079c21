"""Stores of packed numbers, with their attributes where xarray looks for them."""

import numpy as np
from xarray.backends.zarr import FillValueCoder

from torchdata_insitu.testing import make_store


def packed_store(dtype, attributes, zarr_format):
    """One array `t` of 11 samples."""
    attributes = dict(attributes)
    options = {}
    if zarr_format == 2 and "_FillValue" in attributes:
        # xarray takes the fill value of the array for the attribute, and writes it there.
        options["fill_value"] = attributes.pop("_FillValue")
    elif dtype == "f4" and "_FillValue" in attributes:
        # xarray writes floats of format 3 as the bytes of a double.
        fill_value = FillValueCoder.encode(attributes["_FillValue"], np.dtype(dtype))
        attributes["_FillValue"] = fill_value
    return make_store(
        {"t": (11, 4)},
        dtype=dtype,
        chunks=(3, 3),
        dims=("time", "x"),
        zarr_format=zarr_format,
        attributes={"t": attributes},
        **options,
    )
