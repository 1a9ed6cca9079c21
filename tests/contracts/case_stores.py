"""Stores for the cases from the field, and the epoch that each of them must give."""

import warnings

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY

BOTH_FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


def write(values, chunks, *, name="t", store=None, zarr_format=3, **options):
    """An array as zarr writes it; a new store in memory unless one is given."""
    store = zarr.storage.MemoryStore() if store is None else store
    with warnings.catch_warnings():
        # Some dtypes and codecs of format 3 have no specification that zarr takes for stable.
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            store,
            name=name,
            shape=values.shape,
            chunks=chunks,
            dtype=values.dtype,
            zarr_format=zarr_format,
            **options,
        )
        array[...] = values
    return store


def loader_of(store, views=None, **options):
    views = tdi.open_arrays(store) if views is None else views
    return tdi.build_loader(
        store, views, **{"batch_size": 4, "block_chunks": 2, "budget_bytes": PLENTY, **options}
    )


def drawn(loader):
    """Everything an epoch hands out, in the order of the samples, as NumPy arrays."""
    batches = list(loader)
    for batch in batches:
        for tensor in batch.values():
            assert tensor.is_contiguous()
            assert tensor.numpy().dtype.isnative
    joined = {
        name: np.concatenate([batch[name].numpy() for batch in batches]) for name in batches[0]
    }
    order = np.argsort(joined["sample_index"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def check(store, expected, **options):
    """One epoch holds each sample once, with the bits expected by name."""
    with loader_of(store, **options) as loader:
        found = drawn(loader)
        n_reads = loader.expected_reads
        stats = loader.stats()
    for name, values in expected.items():
        assert found["sample_index"].tolist() == list(range(len(values)))
        native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))
        assert found[name].dtype == native.dtype
        assert found[name].shape == native.shape
        assert found[name].tobytes() == native.tobytes()
    assert sum(stats.reads.values()) == n_reads
    return stats


def read(store, key):
    return sync(store.get(key, default_buffer_prototype())).to_bytes()


def keys_of(store, prefix="t/"):
    async def keys():
        return [key async for key in store.list_prefix(prefix)]

    documents = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
    return sorted(key for key in sync(keys()) if not key.endswith(documents))
