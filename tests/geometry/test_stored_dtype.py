"""Data types in documents are those that Zarr reads off them."""

import json

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.each_case import each_case
from torchdata_insitu.geometry.stored_dtype import is_readable, numpy_dtype

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
TIMES = ["M8[ns]", "M8[D]", "m8[10s]", "m8[7W]", "M8[us]", "M8[25Y]"]
STRUCTS = [
    [("u", "f4"), ("v", "i4")],
    [("u", "u1"), ("v", "f8"), ("w", "?"), ("t", "M8[ns]"), ("text", "U3"), ("raw", "V5")],
    [("outer", [("inner", "c8"), ("s", "S7")]), ("v", "i2")],
]


def written(dtype, zarr_format):
    """What Zarr writes for a dtype, and what it opens."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(
        store, name="a", shape=(2,), chunks=(2,), dtype=dtype, zarr_format=zarr_format
    )
    key = "a/zarr.json" if zarr_format == 3 else "a/.zarray"
    document = json.loads(sync(store.get(key, default_buffer_prototype())).to_bytes())
    return document["data_type" if zarr_format == 3 else "dtype"], array.dtype


@each_case("zarr_format", [2, 3])
@each_case("dtype", [*NUMBERS, *TIMES, *STRUCTS])
def test_every_dtype_that_zarr_writes_is_read_as_zarr_reads_it(dtype, zarr_format):
    value, expected = written(np.dtype(dtype), zarr_format)
    found = numpy_dtype(zarr_format, value)
    assert found == expected
    assert found.fields == expected.fields
    assert is_readable(found)


@pytest.mark.parametrize("dtype", [">f4", ">c16", ">M8[D]", [("u", ">f4"), ("v", "<i4")]], ids=str)
def test_format_2_keeps_the_byte_order(dtype):
    value, expected = written(np.dtype(dtype), 2)
    assert str(numpy_dtype(2, value)) == str(expected) == str(np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["U5", "S5", "V5"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text_and_bytes_have_a_size_and_are_not_readable(dtype, zarr_format):
    found = numpy_dtype(zarr_format, written(np.dtype(dtype), zarr_format)[0])
    assert found == np.dtype(dtype)
    assert not is_readable(found)


def test_times_may_have_no_unit():
    settings = {"unit": "generic", "scale_factor": 1}
    found = numpy_dtype(3, {"name": "numpy.timedelta64", "configuration": settings})
    assert found == numpy_dtype(2, "<m8") == np.dtype("m8")


def test_the_older_spelling_of_structured_values_is_read():
    fields = [["u", "float32"], ["v", "uint8"]]
    found = numpy_dtype(3, {"name": "structured", "configuration": {"fields": fields}})
    assert found == np.dtype([("u", "f4"), ("v", "u1")])


@each_case(
    "zarr_format, value",
    [
        (2, None),
        (2, 4),
        (2, {"name": "<f4"}),
        (2, "float32"),
        (2, "<f3"),
        (2, "<M8[fortnight]"),
        (2, ["<f4"]),
        (2, [["u"]]),
        (2, [["u", "<f4"], ["v", None]]),
        (2, [[1, "<f4"]]),
        (2, [["u", "<f4", "x"]]),
        (2, [["u", "<f4", [2], 1]]),
        (2, "<M8[ns/0]"),
        (2, "<M8[ns/1]"),
        (2, "<M8[0s]"),
        (2, "<M8[4294967297s]"),
        (2, "<M8[generic/0]"),
        (2, "<f4[s]"),
        (2, "|V99999999999999999999"),
        (2, [["u", "|V2147483647"], ["v", "|V2147483647"]]),
        (2, [["u", "<f4", [65536, 65536]]]),
        (2, [["u", "<f4", [-1]]]),
        (3, None),
        (3, ["float32"]),
        (3, "<f4"),
        (3, "string"),
        (3, "int4"),
        (3, {"name": ["float32"]}),
        (3, {"name": "numpy.datetime64"}),
        (3, {"name": "numpy.datetime64", "configuration": "ns"}),
        (3, {"name": "numpy.datetime64", "configuration": {"unit": "ns"}}),
        (3, {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 0}}),
        (3, {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 2**31}}),
        (3, {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 1.5}}),
        (3, {"name": "numpy.timedelta64", "configuration": {"unit": "x", "scale_factor": 1}}),
        (3, {"name": "numpy.timedelta64", "configuration": {"unit": "s/0", "scale_factor": 1}}),
        (3, {"name": "numpy.timedelta64", "configuration": {"unit": ["s"], "scale_factor": 1}}),
        (3, {"name": "struct", "configuration": {"fields": []}}),
        (3, {"name": "struct", "configuration": {"fields": [{"name": "u"}]}}),
        (3, {"name": "struct", "configuration": {"fields": [["u", "bfloat16"]]}}),
        (3, {"name": "struct", "configuration": {"fields": ["float32"]}}),
        (3, {"name": "struct", "configuration": {"fields": {"u": "float32"}}}),
        (3, {"name": "fixed_length_utf32", "configuration": {"length_bytes": 6}}),
        (3, {"name": "raw_bytes", "configuration": {"length_bytes": 0}}),
    ],
)
def test_what_numpy_lacks_is_none(zarr_format, value):
    """Some of these end the process where numpy is asked."""
    assert numpy_dtype(zarr_format, value) is None


def nested(depth):
    """Structures inside structures, in both formats."""
    in_2, in_3 = "<f4", "float32"
    for _ in range(depth):
        in_2 = [["u", in_2]]
        fields = [{"name": "u", "data_type": in_3}]
        in_3 = {"name": "struct", "configuration": {"fields": fields}}
    return (2, in_2), (3, in_3)


@pytest.mark.parametrize("depth", [17, 100, 300, 10_000])
def test_structures_have_a_depth(depth):
    for zarr_format, value in nested(depth):
        assert numpy_dtype(zarr_format, value) is None
    for zarr_format, value in nested(16):
        assert numpy_dtype(zarr_format, value).names == ("u",)


@pytest.mark.parametrize("dtype", ["O", [("u", "O"), ("v", "i4")], [("u", "f4", (2,))]], ids=str)
def test_objects_and_fields_with_a_shape_are_not_readable(dtype):
    assert not is_readable(np.dtype(dtype))
