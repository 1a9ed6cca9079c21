import numpy as np
import pytest
import zarr

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.metadata import read_arrays
from torchdata_insitu.geometry.view import View, array_offsets, as_views, stack


@pytest.fixture(scope="module")
def arrays():
    store = zarr.storage.MemoryStore()
    for name, shape, chunks, dtype in [
        ("t2m", (24, 4, 5), (2, 4, 5), "f4"),
        ("u10", (24, 4, 5), (7, 2, 2), "f4"),
        ("v10", (24, 4, 5), (24, 4, 5), "f4"),
        ("mask", (24, 4, 5), (2, 4, 5), "i1"),
        ("rain", (24, 8, 5), (2, 4, 5), "f4"),
        ("short", (12, 4, 5), (2, 4, 5), "f4"),
        ("series", (24,), (6,), "f4"),
        ("none", (0, 4, 5), (2, 4, 5), "f4"),
        ("empty", (24, 0), (2, 1), "f4"),
    ]:
        zarr.create_array(store, name=name, shape=shape, chunks=chunks, dtype=dtype)
    return read_arrays(store)


def test_axes_of_offsets_and_arrays_come_before_the_field(arrays):
    t2m, u10, v10 = (arrays[name] for name in ("t2m", "u10", "v10"))
    assert as_views({"x": t2m})["x"].sample_shape == (4, 5)
    assert t2m.window(-1, 0, 3).sample_shape == (3, 4, 5)
    assert t2m.window(0).sample_shape == (1, 4, 5)
    assert stack(t2m).sample_shape == (1, 4, 5)
    both = stack(t2m, u10, v10).window(-1, 0)
    assert both.sample_shape == (2, 3, 4, 5)
    assert both.dtype == np.dtype("f4")
    assert arrays["series"].window(-1, 0).sample_shape == (2,)


def test_shift_and_window_count_from_where_the_view_stands(arrays):
    t2m = arrays["t2m"]
    assert t2m.shift(4).shift(-1).offsets == (3,)
    assert t2m.shift(4).window(-1, 0).offsets == (3, 4)
    assert t2m.window(-1, 0).shift(4).offsets == (3, 4)
    assert (t2m.window(3, -2, 0).min_offset, t2m.window(3, -2, 0).max_offset) == (-2, 3)


def test_a_window_keeps_the_order_and_repeats_it_was_given(arrays):
    assert arrays["t2m"].window(2, -1, 2).offsets == (2, -1, 2)


def test_numpy_integers_are_offsets(arrays):
    assert arrays["t2m"].window(*np.arange(-1, 2)).offsets == (-1, 0, 1)


def test_views_at_equal_offsets_stack(arrays):
    view = stack(arrays["t2m"].window(-1, 0), arrays["u10"].window(-1, 0))
    assert view == stack(arrays["t2m"], arrays["u10"]).window(-1, 0)


@pytest.mark.parametrize("offset", [1.0, "1", None, True])
def test_an_offset_that_is_no_whole_number_is_refused(arrays, offset):
    with pytest.raises(GeometryError, match="array 't2m' is a whole number of samples, not "):
        arrays["t2m"].shift(offset)
    with pytest.raises(GeometryError, match="'t2m'"):
        arrays["t2m"].window(0, offset)


def test_an_empty_window_is_refused(arrays):
    with pytest.raises(GeometryError, match="window of array 't2m' has no offsets"):
        arrays["t2m"].window()


def test_a_window_of_a_window_is_refused(arrays):
    with pytest.raises(GeometryError, match=r"'t2m' is a window of \(-1, 0\) already"):
        arrays["t2m"].window(-1, 0).window(0)


@pytest.mark.parametrize(
    "other, facts",
    [
        ("mask", ["'t2m'", "'mask'", "dtype float32 against int8"]),
        ("rain", ["'t2m'", "'rain'", "field shape (4, 5) against (8, 5)"]),
        ("short", ["'t2m'", "'short'", "number of samples 24 against 12"]),
    ],
)
def test_arrays_that_differ_do_not_stack(arrays, other, facts):
    with pytest.raises(GeometryError) as caught:
        stack(arrays["t2m"], arrays[other])
    assert all(fact in str(caught.value) for fact in facts)


def test_a_stack_has_one_level_and_one_set_of_offsets(arrays):
    t2m, u10 = arrays["t2m"], arrays["u10"]
    with pytest.raises(GeometryError, match="at least one array"):
        stack()
    with pytest.raises(GeometryError, match=r"\['t2m', 'u10'\] are stacked already"):
        stack(stack(t2m, u10), t2m)
    with pytest.raises(GeometryError, match=r"'t2m' at offsets \(0,\) and array 'u10' .* \(4,\)"):
        stack(t2m, u10.shift(4))
    with pytest.raises(GeometryError, match="'u10' at offsets"):
        stack(t2m, u10.window(0))
    with pytest.raises(GeometryError, match="argument 1 of stack is a str"):
        stack(t2m, "u10")


def test_a_view_made_by_hand_needs_axes_for_what_it_holds(arrays):
    with pytest.raises(GeometryError, match="windowed=False"):
        View((arrays["t2m"],), (0, 1))
    with pytest.raises(GeometryError, match="stacked=False"):
        View((arrays["t2m"], arrays["u10"]))
    with pytest.raises(GeometryError, match="at least one array"):
        View(())


def test_views_keep_their_order_and_bare_arrays_become_views(arrays):
    views = as_views({"y": arrays["t2m"].shift(4), "x": arrays["u10"]})
    assert list(views) == ["y", "x"]
    assert views["x"] == arrays["u10"].shift(0)


@pytest.mark.parametrize("mapping", [{}, None, [1], "t2m"])
def test_views_are_a_mapping_with_entries(mapping):
    with pytest.raises(GeometryError, match="views are a mapping with at least one entry"):
        as_views(mapping)


def test_views_have_names_and_are_views(arrays):
    with pytest.raises(GeometryError, match="name of a view is a text, not 3"):
        as_views({3: arrays["t2m"]})
    with pytest.raises(GeometryError, match="view 'x' is a ndarray: give an array of open_arrays"):
        as_views({"x": np.zeros(3)})


def test_arrays_of_unequal_length_are_refused_with_both_lengths(arrays):
    with pytest.raises(GeometryError, match=r"'t2m' has 24 samples but array 'short' has 12"):
        as_views({"x": arrays["t2m"], "y": arrays["short"].shift(1)})


def test_arrays_without_samples_or_values_are_refused(arrays):
    with pytest.raises(GeometryError, match=r"'none' of shape \(0, 4, 5\) has 0 samples"):
        as_views({"x": arrays["none"]})
    with pytest.raises(GeometryError, match=r"'empty' of shape \(24, 0\) has 0 values in a sample"):
        as_views({"x": arrays["empty"]})


def test_a_window_longer_than_the_array_is_refused(arrays):
    t2m = arrays["t2m"]
    assert as_views({"x": t2m.window(-11, 12)})
    with pytest.raises(GeometryError, match=r"from -12 .* to \+12 .* 25 samples, .*'t2m' has 24"):
        as_views({"x": t2m.window(-12, 12)})
    assert as_views({"x": t2m.shift(23)})
    with pytest.raises(GeometryError, match="'t2m' has 24"):
        as_views({"x": t2m.shift(24)})


def test_views_that_together_reach_too_far_are_refused_by_name(arrays):
    with pytest.raises(GeometryError, match=r"-20 \(view 'past'\) to \+4 \(view 'next'\)"):
        as_views({"past": arrays["t2m"].shift(-20), "next": arrays["u10"].shift(4)})


def test_offsets_of_an_array_are_the_union_over_views_in_order_of_appearance(arrays):
    t2m, u10 = arrays["t2m"], arrays["u10"]
    views = as_views({"x": stack(u10, t2m).window(0, -1), "y": t2m.shift(4)})
    assert list(array_offsets(views).items()) == [(u10, (-1, 0)), (t2m, (-1, 0, 4))]
