import base64
import struct
import warnings

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.cf_packing import CFPacking
from torchdata_insitu.geometry.metadata import read_arrays

FLOATS = ["<f2", "<f4", "<f8"]
INTEGERS = ["i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"]


def store_of(values, attributes, zarr_format, **options):
    """A store whose array 'a' xarray can open too."""
    store = zarr.storage.MemoryStore()
    dims = [f"d{axis}" for axis in range(values.ndim)]
    if zarr_format == 2:
        options["attributes"] = {**attributes, "_ARRAY_DIMENSIONS": dims}
    else:
        options |= {"attributes": attributes, "dimension_names": dims}
    zarr.create_group(store, zarr_format=zarr_format)
    array = zarr.create_array(
        store, name="a", shape=values.shape, chunks=values.shape, dtype=values.dtype,
        zarr_format=zarr_format, **options,
    )  # fmt: skip
    array[...] = values
    return store


def xarray_values(store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = xr.open_dataset(
            store, engine="zarr", consolidated=False, chunks=None, decode_times=False
        )
        return dataset["a"].values


def our_values(store):
    array = read_arrays(store, "a")["a"]
    stored = zarr.open_array(store, path="a")[...].astype(array.stored_dtype)
    if array.cf is None:
        return stored.astype(array.dtype)
    out = np.empty(stored.shape, array.dtype)
    array.cf.decode(stored, out)
    if array.cf.in_place:
        array.cf.decode(stored, stored)
        assert stored.tobytes() == out.tobytes()
    return out


def assert_equal_bits(store):
    with np.errstate(all="ignore"):
        expected = xarray_values(store)
    ours = our_values(store)
    assert ours.dtype == expected.dtype
    assert ours.dtype.isnative
    assert ours.tobytes() == expected.tobytes()


def base64_float(value):
    """How xarray spells a float `_FillValue` in format 3."""
    return base64.standard_b64encode(struct.pack("<d", float(value))).decode()


def nested(value, depth):
    """A list in a list, and so on."""
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def packed_stores(draw):
    """A store of numbers with any supported combination of attributes, fill values among them."""
    zarr_format = draw(st.sampled_from([2, 3]))
    dtype = np.dtype(draw(st.sampled_from(FLOATS + INTEGERS)))
    values = draw(hnp.arrays(dtype, draw(hnp.array_shapes(max_dims=3, max_side=5))))
    is_float = dtype.kind == "f"
    numbers = st.sampled_from(values.ravel().tolist()) | st.sampled_from([0, 1, 99])
    if is_float:
        numbers |= st.just(float("nan"))
    attributes = {}
    if draw(st.booleans()):
        fill = draw(numbers)
        attributes["_FillValue"] = base64_float(fill) if is_float and zarr_format == 3 else fill
    if draw(st.booleans()):
        attributes["missing_value"] = draw(numbers | st.lists(numbers, min_size=1, max_size=3))
    packing = st.floats(-1e3, 1e3, allow_subnormal=False)
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(packing)
    if draw(st.booleans()):
        attributes["add_offset"] = draw(packing | st.integers(-300, 300))
    options = {"fill_value": draw(numbers)} if draw(st.booleans()) else {"fill_value": None}
    if zarr_format == 3 and options["fill_value"] is None:
        options = {}
    return store_of(values, attributes, zarr_format, **options)


@given(packed_stores())
def test_decoded_values_equal_those_of_xarray_bit_for_bit(store):
    assert_equal_bits(store)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", ">c8"])
def test_big_endian_numbers_come_out_native(zarr_format, dtype):
    values = np.array([1, 2, 99, 3], dtype)
    options = {"fill_value": 99} if zarr_format == 2 else {}
    attributes = {} if dtype == ">c8" else {"missing_value": 99, "scale_factor": 0.5}
    assert_equal_bits(store_of(values, attributes, zarr_format, **options))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_complex_numbers_are_masked(zarr_format):
    values = np.array([1 + 2j, 9, 3j], "c8")
    attributes = {"_FillValue": [base64_float(9), base64_float(0)]} if zarr_format == 3 else {}
    options = {"fill_value": 9} if zarr_format == 2 else {}
    store = store_of(values, attributes, zarr_format, **options)
    assert np.isnan(our_values(store)).tolist() == [False, True, False]
    assert_equal_bits(store)


def test_a_fill_value_with_more_digits_than_the_numbers_masks_as_in_xarray():
    # float32(1e20) is not 1e20: xarray compares `missing_value` in float64, and masks nothing.
    values = np.array([1e20, 1.0], "f4")
    assert_equal_bits(store_of(values, {"missing_value": 1e20}, 3))
    assert_equal_bits(store_of(values, {"missing_value": float(np.float32(1e20))}, 3))


def test_nan_as_fill_value_keeps_the_dtype_of_scaled_floats():
    store = store_of(np.array([1, np.nan], "f4"), {"scale_factor": 0.1}, 2, fill_value=np.nan)
    assert our_values(store).dtype == np.float32
    assert_equal_bits(store)


def test_times_stay_numbers():
    values = np.array([0, 6, 12], "i4")
    store = store_of(values, {"units": "hours since 1996-01-01"}, 3)
    assert read_arrays(store, "a")["a"].cf is None
    assert_equal_bits(store)


def test_integers_that_stand_for_truth_become_bool():
    store = store_of(np.array([0, 1, 1], "i1"), {"dtype": "bool"}, 3)
    assert our_values(store).dtype == np.bool_
    assert_equal_bits(store)


def test_the_fill_value_of_format_2_masks_only_where_dimensions_are_named():
    attributes = {"_ARRAY_DIMENSIONS": ["t"]}
    zeros = np.zeros(3, "u1")
    for named, expected in [(attributes, np.float32), ({}, np.uint8)]:
        store = zarr.storage.MemoryStore()
        zarr.create_array(
            store, name="a", data=zeros, zarr_format=2, attributes=named, fill_value=0
        )
        assert read_arrays(store, "a")["a"].dtype == expected


def test_the_fill_value_of_truth_values_does_not_mask_them():
    store = store_of(np.array([True, False]), {}, 2, fill_value=False)
    assert read_arrays(store, "a")["a"].cf is None


def test_a_large_chunk_is_decoded_in_pieces_with_the_same_result():
    values = np.arange(300_000, dtype="i4").reshape(3, 100_000)
    attributes = {"_FillValue": 150_000, "scale_factor": 0.1, "add_offset": 3.0}
    assert_equal_bits(store_of(values, attributes, 3))
    assert_equal_bits(store_of(values.ravel(), attributes, 3))


def test_a_part_of_a_slot_can_be_decoded_into():
    packing = CFPacking.from_attributes("a", {"_FillValue": 2, "add_offset": 1}, np.dtype("i2"))
    slot = np.zeros((4, 5))
    packing.decode(np.array([[1, 2], [3, 4]], "i2"), slot[1:3, 2:4])
    assert np.array_equal(slot[1:3, 2:4], [[2, np.nan], [4, 5]], equal_nan=True)
    assert np.count_nonzero(slot) == 4


def test_an_overflow_is_the_data_and_no_warning():
    packing = CFPacking.from_attributes(
        "a", {"scale_factor": 10.0, "_FillValue": float("nan")}, np.dtype("f4")
    )
    out = np.empty(1, "f4")
    packing.decode(np.array([3e38], "f4"), out)
    assert out.tolist() == [np.inf]


@pytest.mark.parametrize("value", [-9999, [-9999], "NaN", "Infinity", base64_float(-9999)])
def test_fill_values_of_floats_are_read_in_every_spelling(value):
    packing = CFPacking.from_attributes("a", {"_FillValue": value}, np.dtype("f4"))
    assert (packing is None) == (value == "NaN")


def test_plain_stored_numbers_need_no_packing():
    nan = float("nan")
    for attributes in ({}, {"units": "K"}, {"_FillValue": nan}, {"missing_value": [nan]}):
        assert CFPacking.from_attributes("a", attributes, np.dtype("<f4")) is None
    assert CFPacking.from_attributes("a", {"_FillValue": nan}, np.dtype("i2")) is None


@pytest.mark.parametrize(
    "attributes, dtype, fact",
    [
        ({"_Unsigned": "True"}, "i1", "_Unsigned='True'"),
        ({"scale_factor": "0.1"}, "i2", "scale_factor '0.1'"),
        ({"scale_factor": [0.1, 0.2]}, "i2", r"scale_factor \[0.1, 0.2\]"),
        ({"scale_factor": True}, "i2", "scale_factor True"),
        ({"add_offset": {}}, "i2", "add_offset"),
        ({"scale_factor": 2, "_FillValue": 1}, "i2", "integer scale_factor 2"),
        ({"scale_factor": 2}, "f4", "integer scale_factor 2"),
        ({"scale_factor": 0.5}, "?", "on dtype bool"),
        ({"scale_factor": 0.5}, "c8", "on dtype complex64"),
        ({"dtype": "bool", "_FillValue": 1}, "i1", "truth values"),
        ({"missing_value": "none"}, "f4", "missing_value 'none'"),
        ({"missing_value": [1, "x"]}, "f4", "missing_value '1'"),
        ({"_FillValue": "none"}, "f4", "_FillValue 'none'"),
        ({"_FillValue": [{}, 1]}, "c8", "_FillValue {}"),
        # Lists that are no arrays.
        ({"missing_value": [[1, 2], [3]]}, "i2", r"missing_value \[\[1, 2\], \[3\]\]"),
        ({"missing_value": [1, [2]]}, "f4", r"missing_value \[1, \[2\]\]"),
        ({"_FillValue": [[1, 2], [3]]}, "i2", r"_FillValue \[\[1, 2\], \[3\]\]"),
        ({"_FillValue": [[1], [2, 3]]}, "c8", r"_FillValue \[1\]"),
        ({"_FillValue": [[1], [2, 3], 4]}, "c8", r"_FillValue \[\[1\], \[2, 3\], 4\]"),
        ({"missing_value": nested(1, 100)}, "f4", r"missing_value \[\["),
        # Numbers that are none of their dtype.
        ({"scale_factor": 2**63}, "i2", "integer scale_factor 9223372036854775808"),
        ({"scale_factor": -(2**63) - 1}, "u8", "integer scale_factor -9223372036854775809"),
        ({"scale_factor": 10**400}, "i2", "scale_factor 1000"),
        ({"scale_factor": [10**400]}, "f4", "scale_factor 1000"),
        ({"scale_factor": 10**400, "add_offset": 1}, "i2", "scale_factor 1000"),
        ({"add_offset": -(10**400)}, "f4", "add_offset -1000"),
        ({"add_offset": 10**400, "_FillValue": 1}, "i2", "add_offset 1000"),
        ({"_FillValue": 10**400}, "f8", "_FillValue 1000"),
        ({"_FillValue": [10**400, 1]}, "c8", "_FillValue 1000"),
        ({"missing_value": 10**400}, "f8", "missing_value 1000"),
        ({"_FillValue": 2.5}, "i2", "_FillValue 2.5, which int16 cannot hold"),
        ({"_FillValue": [1, 2.5]}, "u1", "_FillValue 2.5, which uint8 cannot hold"),
        ({"_FillValue": -1}, "u2", "_FillValue -1, which uint16 cannot hold"),
        ({"_FillValue": 128}, "i1", "_FillValue 128, which int8 cannot hold"),
        ({"_FillValue": 2**63}, ">i8", "_FillValue 9223372036854775808, which int64 cannot hold"),
        ({"_FillValue": 2.0**64}, "u8", "_FillValue .*, which uint64 cannot hold"),
        ({"_FillValue": 1e20}, "i4", r"_FillValue 1e\+20, which int32 cannot hold"),
        ({"_FillValue": float("-inf")}, "i4", "_FillValue -inf, which int32 cannot hold"),
        # Text, and truth, that integers and floats do not have.
        ({"missing_value": "NaN"}, "i2", "missing_value 'NaN', which is no number"),
        ({"missing_value": ["nan"]}, "u8", "missing_value 'nan', which is no number"),
        ({"_FillValue": "NaN"}, "i4", "_FillValue 'NaN', which is no number"),
        ({"dtype": "bool"}, "f4", "attribute dtype='bool' on dtype float32"),
        ({"dtype": "bool", "_Unsigned": "false"}, "f8", "attribute dtype='bool' on"),
        ({"dtype": "bool"}, "c8", "attribute dtype='bool' on dtype complex64"),
    ],
)
def test_what_is_not_decoded_is_refused_and_names_the_way_out(attributes, dtype, fact):
    with pytest.raises(GeometryError, match=fact) as caught:
        CFPacking.from_attributes("t2m", attributes, np.dtype(dtype))
    assert "array 't2m'" in str(caught.value)
    assert "decode_cf=False" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "attributes",
    [
        {"missing_value": [[1, 2], [3]]},
        {"scale_factor": 2**70},
        {"add_offset": 10**400},
        {"_FillValue": 2.5},
    ],
)
def test_an_array_that_is_not_decoded_does_no_harm_to_others(attributes):
    store = store_of(np.array([1, 2], "i2"), attributes, 2, fill_value=None)
    zarr.create_array(store, name="b", shape=(4,), dtype="i2", zarr_format=2)
    assert list(read_arrays(store)) == ["b"]
    assert list(read_arrays(store, decode_cf=False)) == ["a", "b"]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "dtype, fill", [("i2", 5.0), ("i1", -128), ("u8", 2**64 - 1), ("<i8", -(2**63)), (">u2", 65535)]
)
def test_a_fill_value_that_its_integers_hold_masks_as_in_xarray(zarr_format, dtype, fill):
    values = np.array([1, int(fill), 3], dtype)
    store = store_of(values, {"_FillValue": fill}, zarr_format, fill_value=0)
    if zarr_format == 2:
        # Where format 2 has no fill value, the attribute is the one that counts.
        store = store_of(values, {"_FillValue": fill}, zarr_format, fill_value=None)
    assert np.isnan(our_values(store)).tolist() == [False, True, False]
    assert_equal_bits(store)


@pytest.mark.parametrize("offset", [2**63, -(2**70), 10**300])
def test_an_offset_is_added_as_a_float_however_large_the_integer(offset):
    attributes = {"add_offset": offset, "scale_factor": 2**70}
    for kept in (attributes, {"add_offset": offset}):
        assert_equal_bits(store_of(np.array([1, 2], "i2"), kept, 3))


def test_the_fill_value_of_format_2_goes_before_an_attribute_that_means_nothing():
    store = store_of(np.array([1, 2], "i2"), {"_FillValue": 2.5}, 2, fill_value=2)
    assert np.isnan(our_values(store)).tolist() == [False, True]
    assert_equal_bits(store)


def test_truth_values_may_say_that_they_are():
    store = store_of(np.array([True, False]), {"dtype": "bool"}, 3)
    assert_equal_bits(store)


def test_stored_numbers_are_there_without_decoding():
    store = store_of(np.array([1, 2], "i2"), {"scale_factor": 0.5, "_Unsigned": "true"}, 3)
    array = read_arrays(store, "a", decode_cf=False)["a"]
    assert (array.cf, array.dtype) == (None, np.dtype("i2"))
