import pytest

from torchdata_insitu.geometry.coordinate_names import is_coordinate, named_by_attributes


@pytest.mark.parametrize(
    "attributes, expected",
    [
        ({"coordinates": "lat lon"}, {"lat", "lon"}),
        ({"grid_mapping": "crs"}, {"crs"}),
        ({"grid_mapping": "crs: x y crs2: lat"}, {"crs", "x", "y", "crs2", "lat"}),
        ({"bounds": "time_bnds"}, {"time_bnds"}),
        ({"coordinates": "../lat /lon"}, {"../lat", "/lon"}),
        ({"coordinates": ["lat"], "standard_name": "air_temperature"}, set()),
    ],
)
def test_words_of_cf_attributes_name_coordinates(attributes, expected):
    assert named_by_attributes([("t2m", False, attributes)]) == expected


def test_names_are_looked_up_from_the_group_that_says_them():
    array = ("run/t2m", False, {"coordinates": "lat ../lon"})
    group = ("run", True, {"coordinates": "height"})
    assert named_by_attributes([array, group]) == {"run/lat", "lon", "run/height"}


def test_an_array_that_names_itself_stays():
    assert named_by_attributes([("lat", False, {"coordinates": "lat lon"})]) == {"lon"}


def test_self_named_arrays_of_one_dimension_and_grid_mappings_are_coordinates():
    assert is_coordinate("run/lat", ("lat",), {})
    assert is_coordinate("crs", (), {"grid_mapping_name": "latitude_longitude"})
    assert not is_coordinate("lat", ("lat", "lon"), {})
    assert not is_coordinate("lat", (None,), {})
    assert not is_coordinate("series", ("time",), {})
