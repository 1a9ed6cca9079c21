import numpy as np
import pytest
import zarr

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_options import ArrayOptions
from torchdata_insitu.geometry.metadata import read_arrays
from torchdata_insitu.testing import make_store

STRUCT = np.dtype([("u", "f4"), ("flag", "u1")])


@pytest.fixture
def store():
    """A plain float, a plain integer and an array of structured values."""
    made = make_store({"t": (6, 4)}, chunks=(2, 4), dtype="f8")
    zarr.create_array(made, name="n", shape=(6,), chunks=(2,), dtype="i4")
    zarr.create_array(made, name="wind/obs", shape=(6,), chunks=(2,), dtype=STRUCT)
    return made


def test_a_dtype_for_all_and_by_array(store):
    arrays = read_arrays(store, ["t", "n"], dtype="float32")
    assert [array.dtype.name for array in arrays.values()] == ["float32", "float32"]
    arrays = read_arrays(store, ["t", "n"], dtype={"n": "int16"})
    assert [array.dtype.name for array in arrays.values()] == ["float64", "int16"]
    arrays = read_arrays(store, ["t", "n"], dtype={"n": None, "t": np.float16})
    assert [array.dtype.name for array in arrays.values()] == ["float16", "int32"]


def test_a_field_for_all_and_by_array(store):
    assert read_arrays(store, "wind/obs", field="u")["wind/obs"].dtype == np.dtype("f4")
    arrays = read_arrays(store, field={"/wind//obs/": "flag"})
    assert arrays["wind/obs"].dtype == np.dtype("u1")
    assert set(arrays) == {"t", "n", "wind/obs"}


def test_what_does_not_fit_an_option_for_all_is_left_out_like_arrays_without_the_axis(store):
    assert set(read_arrays(store)) == {"t", "n"}
    assert set(read_arrays(store, field="u")) == {"wind/obs"}
    assert set(read_arrays(store, dtype="int16")) == {"n"}


@pytest.mark.parametrize(
    "options, fact",
    [
        ({"dtype": {"t": "int16"}}, r"'t' has values of dtype float64.*int16"),
        ({"field": {"t": "u"}}, r"'t' has dtype float64, which has no fields"),
        ({"field": {"wind/obs": "w"}}, r"no field 'w' but 'u' \(float32\), 'flag' \(uint8\)"),
    ],
)
def test_what_does_not_fit_an_option_of_its_own_is_refused(store, options, fact):
    with pytest.raises(GeometryError, match=fact):
        read_arrays(store, **options)


@pytest.mark.parametrize("option, value", [("dtype", "f4"), ("field", "u"), ("sample_axis", 0)])
def test_a_mapping_that_names_an_array_that_is_not_opened_is_refused(store, option, value):
    fact = f"{option} names array 'rain', which is not among the arrays opened: 't', 'n'"
    with pytest.raises(GeometryError, match=fact):
        read_arrays(store, ["t", "n"], **{option: {"rain": value}})


def test_of_many_arrays_the_first_are_listed():
    options = ArrayOptions(dtype={"rain": "f4"})
    with pytest.raises(GeometryError, match=r"'19' and 180 more$"):
        options.check_opened(map(str, range(200)))
    with pytest.raises(GeometryError, match=r"opened: no arrays$"):
        options.check_opened([])


@pytest.mark.parametrize("dtype", ["flot32", {"t": "flot32"}, "M8[ns]", {"t": object}])
def test_a_dtype_that_is_none_is_refused_before_anything_is_read(dtype):
    with pytest.raises(GeometryError, match=r"dtype .*give one of bool, complex128"):
        ArrayOptions(dtype=dtype)


@pytest.mark.parametrize("field", [1, {"t": 1}, ["u"]])
def test_a_field_that_is_no_name_is_refused(field):
    with pytest.raises(GeometryError, match="field is the name of a field"):
        ArrayOptions(field=field)
