"""Small stores hold what they were asked for."""

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.testing import make_store

V3 = ["none", "zstd", "blosc", "gzip", "crc32c", "zstd+crc32c"]
V2 = ["none", "zstd", "blosc", "gzip", "lz4", "zlib"]


@pytest.mark.parametrize("zarr_format, codec", [(3, c) for c in V3] + [(2, c) for c in V2])
def test_values_count_up_through_all_arrays(zarr_format, codec):
    store = make_store(
        {"t": (5, 3), "u": (5, 2)}, chunks=(2, 2), zarr_format=zarr_format, codec=codec
    )
    group = zarr.open_group(store, mode="r")
    assert group["t"].metadata.zarr_format == zarr_format
    np.testing.assert_array_equal(group["t"][...].ravel(), np.arange(15))
    np.testing.assert_array_equal(group["u"][...].ravel(), np.arange(15, 25))


def test_given_values_chunks_and_names_are_kept():
    values = np.array([[1, 2], [3, 4], [5, 6]], "i2")
    store = make_store(
        {"t": values, "u": (3, 2)},
        chunks={"t": (1, 2), "u": (3, 1)},
        dims={"t": ("time", "x"), "u": ("time", "y")},
        attributes={"t": {"units": "K"}},
        dtype="f8",
    )
    group = zarr.open_group(store, mode="r")
    assert group["t"].dtype == "i2"
    assert group["u"].dtype == "f8"
    assert (group["t"].chunks, group["u"].chunks) == ((1, 2), (3, 1))
    assert group["u"].metadata.dimension_names == ("time", "y")
    assert dict(group["t"].attrs) == {"units": "K"}


def test_format_2_names_dimensions_in_its_attribute():
    store = make_store({"t": (4, 2)}, zarr_format=2, dims=("time", "x"))
    assert zarr.open_array(store, path="t").attrs["_ARRAY_DIMENSIONS"] == ["time", "x"]
    assert zarr.open_array(store, path="t").chunks == (2, 2)


def test_options_reach_zarr():
    store = make_store({"t": (4, 2)}, zarr_format=2, order="F", fill_value=-1)
    array = zarr.open_array(store, path="t")
    assert (array.order, array.fill_value) == ("F", -1)


def test_store_is_in_memory_or_at_a_path(tmp_path):
    assert type(make_store({"t": (4, 2)})) is MemoryStore
    assert type(make_store({"t": (4, 2)}, path=tmp_path)) is LocalStore


@pytest.mark.parametrize("zarr_format, codec", [(3, "lz4"), (2, "crc32c"), (3, "zip")])
def test_codec_that_the_format_lacks_is_refused(zarr_format, codec):
    with pytest.raises(GeometryError, match=codec):
        make_store({"t": (4, 2)}, codec=codec, zarr_format=zarr_format)
