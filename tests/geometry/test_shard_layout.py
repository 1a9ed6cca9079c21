"""Every stored chunk has one place in one shard, counted as Zarr counts."""

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.metadata import read_arrays
from torchdata_insitu.geometry.shard_layout import AxisPlace, ShardLayout, ShardPlace, shard_place


def layout_of(*axes, checksum=True):
    return ShardLayout(
        ChunkGrid(axes), index_first=False, has_checksum=checksum, is_big_endian=False
    )


@given(
    inner=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    cut=st.integers(0, 15),
)
def test_places_are_those_of_the_elements(inner, sizes, cut):
    """Shards of any number of stored chunks each; the array ends inside of the last one."""
    stored = [inner * n for n in sizes]
    length = sum(stored) - cut % stored[-1]
    shards = AxisChunks.of_sizes(length, stored)
    chunks = AxisChunks.regular(length, inner)
    # Of every element the shard, the stored chunk in it, and how many there are.
    places = [
        (shard, within // inner, size // inner)
        for shard, size in enumerate(stored)
        for within in range(size)
    ][:length]
    for number in range(chunks.n_chunks):
        place = layout_of(shards).axis_place(0, chunks, number)
        assert (place.shard, place.inner, place.n_inner) == places[number * inner]
        mates = {entry for shard, entry, _ in places if shard == place.shard}
        assert place.n_inside == len(mates)


def test_shards_may_be_larger_than_any_integer_of_numpy():
    """Metadata may state them, and it is the index of the object that is too short for it."""
    chunks = AxisChunks.regular(10, 2)
    place = layout_of(AxisChunks.regular(10, 2**70)).axis_place(0, chunks, 3)
    assert place == AxisPlace(shard=0, inner=3, n_inner=2**69, n_inside=5)


@given(data=st.data())
def test_entries_are_counted_in_c_order(data):
    n_inner = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    inner = [data.draw(st.integers(0, n - 1)) for n in n_inner]
    n_inside = [data.draw(st.integers(k + 1, n)) for k, n in zip(inner, n_inner, strict=True)]
    places = tuple(AxisPlace(0, k, n, m) for k, n, m in zip(inner, n_inner, n_inside, strict=True))
    assert shard_place(places) == ShardPlace(
        np.ravel_multi_index(inner, n_inner), np.prod(n_inner), np.prod(n_inside)
    )


@pytest.mark.parametrize("n_entries", [1, 48, 4096])
def test_an_index_is_two_numbers_of_8_bytes_for_each_entry(n_entries):
    axis = AxisChunks.regular(8, 8)
    assert layout_of(axis).index_bytes(n_entries) == 16 * n_entries + 4
    assert layout_of(axis, checksum=False).index_bytes(n_entries) == 16 * n_entries


def test_an_index_of_zarr_has_as_many_bytes():
    """A shard all of whose stored chunks are plain is these and the index."""
    store = MemoryStore()
    array = zarr.create_array(
        store, shape=(8, 6), chunks=(2, 3), shards=(8, 6), dtype="u1", compressors=None
    )
    array[...] = 1
    shards = read_arrays(store)["data"].shards
    assert len(store._store_dict["c/0/0"].to_bytes()) == 48 + shards.index_bytes(8)


def test_a_layout_is_a_value():
    one, other = (layout_of(AxisChunks.regular(25, 8)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != layout_of(AxisChunks.regular(25, 8), checksum=False)
