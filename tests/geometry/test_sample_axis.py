import pytest

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.sample_axis import resolve_sample_axis


def array(dims, shape=(2, 9, 4)):
    document = {"zarr_format": 3, "shape": list(shape), "dimension_names": dims}
    return ArrayDocument("run/t2m", document, {})


@pytest.mark.parametrize("axis, expected", [(0, 0), (2, 2), (-1, 2), (-3, 0), ("time", 1)])
def test_numbers_count_from_both_ends_and_names_are_looked_up(axis, expected):
    assert resolve_sample_axis(array(["level", "time", None]), axis) == expected


@pytest.mark.parametrize(
    "dims, axis, text",
    [
        (["level", "time", "lat"], 3, r"3 axes but sample_axis is 3: choose .* -3 to 2"),
        (["level", "time", "lat"], -4, "3 axes but sample_axis is -4"),
        (["level", "time", "lat"], "lon", r"0 dimensions named 'lon' among \('level', 'time'"),
        (["x", "x", "y"], "x", "2 dimensions named 'x'"),
        (None, "time", "no dimension names"),
        (["level", "time", "lat"], 1.0, "not 1.0"),
        (["level", "time", "lat"], True, "not True"),
    ],
)
def test_an_axis_that_is_not_there_is_refused_by_array_and_value(dims, axis, text):
    with pytest.raises(GeometryError, match=text) as caught:
        resolve_sample_axis(array(dims), axis)
    assert "'run/t2m'" in str(caught.value)
