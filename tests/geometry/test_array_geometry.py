import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.array import parse_array_metadata

from torchdata_insitu.geometry.metadata import read_arrays

DIMS = ("time", "lat", "lon")


def store_of(shape, chunks, zarr_format=3, **options):
    store = zarr.storage.MemoryStore()
    zarr.create_array(
        store, name="a", shape=shape, chunks=chunks, zarr_format=zarr_format, **options
    )
    return store


@st.composite
def shapes_and_chunks(draw):
    ndim = draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(1, 12), min_size=ndim, max_size=ndim))
    chunks = draw(st.lists(st.integers(1, 14), min_size=ndim, max_size=ndim))
    return tuple(shape), tuple(chunks), draw(st.integers(-ndim, ndim - 1))


@given(shapes_and_chunks(), st.sampled_from([2, 3]))
def test_geometry_equals_what_zarr_and_numpy_say(case, zarr_format):
    shape, chunks, axis = case
    store = store_of(shape, chunks, zarr_format, dtype="f4")
    array = zarr.open_array(store, path="a")
    field = np.moveaxis(np.empty(shape, "f4"), axis, 0)[0]

    a = read_arrays(store, "a", sample_axis=axis)["a"]

    assert a.sample_axis == axis % len(shape)
    assert a.shape == array.shape
    assert a.stored_chunk_shape == array.chunks
    assert a.grid.shape == array.cdata_shape
    assert a.n_chunks * a.stored_per_chunk == array.nchunks
    assert (a.n_samples, a.field_shape) == (shape[axis], field.shape)
    assert a.sample_bytes == field.nbytes
    assert a.chunk_shape == (chunks[axis], *field.shape)
    assert a.chunk_bytes == np.empty(a.chunk_shape, a.dtype).nbytes
    assert sum(np.diff(a.sample_chunks.all_edges())) == a.n_samples


def test_last_chunk_may_be_short_on_every_axis():
    a = read_arrays(store_of((37, 5, 7), (5, 2, 3), dtype="i2"))["a"]
    assert (a.n_chunks, a.stored_per_chunk, a.rows_per_chunk) == (8, 9, 5)
    assert a.sample_chunks.bounds(7) == (35, 37)
    assert a.grid.axes[2].bounds(2) == (6, 7)


def test_a_chunk_may_be_larger_than_the_array():
    a = read_arrays(store_of((1, 3), (8, 8), dtype="i2"))["a"]
    assert (a.n_samples, a.n_chunks, a.chunk_shape, a.chunk_bytes) == (1, 1, (8, 3), 48)


def test_each_axis_can_count_samples():
    store = store_of((4, 6, 8), (1, 2, 3), dtype="i2", dimension_names=DIMS)
    by_name = {name: read_arrays(store, sample_axis=name)["a"] for name in DIMS}
    assert [a.n_samples for a in by_name.values()] == [4, 6, 8]
    assert [a.field_shape for a in by_name.values()] == [(6, 8), (4, 8), (4, 6)]
    assert [a.rows_per_chunk for a in by_name.values()] == [1, 2, 3]
    assert [a.stored_per_chunk for a in by_name.values()] == [9, 12, 12]
    assert [a.sample_axis_name for a in by_name.values()] == list(DIMS)


def test_two_readings_are_one_value_in_any_process():
    options = {"dtype": "f4", "fill_value": np.nan, "dimension_names": DIMS}
    store = store_of((4, 6, 8), (1, 2, 3), attributes={"_FillValue": -9.0}, **options)
    first, second = (read_arrays(store)["a"] for _ in range(2))
    assert first == second == pickle.loads(pickle.dumps(first))
    assert len({first, second}) == 1


def test_a_changed_comment_makes_no_other_array_but_a_changed_codec_does():
    store = store_of((4, 6), (2, 3), dtype="f4", attributes={"history": "made"})
    before = read_arrays(store)["a"]
    zarr.open_array(store, path="a").attrs["history"] = "made, looked at"
    assert read_arrays(store)["a"] == before
    other = store_of((4, 6), (2, 3), dtype="f4", compressors=None)
    assert read_arrays(other)["a"] != before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_metadata_is_rebuilt_from_the_text_without_the_store(zarr_format):
    store = store_of((4, 6), (2, 3), zarr_format, dtype="f4", attributes={"units": "K"})
    stored = zarr.open_array(store, path="a").metadata
    rebuilt = parse_array_metadata(json.loads(read_arrays(store)["a"].metadata))
    assert rebuilt == stored.update_attributes({})


def test_a_shift_of_the_array_reads_the_future():
    a = read_arrays(store_of((9, 4), (2, 4), dtype="f4"))["a"]
    assert a.shift(4).offsets == (4,)
    assert a.shift(4).sample_shape == (4,)
    assert a.window(-1, 0, 4).offsets == (-1, 0, 4)
    assert a.window(-1, 0, 4).sample_shape == (3, 4)


SIZES = ("n_samples", "field_shape", "rows_per_chunk", "chunk_shape", "chunk_bytes", "sample_bytes")


def sizes_of(array):
    return {name: getattr(array, name) for name in SIZES}


def test_what_is_replaced_has_sizes_of_its_own():
    """Also where those of the other were asked for before."""
    one = read_arrays(store_of((37, 5, 7), (5, 2, 3), dtype="i2"))["a"]
    other = read_arrays(store_of((12, 4, 9), (6, 2, 5), dtype="i2"))["a"]
    before = sizes_of(one)
    replaced = dataclasses.replace(one, shape=other.shape, grid=other.grid)
    assert sizes_of(replaced) == sizes_of(other)
    moved = dataclasses.replace(one, sample_axis=1)
    expected = read_arrays(store_of((37, 5, 7), (5, 2, 3), dtype="i2"), sample_axis=1)["a"]
    assert sizes_of(moved) == sizes_of(expected)
    assert sizes_of(one) == before


def test_what_was_asked_for_makes_no_other_array():
    asked, fresh = (read_arrays(store_of((37, 5), (5, 2), dtype="i2"))["a"] for _ in range(2))
    sizes_of(asked)
    assert asked == fresh
    assert hash(asked) == hash(fresh)
    assert repr(asked) == repr(fresh)
    for copied in (pickle.loads(pickle.dumps(asked)), copy.copy(asked), copy.deepcopy(asked)):
        assert copied == fresh
        assert sizes_of(copied) == sizes_of(fresh)
