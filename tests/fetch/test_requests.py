"""Requests name the keys that Zarr wrote, and cover every element of a chunk once."""

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.sync import collect_aiterator
from zarr.storage import MemoryStore

from tests.fetch.loads import one_array
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.requests import RequestTable
from torchdata_insitu.testing import make_store


def chunk_keys(store, path):
    keys = collect_aiterator(store.list_prefix(path))
    return {key for key in keys if key.rpartition("/")[2][0] not in ".z"}


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 3},
        {"zarr_format": 3, "chunk_key_encoding": {"name": "default", "separator": "."}},
        {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        {"zarr_format": 2},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    ],
)
@pytest.mark.parametrize("name", ["t", "group/t"])
@pytest.mark.parametrize("sample_axis", [0, 2])
def test_keys_are_those_that_zarr_wrote(options, name, sample_axis):
    values = np.ones((5, 3, 4), "u1")
    store = make_store({name: values}, chunks=(2, 2, 3), **options)
    array = one_array(store, sample_axis=sample_axis)
    planned = [
        request.key
        for run in range(array.n_chunks)
        for request in RequestTable(array).requests(run)
    ]
    assert sorted(planned) == sorted(chunk_keys(store, f"{name}/"))


def test_keys_of_a_root_array_have_no_prefix():
    store = MemoryStore()
    zarr.create_array(store, data=np.ones((4, 2)), chunks=(2, 2))
    assert [request.key for request in RequestTable(one_array(store)).requests(1)] == ["c/1/0"]


@given(data=st.data())
def test_requests_of_a_chunk_cover_its_rows_once(data):
    shape = data.draw(st.tuples(*[st.integers(1, 6)] * 3), label="shape")
    chunks = data.draw(st.tuples(*[st.integers(1, 8)] * 3), label="chunks")
    axis = data.draw(st.integers(0, 2), label="sample axis")
    array = one_array(make_store({"t": shape}, chunks=chunks), sample_axis=axis)
    run = data.draw(st.integers(0, array.n_chunks - 1), label="run")
    requests = RequestTable(array).requests(run)
    assert len(requests) == array.stored_per_chunk
    covered = np.zeros(array.chunk_shape, int)
    # Every element of the array, numbered; the stored chunk reaches past it with -1.
    numbers = np.full([-(-n // c) * c for n, c in zip(shape, chunks, strict=True)], -1)
    numbers[tuple(map(slice, shape))] = np.arange(np.prod(shape)).reshape(shape)
    got = np.full(array.chunk_shape, -1)
    for request in requests:
        assert request.shape == chunks
        covered[request.target] += 1
        corner = [i * c for i, c in zip(request.coordinates, chunks, strict=True)]
        stored = numbers[tuple(slice(k, k + c) for k, c in zip(corner, chunks, strict=True))]
        got[request.target] = np.moveaxis(stored, axis, 0)[request.clip]
    start, stop = array.sample_chunks.bounds(run)
    want = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), axis, 0)[start:stop]
    np.testing.assert_array_equal(got[: stop - start], want)
    assert (covered[: stop - start] == 1).all()
    assert not covered[stop - start :].any()


@pytest.mark.parametrize(
    "shape, chunks, axis, direct",
    [
        ((4, 3, 5), (2, 3, 5), 0, True),
        ((4, 3, 5), (9, 3, 5), 0, True),
        ((4, 3, 5), (2, 3, 4), 0, False),
        ((4, 3, 5), (2, 3, 6), 0, False),
        ((4, 3, 5), (4, 3, 2), 2, False),
        ((1, 3, 5), (1, 2, 5), 1, True),
        ((2, 3, 5), (1, 2, 5), 1, False),
    ],
)
def test_direct_means_that_the_stored_chunk_is_the_slot(shape, chunks, axis, direct):
    array = one_array(make_store({"t": shape}, chunks=chunks), sample_axis=axis)
    assert {request.direct for request in RequestTable(array).requests(0)} == {direct}


@pytest.mark.parametrize("run, tile", [(-1, 0), (3, 0), (0, 1)])
def test_chunk_that_is_not_there_is_refused(run, tile):
    array = one_array(make_store({"t": (6, 2)}, chunks=(2, 2)))
    with pytest.raises(GeometryError, match=r"'t' has the chunks \(0, 0\) to \(2, 0\)"):
        RequestTable(array).requests(run, tile)
