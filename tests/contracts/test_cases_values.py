"""Cases from the field about values: byte order, axes, dtypes, filters, packed numbers.

Failures that users of other loaders over chunked arrays reported, one test or more a case. The
numbers are those of the list of cases that the project keeps. What is expected is what was written,
or what xarray and zarr say.
"""

import itertools
import json
import warnings

import numcodecs
import numpy as np
import pytest
import xarray
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.case_stores import (
    BOTH_FORMATS,
    check,
    drawn,
    keys_of,
    loader_of,
    read,
    write,
)
from tests.contracts.chains import counted
from tests.contracts.packed_stores import packed_store
from tests.contracts.refusals import refused
from torchdata_insitu.errors import DecodeError, GeometryError
from torchdata_insitu.testing import make_store


@BOTH_FORMATS
@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8", ">f8", ">u4"])
def test_t10_big_endian_arrays_come_as_native_numbers(dtype, zarr_format):
    values = counted((17, 3)).astype(dtype)
    options = {}
    if zarr_format == 3:
        options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    store = write(values, (4, 2), zarr_format=zarr_format, **options)
    stored = json.loads(read(store, "t/.zarray" if zarr_format == 2 else "t/zarr.json"))
    assert '">' in json.dumps(stored) or '"big"' in json.dumps(stored)
    check(store, {"t": values})


RECORDS = [("a", ">f4"), ("b", ">i4")]


def records(n=13):
    values = np.zeros(n, dtype=RECORDS)
    values["a"], values["b"] = np.arange(n) / 4, -np.arange(n)
    return values


@pytest.mark.parametrize("field", ["a", "b"])
def test_t11_one_field_of_a_structured_array(field):
    values = records()
    store = write(values, (4,), zarr_format=2)
    arrays = tdi.open_arrays(store, field=field)
    check(store, {"t": values[field]}, views=arrays)


@pytest.mark.parametrize("field", ["a", "b"])
def test_t11_one_field_of_a_structured_array_of_format_3(field):
    values = records().astype([("a", "<f4"), ("b", "<i4")])
    store = write(values, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = tdi.open_arrays(store, field=field)
        check(store, {"t": values[field]}, views=arrays)


def test_t11_a_structured_array_without_a_field_is_refused_with_its_fields():
    store = write(records(), (4,), zarr_format=2)
    with refused(GeometryError, "'t'", "field=", "'a'", "'b'"):
        tdi.open_arrays(store, "t")
    with refused(GeometryError, "'t'", "'c'", "'a'", "'b'"):
        tdi.open_arrays(store, "t", field="c")


F_ORDERS = {
    "format 2, order F": {"zarr_format": 2, "order": "F"},
    "format 2, order F, filter": {
        "zarr_format": 2,
        "order": "F",
        "filters": [numcodecs.Delta("<i4", "<i4")],
    },
    "format 3, transpose": {
        "filters": [{"name": "transpose", "configuration": {"order": [2, 0, 1]}}]
    },
    "format 3, transpose, uncompressed": {
        "filters": [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}],
        "compressors": None,
    },
    "format 3, transpose, filter": {
        "filters": [
            {"name": "transpose", "configuration": {"order": [1, 2, 0]}},
            {"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i4"}},
        ]
    },
}


@pytest.mark.parametrize("order", F_ORDERS)
@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_t12_fortran_order_comes_as_contiguous_batches(order, axis):
    values = counted((9, 5, 11), "int32")
    store = write(values, (4, 2, 3), **F_ORDERS[order])
    arrays = tdi.open_arrays(store, sample_axis=axis)
    check(store, {"t": np.moveaxis(values, axis, 0)}, views=arrays)


TIMES = ["datetime64[ns]", "datetime64[s]", "timedelta64[ms]", "datetime64[D]"]


@pytest.mark.parametrize("dtype", TIMES)
@BOTH_FORMATS
def test_t16_times_come_as_int64_with_their_unit(zarr_format, dtype):
    numbers = np.arange(11) * 1000
    values = numbers.astype(dtype)
    values[3] = "NaT"
    store = write(values, (4,), zarr_format=zarr_format)
    expected = numbers.astype("int64")
    expected[3] = np.iinfo("int64").min
    t = tdi.open_arrays(store, "t")["t"]
    with loader_of(store, {"when": t.window(0, 1)}) as loader:
        assert loader.units == {"when": np.datetime_data(values.dtype)[0]}
        found = drawn(loader)
    assert found["when"].dtype == np.dtype("int64")
    assert found["when"].tolist() == list(map(list, itertools.pairwise(expected.tolist())))


KEPT = ["bool", "u1", "u2", "u4", "u8", "i1", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", KEPT)
@BOTH_FORMATS
def test_t17_dtypes_that_torch_holds_are_kept(zarr_format, dtype):
    rng = np.random.Generator(np.random.PCG64(7))
    values = rng.integers(0, 2 if dtype == "bool" else 120, (13, 3)).astype(dtype)
    if dtype == "u8":
        values[0, 0] = np.iinfo("u8").max
    check(write(values, (4, 2), zarr_format=zarr_format), {"t": values})


@pytest.mark.parametrize("stored, wanted", [("f8", "f4"), ("u1", "f4"), ("i8", "i4"), ("f4", "f8")])
def test_t17_arrays_are_cast_on_request(stored, wanted):
    values = counted((13, 3), stored)
    store = write(values, (4, 2))
    arrays = tdi.open_arrays(store, dtype=wanted)
    check(store, {"t": values.astype(wanted)}, views=arrays)


def test_t17_a_cast_to_another_kind_is_refused():
    store = write(counted((13, 3), "f4"), (4, 2))
    with refused(GeometryError, "'t'", "float32", "int32"):
        tdi.open_arrays(store, "t", dtype="int32")


# By name: dtype of the array, filters, compressor. What comes back may differ from what went in.
V2_CHAINS = {
    "delta of another type": ("<i4", [numcodecs.Delta("<i4", "<i2")], None),
    "fixed scale and offset": ("<f8", [numcodecs.FixedScaleOffset(10, 8, "<f8", "<i2")], None),
    "quantize": ("<f4", [numcodecs.Quantize(1, "<f4")], numcodecs.Zstd()),
    "packed bits": ("bool", [numcodecs.PackBits()], None),
    "shuffle": ("<f4", [numcodecs.Shuffle(4)], numcodecs.Zlib()),
    "blosc, bits shuffled": (
        "<f4",
        None,
        numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.BITSHUFFLE),
    ),
    "zlib": ("<i2", None, numcodecs.Zlib()),
    "lzma": ("<i2", None, numcodecs.LZMA()),
    "nothing": ("<i2", None, None),
}


@pytest.mark.parametrize("chain", V2_CHAINS)
def test_t19_filters_and_compressors_of_format_2(chain):
    dtype, filters, compressor = V2_CHAINS[chain]
    values = (counted((21, 5)) % 97).astype(dtype)
    store = write(
        values, (4, 3), zarr_format=2, filters=filters, compressors=compressor, fill_value=0
    )
    as_read = zarr.open_array(store, path="t", mode="r")[...]
    np.testing.assert_allclose(as_read.astype("f8"), values.astype("f8"), atol=0.1)
    check(store, {"t": as_read})


PACKINGS = {
    "scale": ("i2", {"scale_factor": 0.01}),
    "offset": ("i2", {"add_offset": 273.15}),
    "scale and offset": ("i2", {"scale_factor": 0.01, "add_offset": 273.15}),
    "fill value": ("i2", {"_FillValue": 5}),
    "missing value": ("i2", {"missing_value": 7, "scale_factor": 0.5}),
    "float with a finite fill value": ("f4", {"_FillValue": 5.0}),
}


@pytest.mark.filterwarnings("ignore:.*multiple fill values")
@pytest.mark.parametrize("packing", PACKINGS)
@BOTH_FORMATS
def test_t21_packed_numbers_are_those_of_xarray(zarr_format, packing):
    dtype, attributes = PACKINGS[packing]
    store = packed_store(dtype, attributes, zarr_format)
    with xarray.open_zarr(
        store, consolidated=False, zarr_format=zarr_format, chunks=None
    ) as opened:
        expected = opened["t"].to_numpy()
    # The fill value 0 of format 2 masks too, in an array with dimensions.
    is_masked = bool({"_FillValue", "missing_value"} & set(PACKINGS[packing][1]))
    assert np.isnan(expected).any() == (is_masked or zarr_format == 2)
    check(store, {"t": expected})


UNSIGNED = {
    "bytes": ("i1", "true", {}, None),
    "bytes with a fill value": ("i1", "true", {}, -1),
    "bytes with a scale": ("i1", "true", {"scale_factor": 0.5, "add_offset": -10.0}, -3),
    "big-endian": (">i2", "true", {}, None),
    "big-endian with a scale": (">i2", "true", {"scale_factor": 0.1}, -1),
    "four bytes": ("i4", "true", {}, None),
    "eight bytes": ("i8", "true", {}, -1),
    "signed ones": ("u1", "false", {}, None),
    "signed ones with a fill value": ("u2", "false", {"add_offset": 1.5}, 2**16 - 1),
    "as they are stored": ("u1", "true", {}, None),
}


@pytest.mark.parametrize("numbers", UNSIGNED)
@BOTH_FORMATS
def test_t21_unsigned_numbers_are_those_of_xarray(zarr_format, numbers):
    code, unsigned, attributes, fill = UNSIGNED[numbers]
    dtype = np.dtype(code)
    ends = [np.iinfo(dtype).min, np.iinfo(dtype).max, fill or 0]
    values = np.resize(np.array([*ends, *range(40)], dtype), (11, 4)).astype(dtype)
    attributes = {**attributes, "_Unsigned": unsigned}
    options = {"fill_value": fill}
    if zarr_format == 3:
        options["fill_value"] = -2 if dtype.kind == "i" else 254
        if fill is not None:
            # xarray takes the signed one of the two numbers that these bits are.
            attributes["_FillValue"] = fill if dtype.kind == "i" else -1
        if dtype.str[0] == ">":
            options["serializer"] = {"name": "bytes", "configuration": {"endian": "big"}}
    store = make_store(
        {"t": values},
        chunks=(3, 3),
        dims=("time", "x"),
        zarr_format=zarr_format,
        attributes={"t": attributes},
        **options,
    )
    # A stored chunk that is missing holds the fill value of the array, with the sign that is meant.
    sync(store.delete(keys_of(store)[2]))
    with xarray.open_zarr(
        store, consolidated=False, zarr_format=zarr_format, chunks=None
    ) as opened:
        expected = opened["t"].to_numpy()
    assert (expected.dtype.kind == "f") == (fill is not None or "scale_factor" in attributes)
    check(store, {"t": expected})
    with loader_of(store) as loader:
        became = "" if dtype.name == expected.dtype.name else f" -> {expected.dtype.name}"
        stored = dtype.name if dtype.isnative else dtype.str
        assert f"t: {stored}{became} (11, 4)" in tdi.describe(loader)
    raw = tdi.open_arrays(store, "t", decode_cf=False)
    check(store, {"t": zarr.open_array(store, path="t")[...]}, views=raw)


def test_t21_an_unsigned_attribute_that_cannot_be_followed_is_refused_with_the_way_out():
    """Attributes that are not supported are an error: never are raw numbers taken for others."""
    store = make_store(
        {"t": (11, 4)}, dtype="i1", dims=("time", "x"), attributes={"t": {"_Unsigned": "True"}}
    )
    with refused(GeometryError, "'t'", "_Unsigned", "decode_cf=False"):
        tdi.open_arrays(store, "t")
    raw = tdi.open_arrays(store, "t", decode_cf=False)
    check(store, {"t": zarr.open_array(store, path="t")[...]}, views=raw)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_t21_unsigned_numbers_are_decoded_where_they_lie(codec, tmp_path):
    values = np.arange(-22, 22, dtype="i1").reshape(11, 4)
    attributes = {"t": {"_Unsigned": "true"}}
    store = make_store(
        {"t": values}, chunks=(3, 4), codec=codec, path=tmp_path, attributes=attributes
    )
    with loader_of(store) as loader:
        assert "straight into the slot" in tdi.describe(loader)
    check(store, {"t": values.view("u1")})


def test_t21_unsigned_numbers_are_cast_on_request():
    values = np.arange(-22, 22, dtype="i1").reshape(11, 4)
    store = make_store({"t": values}, attributes={"t": {"_Unsigned": "true"}})
    for dtype in ("int16", "float32"):
        arrays = tdi.open_arrays(store, dtype=dtype)
        check(store, {"t": values.view("u1").astype(dtype)}, views=arrays)
    arrays = tdi.open_arrays(store, dtype="int8")
    wanted = pytest.raises(DecodeError, match="does not fit int8, which holds -128 to 127")
    with loader_of(store, arrays) as loader, wanted:
        drawn(loader)
