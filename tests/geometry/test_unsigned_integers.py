"""`_Unsigned` gives the bits that xarray gives, or an error: never numbers of the wrong sign."""

import itertools
import warnings

import numpy as np
import pytest
import xarray as xr
import zarr

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.cf_packing import CFPacking
from torchdata_insitu.geometry.metadata import read_arrays
from torchdata_insitu.geometry.value_decoding import ValueDecoding

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
PACKINGS = [
    {},
    {"scale_factor": 0.1},
    {"add_offset": 3},
    {"scale_factor": 0.1, "add_offset": -7.3},
    {"scale_factor": np.float32(0.1)},
    {"scale_factor": np.float32(0.1), "add_offset": np.float32(-7.3)},
    {"scale_factor": 3},
]


def other(code):
    """The dtype of the other sign, and the text that asks for it."""
    return np.dtype({"i": "u", "u": "i"}[code[0]] + code[1:]), {"i": "true", "u": "false"}[code[0]]


def edges(dtype):
    """Numbers of a dtype, those at the limits of either sign among them."""
    all_bits = (1 << 8 * dtype.itemsize) - 1
    bits = [0, 1, 7, all_bits // 2, all_bits // 2 + 1, all_bits - 6, all_bits - 1, all_bits]
    return np.array(bits, f"u{dtype.itemsize}").view(dtype)


def xarray_values(values, attributes):
    variable = xr.Variable("x", values, attributes)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return xr.conventions.decode_cf_variable("a", variable, decode_times=False).values


def decoded(packing, stored):
    """Our numbers, decoded into other memory and where they lie."""
    if packing is None:
        return stored.astype(stored.dtype.newbyteorder("="))
    out = np.empty(stored.shape, packing.dtype)
    packing.decode(stored, out)
    if packing.in_place:
        slot = np.empty_like(out)
        slot.view(np.uint8)[...] = stored.view(np.uint8)
        packing.decode(slot, slot)
        assert slot.tobytes() == out.tobytes()
    return out


def holds(dtype, value):
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def combinations(stored):
    """Of `_FillValue`, `missing_value` and the packing; None for an attribute that is not there."""
    all_ones = int(np.array(-1, "i8").astype(stored))
    meant = int(np.array(-1, "i8").astype(other(stored.str[1:])[0]))
    nan = float("nan")
    fills = [None, 7, 7.0, nan, all_ones, meant, int(np.iinfo(stored).min)]
    missing = [None, 7, nan, 1e30, all_ones, meant, [7, 300.5], [meant, 7, 1]]
    return itertools.product(fills, missing, PACKINGS)


def given(**attributes):
    return {key: value for key, value in attributes.items() if value is not None}


def is_refused(attributes, stored):
    """Where xarray fails, or masks nothing with what is meant to."""
    fills = [v for v in [attributes.get("_FillValue", np.nan)] if not np.isnan(v)]
    missing = [v for v in np.ravel(attributes.get("missing_value", np.nan)) if not np.isnan(v)]
    if attributes.get("scale_factor") == 3 and (fills or missing):
        return True
    read_as, _ = other(stored.str[1:])
    return any(
        holds(stored, value) and not holds(read_as, value) and value not in fills
        for value in missing
    )


@pytest.mark.parametrize("code", INTEGERS)
def test_every_combination_with_other_attributes_equals_xarray_or_is_refused(code):
    stored = np.dtype(code)
    signed = np.dtype(stored.str.replace("u", "i"))
    read_as, text = other(code)
    n_equal = n_refused = 0
    for number, (fill, missing, packed) in enumerate(combinations(stored)):
        values = edges(stored).astype(stored.newbyteorder("<>"[number % 2]))
        attributes = given(_Unsigned=text, _FillValue=fill, missing_value=missing, **packed)
        if is_refused(attributes, stored):
            with pytest.raises(GeometryError, match=r"missing_value|integer scale_factor 3"):
                CFPacking.from_attributes("a", attributes, values.dtype)
            n_refused += 1
            continue
        is_number = fill is not None and not np.isnan(fill)
        fill_value = reference = None
        if is_number and number // 2 % 2 and holds(stored, fill):
            # As in format 2, where it is a number of the dtype of the array.
            fill_value = reference = stored.type(fill)
        elif is_number:
            # xarray takes the signed one of the two numbers, and fails at the other.
            reference = int(
                np.array(int(fill), stored if holds(stored, fill) else read_as).view(signed)
            )
        packing = CFPacking.from_attributes("a", attributes, values.dtype, fill_value=fill_value)
        found = decoded(packing, values)
        # Of native numbers, since xarray swaps the bytes of a fill value among big-endian ones.
        expected = xarray_values(edges(stored), {**attributes, **given(_FillValue=reference)})
        assert found.dtype == expected.dtype, attributes
        assert found.dtype.isnative
        assert packing.in_place == (values.dtype.isnative and found.dtype == read_as)
        assert found.tobytes() == expected.tobytes(), (attributes, found, expected)
        n_equal += 1
    assert n_equal > 200
    assert n_refused > 50


@pytest.mark.parametrize("code", INTEGERS)
def test_integers_that_have_the_sign_that_is_meant_are_decoded_as_ever(code):
    stored = np.dtype(code)
    unsigned = {"i": "false", "u": "true"}[stored.kind]
    for fill, missing, packed in combinations(stored):
        attributes = given(_FillValue=fill, missing_value=missing, **packed)
        plain, marked = (
            packing_or_error(each, stored)
            for each in (attributes, {**attributes, "_Unsigned": unsigned})
        )
        assert plain == marked
    values = edges(stored)
    np.testing.assert_array_equal(
        xarray_values(values, {"_Unsigned": unsigned}), values, strict=True
    )


def packing_or_error(attributes, stored):
    try:
        return CFPacking.from_attributes("a", attributes, stored)
    except GeometryError as error:
        return str(error)


def written(values, attributes, zarr_format, **options):
    """A store whose array 'a' xarray can open too."""
    store = zarr.storage.MemoryStore()
    zarr.create_group(store, zarr_format=zarr_format)
    named = {"dimension_names": ["x"], "attributes": attributes}
    if zarr_format == 2:
        named = {"attributes": {**attributes, "_ARRAY_DIMENSIONS": ["x"]}}
    elif not values.dtype.isnative:
        options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    array = zarr.create_array(
        store, name="a", shape=values.shape, chunks=(3,), dtype=values.dtype,
        zarr_format=zarr_format, **named, **options,
    )  # fmt: skip
    array[...] = values
    return store


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("code", INTEGERS)
def test_stores_are_read_as_xarray_reads_them(code, zarr_format):
    stored = np.dtype(code)
    values = edges(stored)
    _, text = other(code)
    fill = -1 if stored.kind == "i" else int(np.iinfo(stored).max)
    for order, attributes, filled in [
        ("<", {}, None),
        (">", {"scale_factor": 0.5}, None),
        (">", {}, fill),
        ("<", {"add_offset": 1.0, "scale_factor": 0.1}, fill),
    ]:
        marked = {**attributes, "_Unsigned": text}
        options = {}
        if zarr_format == 2:
            options["fill_value"] = filled
        elif filled is not None:
            # The fill value of format 3 is not looked at; of unsigned bytes, xarray wants it meant.
            marked["_FillValue"] = filled if stored.kind == "i" else -1
        store = written(values.astype(stored.newbyteorder(order)), marked, zarr_format, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with xr.open_zarr(
                store, consolidated=False, chunks=None, zarr_format=zarr_format
            ) as opened:
                expected = opened["a"].to_numpy()
        array = read_arrays(store, "a")["a"]
        found = decoded(array.cf, values.astype(array.stored_dtype))
        assert array.dtype == found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


NO_SIGN = ["yes", "", "truee", [], ["true"], {}, 2, -1, 1.0, "null"]


def test_a_spelling_that_xarray_does_not_follow_is_refused_where_the_sign_is_another():
    for value in ("True", "TRUE", True, 1, "1", *NO_SIGN):
        refuse("i2", value)
    for value in ("False", "FALSE", False, 0, "0", *NO_SIGN):
        refuse("u4", value)
    # What is stored with the sign that is meant needs no decoding, however that is spelled.
    for code, values in [
        ("i2", ("False", "FALSE", False, 0, "0", "false", None)),
        ("u4", ("True", "TRUE", True, 1, "1", "true", None)),
    ]:
        for value in values:
            assert CFPacking.from_attributes("t2m", {"_Unsigned": value}, np.dtype(code)) is None


def refuse(code, value):
    for more in ({}, {"scale_factor": 0.5}, {"dtype": "bool"}):
        with pytest.raises(
            GeometryError, match="array 't2m' has the attribute _Unsigned"
        ) as caught:
            CFPacking.from_attributes("t2m", {"_Unsigned": value, **more}, np.dtype(code))
        assert f"_Unsigned={value!r}, which" in str(caught.value)
        assert "decode_cf=False" in str(caught.value)


@pytest.mark.parametrize("code", ["f2", "f4", ">f8", "c8", "?"])
def test_what_has_no_other_sign_is_left_alone_as_in_xarray(code):
    values = np.array([0, 1, 1], code)
    for value in ("true", "false", "yes", 1):
        attributes = {"_Unsigned": value}
        assert CFPacking.from_attributes("a", attributes, values.dtype) is None
        expected = xarray_values(values, attributes)
        np.testing.assert_array_equal(expected, values)


def test_truth_values_are_true_with_either_sign():
    values = np.array([-1, 0, 1], "i1")
    attributes = {"dtype": "bool", "_Unsigned": "true"}
    packing = CFPacking.from_attributes("a", attributes, values.dtype)
    expected = xarray_values(values, attributes)
    np.testing.assert_array_equal(decoded(packing, values), expected, strict=True)


@pytest.mark.parametrize(
    "attributes, code, fact",
    [
        ({"missing_value": -1}, "i1", "missing_value -1, which .* uint8"),
        ({"missing_value": [3, -2], "_FillValue": -1}, ">i2", "missing_value -2, which .* uint16"),
        ({"missing_value": 200}, "u1", "missing_value 200, which .* int8"),
        ({"_FillValue": 256}, "i1", "_FillValue 256, which int8 or uint8 cannot hold"),
        ({"_FillValue": -129}, "i1", "_FillValue -129, which int8 or uint8 cannot hold"),
        ({"_FillValue": -2.5}, ">i2", "_FillValue -2.5, which int16 or uint16 cannot hold"),
        ({"_FillValue": -(2**31) - 1}, "u4", "which uint32 or int32 cannot hold"),
        ({"_FillValue": 2.0**64}, "u8", "which uint64 or int64 cannot hold"),
    ],
)
def test_a_fill_value_that_masks_nothing_is_refused(attributes, code, fact):
    dtype = np.dtype(code)
    attributes = {"_Unsigned": {"i": "true", "u": "false"}[dtype.kind], **attributes}
    with pytest.raises(GeometryError, match=fact) as caught:
        CFPacking.from_attributes("t2m", attributes, dtype)
    assert "array 't2m'" in str(caught.value)
    assert "decode_cf=False" in str(caught.value)


def test_several_fill_values_mean_what_each_of_them_means():
    values = np.array([-1, -2, 3, 4, -5], "i1")
    attributes = {"_Unsigned": "true", "_FillValue": [-1, 254, 3, float("nan")]}
    packing = CFPacking.from_attributes("a", attributes, values.dtype)
    found = decoded(packing, values)
    np.testing.assert_array_equal(found, np.array([np.nan, np.nan, np.nan, 4, 251], "f4"))


def test_a_part_of_a_slot_is_decoded_from_values_in_any_layout():
    stored = np.arange(-12, 12, dtype=">i2").reshape(4, 6)
    packing = CFPacking.from_attributes("a", {"_Unsigned": "true"}, stored.dtype)
    slot = np.zeros((6, 7), "u2")
    packing.decode(stored.T[::-1], slot[:, 2:6])
    np.testing.assert_array_equal(slot[:, 2:6], stored.T[::-1].astype("u2"))
    assert not slot[:, :2].any()
    assert not slot[:, 6:].any()


def test_casts_start_from_the_sign_that_is_meant():
    values = np.array([-1, 0, 127], "i1")
    attributes = {"_Unsigned": "true"}
    for target in ("u1", "i2", "f4", "u8", "f8"):
        decoding = ValueDecoding.choose(
            "a", values.dtype, attributes=attributes, dtype=np.dtype(target)
        )
        out = np.empty(3, target)
        decoding.decode(values, out)
        assert out.tolist() == [255, 0, 127]
    signed = {"_Unsigned": "false"}
    with pytest.raises(GeometryError, match="decode_cf=False gives the stored uint8"):
        ValueDecoding.choose("a", np.dtype("u1"), attributes=signed, dtype=np.dtype("u1"))


def test_what_becomes_of_an_array_is_said():
    texts = {
        "int8 -> uint8": ("i1", {"_Unsigned": "true"}),
        ">i2 -> uint16": (">i2", {"_Unsigned": "true"}),
        "uint32 -> int32": ("u4", {"_Unsigned": "false"}),
        "int16 -> float64": ("i2", {"_Unsigned": "true", "scale_factor": 0.5}),
        "uint8": ("u1", {"_Unsigned": "true"}),
    }
    for text, (code, attributes) in texts.items():
        assert str(ValueDecoding.choose("a", np.dtype(code), attributes=attributes)) == text


def test_a_field_with_the_attribute_is_refused_where_it_would_mean_something():
    stored = np.dtype([("n", "i1"), ("x", "f4")])
    attributes = {"_Unsigned": "true"}
    with pytest.raises(GeometryError, match="_Unsigned='true', which means nothing for a field"):
        ValueDecoding.choose("a", stored, field="n", attributes=attributes)
    assert ValueDecoding.choose("a", stored, field="x", attributes=attributes).cf is None
    assert ValueDecoding.choose("a", np.dtype("M8[s]"), attributes=attributes).cf is None
