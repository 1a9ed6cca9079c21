"""Rows that another pass has filled are no data: what is missing is told to everybody."""

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY
from torchdata_insitu.errors import GeometryError, ReadError
from torchdata_insitu.testing import CountingStore

N_CHUNKS = 10


def without_chunks(n_written=0, *, separator_moved=False):
    store = MemoryStore()
    group = zarr.open_group(store, mode="w")
    array = group.create_array("t", shape=(40, 2), chunks=(4, 2), dtype="f4", fill_value=7.0)
    array[: 4 * n_written] = 1.0
    if separator_moved:
        for key in [key for key in store._store_dict if key.startswith("t/c/")]:
            store._store_dict["t/" + key[2:].replace("/", ".")] = store._store_dict.pop(key)
    return store


def loader_of(store, pool, **options):
    views = {"x": tdi.open_arrays(store)["t"]}
    return tdi.build_loader(store, views, batch_size=8, pool=pool, **options)


@pytest.mark.parametrize(
    "store,error",
    [
        (without_chunks(), ReadError),
        (without_chunks(N_CHUNKS, separator_moved=True), GeometryError),
    ],
    ids=["no chunk", "keys of another shape"],
)
@pytest.mark.parametrize("first", ["auto", "fill"])
def test_every_loader_is_told(store, error, first):
    pool = tdi.ChunkPool(PLENTY)
    with loader_of(store, pool, on_missing=first) as loader:
        if first == "fill":
            assert {float(batch["x"].max()) for batch in loader} == {7.0}
            assert loader.stats().missing == {"t": N_CHUNKS}
        else:
            with pytest.raises(error):
                next(iter(loader))
    assert pool.n_resident > 0
    for _ in range(2):
        with loader_of(store, pool) as loader, pytest.raises(error):
            next(iter(loader))


def test_two_live_loaders_are_both_told():
    pool, store = tdi.ChunkPool(PLENTY), without_chunks()
    with loader_of(store, pool, shuffle=False) as one, loader_of(store, pool, shuffle=False) as two:
        for loader in (one, two):
            with pytest.raises(ReadError, match="no chunk"):
                next(iter(loader))


def test_sparse_data_goes_on_without_another_listing():
    store = CountingStore(without_chunks(n_written=1))
    pool = tdi.ChunkPool(PLENTY)
    whole = zarr.open_array(store, path="t")[...]
    for seed in range(3):
        with loader_of(store, pool, seed=seed) as loader:
            for batch in loader:
                expected = whole[batch["sample_index"].numpy()]
                np.testing.assert_array_equal(batch["x"].numpy(), expected)
    assert pool.n_resident == N_CHUNKS


def test_what_may_not_be_missing_is_not_taken_from_what_was_filled():
    pool, store = tdi.ChunkPool(PLENTY), without_chunks(n_written=1)
    with loader_of(store, pool) as loader:
        assert len(list(loader)) == 5
    with (
        loader_of(store, pool, on_missing="raise") as loader,
        pytest.raises(ReadError, match="t/c/"),
    ):
        list(loader)
