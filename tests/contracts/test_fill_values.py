"""What missing chunks hold: bit for bit what Zarr fills in, of every dtype and spelling."""

import logging
import re

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.documents import amend, key_of, read_all
from torchdata_insitu.testing import make_store

# Of either format, as JSON has them.
SPELLINGS = {
    "float32": ["NaN", "Infinity", "-Infinity", -0.0, 0, -9, 1.5, 1e-45, float("nan")],
    "float64": ["NaN", "Infinity", "-Infinity", -0.0, 1e308, 5e-324],
    "float16": ["NaN", "-Infinity", 65504.0, -0.0],
    "uint8": [0, 255],
    "int8": [-128],
    "int16": [-32768, -9],
    "int32": [2**31 - 1, -(2**31)],
    "int64": [2**63 - 1, -(2**63), 2**53 + 1],
    "uint64": [2**64 - 1, 2**63],
    "bool": [True, False],
    "complex64": [[1.5, -0.0], ["NaN", "Infinity"], ["-Infinity", 0]],
    "complex128": [["NaN", -2.5], [1, 2]],
}
# Of format 3 alone.
HEX = {
    "float16": ["0x7e00", "0xfe00"],
    "float32": ["0x7fc00000", "0x7fc00001", "0xffc00000", "0x80000000"],
    "float64": ["0x7ff8000000000002", "0xfff8000000000000", "0x0000000000000001"],
}
# NaNs of which Zarr itself does not keep every bit.
CHANGED_BY_ZARR = {"float16": ["0x7e01", "0x7c01"], "float32": ["0x7f800001"]}
IMPOSSIBLE = {
    "uint8": [300, -1, 1.5, "NaN"],
    "int32": [2**31],
    "uint64": [2**64, -1],
    "float32": ["x", [1], {}, ""],
    "complex64": [1.5, [1], "NaN"],
}


def pairs(table):
    return [(dtype, value) for dtype, values in table.items() for value in values]


def sparse(dtype, fill_value, *, zarr_format, **options):
    """An array without its second of three chunks, whose metadata state a fill value."""
    dtype = np.dtype(dtype)
    values = np.ones((6, 2), dtype)
    fill = None if zarr_format == 2 else np.zeros((), dtype)[()]
    store = make_store(
        {"t": values}, chunks=(2, 2), zarr_format=zarr_format, fill_value=fill, **options
    )
    amend(store, key_of("t", zarr_format), fill_value=fill_value)
    sync(store.delete("t/1.0" if zarr_format == 2 else "t/c/1/0"))
    return store


def check_equal_to_zarr(store, n_missing=1):
    expected = zarr.open_array(store, path="t", mode="r")[...]
    expected = expected.astype(expected.dtype.newbyteorder("="))
    values, missing = read_all(store, tdi.open_arrays(store, "t")["t"])
    assert values.dtype == expected.dtype
    assert values.tobytes() == expected.tobytes()
    assert missing == n_missing
    return values


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype, fill_value", pairs(SPELLINGS))
def test_missing_chunks_hold_the_bits_that_zarr_fills_in(zarr_format, dtype, fill_value):
    check_equal_to_zarr(sparse(dtype, fill_value, zarr_format=zarr_format))


@pytest.mark.parametrize("dtype, fill_value", pairs(HEX))
def test_bits_in_hexadecimal_are_those_bits(dtype, fill_value):
    values = check_equal_to_zarr(sparse(dtype, fill_value, zarr_format=3))
    assert values[2:4].view(f"u{values.itemsize}").tolist() == [[int(fill_value, 16)] * 2] * 2


@pytest.mark.parametrize("dtype, fill_value", pairs(CHANGED_BY_ZARR))
def test_bits_that_zarr_changes_are_changed_alike(dtype, fill_value):
    assert np.isnan(check_equal_to_zarr(sparse(dtype, fill_value, zarr_format=3))[2:4]).all()


@pytest.mark.parametrize("fill_value", ["NaN", 7.5, -2])
def test_big_endian_arrays_are_filled_with_values_and_not_with_bytes(fill_value):
    values = check_equal_to_zarr(sparse(">f4", fill_value, zarr_format=2))
    expected = np.float32(fill_value.lower() if isinstance(fill_value, str) else fill_value)
    np.testing.assert_array_equal(values[2], [expected, expected])


@pytest.mark.parametrize("dtype", SPELLINGS)
def test_null_is_zero_in_format_2(dtype):
    values = check_equal_to_zarr(sparse(dtype, None, zarr_format=2))
    assert not values[2:4].any()


@pytest.mark.parametrize("dtype", SPELLINGS)
def test_null_in_format_3_is_zero_as_in_format_2_and_is_logged(dtype, caplog):
    """GDAL writes it; Zarr itself fails on most dtypes."""
    store = sparse(dtype, None, zarr_format=3)
    with caplog.at_level(logging.INFO, "torchdata_insitu"):
        array = tdi.open_arrays(store, "t")["t"]
    assert "array 't' has fill_value null" in caplog.text
    values, missing = read_all(store, array)
    as_stored = np.ones((6, 2), dtype)
    as_stored[2:4] = 0
    assert values.tobytes() == as_stored.tobytes()
    assert missing == 1


def test_null_in_format_3_does_not_hide_a_missing_chunk_from_whoever_asks():
    store = sparse("float32", None, zarr_format=3)
    with pytest.raises(tdi.errors.ReadError, match="'t/c/1/0'"):
        read_all(store, tdi.open_arrays(store, "t")["t"], on_missing="raise")


def test_null_and_zero_are_one_array_to_the_pool_and_to_states():
    null = tdi.open_arrays(sparse("float32", None, zarr_format=3), "t")["t"]
    zero = tdi.open_arrays(sparse("float32", 0.0, zarr_format=3), "t")["t"]
    assert null == zero


def test_a_fill_value_that_is_not_stated_is_an_error_in_format_3():
    store = sparse("float32", ..., zarr_format=3)
    with pytest.raises(tdi.errors.GeometryError, match=r"array 't' .*fill_value is missing"):
        tdi.open_arrays(store, "t")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype, fill_value", pairs(IMPOSSIBLE))
def test_a_value_that_the_dtype_does_not_have_is_refused_by_name(zarr_format, dtype, fill_value):
    store = sparse(dtype, fill_value, zarr_format=zarr_format)
    fact = rf"array 't' of dtype \S+, whose fill_value is {re.escape(repr(fill_value))},"
    with pytest.raises(tdi.errors.GeometryError, match=fact):
        tdi.open_arrays(store, "t")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("fill_value", [-9, 0, 4])
@pytest.mark.parametrize("marked", [None, -9, 4])
def test_packed_values_are_filled_as_xarray_decodes_them(zarr_format, fill_value, marked):
    """The fill value of format 2 means "no value" to xarray, that of format 3 does not."""
    attributes = {"scale_factor": 0.5, "add_offset": 1.0}
    if marked is not None:
        attributes["_FillValue"] = marked
    store = sparse(
        "int16",
        fill_value,
        zarr_format=zarr_format,
        dims=("time", "x"),
        attributes={"t": attributes},
    )
    dataset = xr.open_dataset(store, engine="zarr", consolidated=False, chunks=None)
    values, missing = read_all(store, tdi.open_arrays(store, "t")["t"])
    np.testing.assert_array_equal(values, dataset["t"].values)
    assert missing == 1
