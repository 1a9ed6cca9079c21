import numpy as np
import pytest

from tests.each_case import each_case
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument

FIELDS = [
    {"name": "u", "data_type": "float32"},
    {
        "name": "v",
        "data_type": {
            "name": "numpy.timedelta64",
            "configuration": {"unit": "s", "scale_factor": 10},
        },
    },
]


def format_2(attributes=None, **document):
    return ArrayDocument("a", {"zarr_format": 2, "shape": [9, 4], **document}, attributes or {})


def format_3(**document):
    return ArrayDocument("a", {"zarr_format": 3, "shape": [9, 4], **document}, {})


@pytest.mark.parametrize(
    "array, expected",
    [
        (format_3(dimension_names=["time", None]), ("time", None)),
        (format_3(dimension_names=["time", ""]), ("time", None)),
        (format_3(), (None, None)),
        (format_3(dimension_names=["time"]), (None, None)),
        (format_2({"_ARRAY_DIMENSIONS": ["time", "lat"]}), ("time", "lat")),
        (format_2(), (None, None)),
        (format_2(_NCZARR_ARRAY={"dimrefs": ["/time", "/run/lat"]}), ("time", "lat")),
    ],
)
def test_dimension_names_are_found_where_each_writer_puts_them(array, expected):
    assert array.dimension_names == expected
    assert array.has_dimension_names == any(expected)


@pytest.mark.parametrize(
    "array, expected",
    [
        (format_2(dtype=">f4"), ">f4"),
        (format_2(dtype="|b1"), "?"),
        (format_3(data_type="complex64"), "<c8"),
        (format_3(data_type={"name": "uint16"}, codecs=[{"name": "bytes"}]), "<u2"),
        (
            format_3(
                data_type="int16",
                codecs=[{"name": "bytes", "configuration": {"endian": "big"}}, "zstd"],
            ),
            ">i2",
        ),
        (format_2(dtype=">M8[D]"), ">M8[D]"),
        (
            format_2(dtype="<f4", codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]),
            "<f4",
        ),
        (format_2(dtype=[["u", ">f4"], ["v", "|u1"]]), [("u", ">f4"), ("v", "u1")]),
        (
            format_3(
                data_type={"name": "struct", "configuration": {"fields": FIELDS}},
                codecs=[{"name": "bytes", "configuration": {"endian": "big"}}],
            ),
            [("u", ">f4"), ("v", ">m8[10s]")],
        ),
    ],
)
def test_stored_dtype_keeps_the_stored_byte_order(array, expected):
    assert array.stored_dtype() == np.dtype(expected)


@each_case(
    "array, advice",
    [
        (format_2(dtype="<U5"), "integer codes"),
        (format_2(dtype="|S5"), "integer codes"),
        (format_2(dtype="|O"), "integer codes"),
        (format_2(dtype="|V8"), "bytes of a meaning"),
        (format_2(dtype="<f16"), "float32"),
        (format_2(dtype="<c32"), "float32"),
        (format_2(dtype=[["u", "<f4"], ["v", "|O"]]), "each of its fields"),
        (format_2(dtype=[["u", "<f4", [2]], ["v", "<i2"]]), "each of its fields"),
        (format_2(dtype=[["u", "<f4"], ["u", "<i2"]]), "each of its fields"),
        (format_2(dtype=[]), "each of its fields"),
        (format_2(dtype="f4,i2"), "float32"),
        (format_2(dtype="no such thing"), "float32"),
        (format_3(data_type="string"), "integer codes"),
        (format_3(data_type={"name": "fixed_length_utf32"}), "integer codes"),
        (format_3(data_type={"name": "numpy.datetime64"}), "unit"),
        (format_3(data_type={"name": "struct"}), "each of its fields"),
        (format_3(data_type={"name": "variable_length_bytes"}), "bytes of a meaning"),
        (format_3(data_type="r16"), "bytes of a meaning"),
        (format_3(data_type="bfloat16"), "float32"),
        (format_3(data_type="float8_e4m3"), "float32"),
        (format_3(data_type="int4"), "float32"),
        (format_3(data_type={"name": "acme.money", "configuration": {"x": 1}}), "float32"),
        (format_3(data_type=7), "float32"),
        (format_3(data_type=None), "float32"),
    ],
)
def test_a_dtype_without_tensor_is_refused_with_advice(array, advice):
    with pytest.raises(GeometryError, match=r"array 'a' has dtype .* cannot become") as caught:
        array.stored_dtype()
    assert advice in str(caught.value)


def test_a_long_dtype_is_shown_by_its_beginning():
    array = format_2(dtype=[[f"field {n}", "|O"] for n in range(1000)])
    with pytest.raises(GeometryError, match="field 0") as caught:
        array.stored_dtype()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("shape", [None, [3, -1], [3.0], "3", [True]])
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(GeometryError, match="'a' has the shape"):
        _ = ArrayDocument("a", {"zarr_format": 3, "shape": shape}, {}).shape


@pytest.mark.parametrize("version", [None, 1, 4, "3"])
def test_other_zarr_formats_are_refused(version):
    with pytest.raises(GeometryError, match=f"zarr_format {version!r}"):
        _ = ArrayDocument("a", {"zarr_format": version}, {}).zarr_format


def test_text_leaves_attributes_out_and_does_not_depend_on_key_order():
    one = ArrayDocument("a", {"zarr_format": 3, "shape": [2], "attributes": {"x": 1}}, {"x": 1})
    two = ArrayDocument("a", {"shape": [2], "zarr_format": 3}, {})
    assert one.text() == two.text() == '{"shape": [2], "zarr_format": 3}'
