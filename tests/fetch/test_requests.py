"""Requests name the keys that Zarr wrote, and cover every element of a chunk once."""

import json

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.buffer import cpu
from zarr.core.sync import collect_aiterator
from zarr.storage import MemoryStore

from tests.each_case import each_case
from tests.fetch.loads import one_array
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.requests import RequestTable
from torchdata_insitu.testing import make_store


def chunk_keys(store, path):
    keys = collect_aiterator(store.list_prefix(path))
    return {key for key in keys if key.rpartition("/")[2][0] not in ".z"}


@each_case(
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
@each_case("name", ["t", "group/t"])
@each_case("sample_axis", [0, 2])
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


@each_case("name", ["t", "group/t"])
@each_case(
    "shape, chunks, shards, axis",
    [
        ((20, 6), (2, 3), (8, 6), 0),
        ((6, 20), (3, 2), (6, 8), 1),
        ((7, 5, 4), (2, 2, 3), (4, 6, 3), 0),
        ((1, 3), (8, 8), (16, 8), 0),
        ((9,), (1,), (4,), 0),
    ],
)
def test_stored_chunks_are_the_entries_of_the_shards_that_zarr_wrote(
    name, shape, chunks, shards, axis
):
    values = np.ones(shape, "u1")
    store = make_store({name: values}, chunks=chunks, shards=shards)
    array = one_array(store, sample_axis=axis)
    requests = [
        request for run in range(array.n_chunks) for request in RequestTable(array).requests(run)
    ]
    assert {request.key for request in requests} == chunk_keys(store, f"{name}/")
    # Of every stored chunk that begins inside the array, its shard and its number there.
    expected = {}
    inner = [size // chunk for size, chunk in zip(shards, chunks, strict=True)]
    for number in np.ndindex(*[-(-n // c) for n, c in zip(shape, chunks, strict=True)]):
        shard = [k // n for k, n in zip(number, inner, strict=True)]
        within = [k % n for k, n in zip(number, inner, strict=True)]
        key = "/".join([name, "c", *map(str, shard)])
        expected[number] = (key, int(np.ravel_multi_index(within, inner)))
    assert {r.coordinates: (r.key, r.place.entry) for r in requests} == expected
    assert {request.place.n_entries for request in requests} == {int(np.prod(inner))}
    for request in requests:
        mates = [key for key, _ in expected.values() if key == request.key]
        assert request.place.n_inside == len(mates)
        assert request.shape == chunks


def test_stored_chunks_without_shards_have_no_place():
    array = one_array(make_store({"t": (6, 2)}, chunks=(2, 2)))
    assert RequestTable(array).requests(0)[0].place is None


@given(data=st.data())
def test_requests_of_uneven_chunks_have_the_shape_that_zarr_wrote(data):
    """The last size of an axis reaches past its end by any number."""
    sizes = [
        data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="sizes")
        for _ in range(2)
    ]
    shape = [sum(axis) - data.draw(st.integers(0, axis[-1] - 1)) for axis in sizes]
    axis = data.draw(st.integers(0, 1), label="sample axis")
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": sizes}}
    store = make_store({"t": shape}, chunks=[max(axis) for axis in sizes])
    meta = json.loads(store._store_dict["t/zarr.json"].to_bytes())
    text = json.dumps({**meta, "chunk_grid": grid}).encode()
    store._store_dict["t/zarr.json"] = cpu.Buffer.from_bytes(text)
    array = one_array(store, sample_axis=axis)
    covered = np.zeros(shape, int)
    for run in range(array.n_chunks):
        rows, *_ = array.sample_chunks.bounds(run)
        for request in RequestTable(array).requests(run):
            i, j = request.coordinates
            assert request.shape == (sizes[0][i], sizes[1][j])
            rows_here = slice(rows, rows + request.target[0].stop)
            np.moveaxis(covered, axis, 0)[rows_here, request.target[1]] += 1
            stored = np.empty(request.shape)
            assert np.moveaxis(stored, axis, 0)[request.clip].shape == tuple(
                part.stop - part.start for part in request.target
            )
    assert (covered == 1).all()
