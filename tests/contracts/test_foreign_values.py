"""Arrays that other programs wrote have the values that Zarr reads, in every way to read them."""

import math

import numpy as np
import obstore.store
import pytest
from zarr.storage import ObjectStore

import torchdata_insitu as tdi
from tests.contracts.foreign_stores import (
    DATA,
    open_array,
    zarr_store,
    zarr_values,
    zip_files_open,
)
from tests.contracts.foreign_tables import COPIES, N_BATCHES, PLENTY, READ, check_bits, store_of
from torchdata_insitu.testing import CountingStore

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="files of other writers are not here: no folder ../shared/data beside the clone",
)


@pytest.fixture(scope="module", autouse=True)
def zip_files():
    with zip_files_open():
        yield


def written_alike():
    """Arrays of the same codecs, keys and store, with one axis or several; the smallest first."""
    kinds = {}
    once = [array for array in READ if array not in COPIES]
    for array in sorted(once, key=lambda array: math.prod(array.shape)):
        kind = (array.store.suffix == ".zip", len(array.shape) > 1, array.encoding)
        kinds.setdefault(kind, []).append(array)
    return kinds.values()


def ways_to_read(array):
    """Along the first and the last axis, in and out of order, from each kind of store."""
    last = -1 if len(array.shape) > 1 else 0
    ways = [(0, False, "as it is"), (last, True, "wrapped")]
    if array.store.suffix != ".zip":
        ways.append((0, True, "by obstore"))
        if last:
            ways.append((last, False, "wrapped"))
    return ways


def reads():
    """Each array in one way, those that are written alike in turns; the first of them in each."""
    for arrays in written_alike():
        for number, array in enumerate(arrays):
            ways = ways_to_read(array)
            for turn, (axis, shuffle, how) in enumerate(ways):
                is_quick = number == 0 or number % len(ways) == turn
                words = ["last" if axis else "first", "shuffled" if shuffle else "in order", how]
                yield pytest.param(
                    *(array, axis, shuffle, how),
                    id=", ".join([array.id, *words]),
                    marks=() if is_quick else pytest.mark.slow,
                )


@pytest.mark.parametrize("array, axis, shuffle, how", list(reads()) or [(None,) * 4])
def test_values_are_those_that_zarr_reads(array, axis, shuffle, how):
    expected = np.moveaxis(zarr_values(array), axis, 0)
    store = store_of(array)
    if how == "by obstore":
        store = ObjectStore(obstore.store.LocalStore(array.store), read_only=True)
    if how == "wrapped":
        store = tdi.open_store(CountingStore(zarr_store(array.store)))
    opened = tdi.open_arrays(store, [array.name], sample_axis=axis, decode_cf=False)
    options = {"batch_size": max(1, len(expected) // N_BATCHES), "shuffle": shuffle}
    options["budget_bytes"] = PLENTY
    if how == "wrapped":
        store.reset()
        options["block_chunks"] = 1
        with tdi.build_loader(store, opened, **options) as loader:
            options["budget_bytes"] = loader.floor_bytes
    stats = check_epoch(store, opened, {array: expected}, options)
    if how == "wrapped":
        check_gets(array, store, stats)


def copies_of_one_length():
    """The copies in a zip file that have as many samples along their last axis."""
    together = {}
    for array in COPIES:
        together.setdefault((array.store, array.shape[-1]), []).append(array)
    return [
        pytest.param(arrays, id=f"{store.relative_to(DATA).as_posix()}, {n}")
        for (store, n), arrays in together.items()
    ]


@pytest.mark.parametrize("arrays", copies_of_one_length() or [None])
def test_copies_in_a_zip_file_are_those_that_zarr_reads(arrays):
    store = zarr_store(arrays[0].store)
    names = [array.name for array in arrays]
    opened = tdi.open_arrays(store, names, sample_axis=-1, decode_cf=False)
    expected = {array: np.moveaxis(zarr_values(array), -1, 0) for array in arrays}
    n_samples = arrays[0].shape[-1]
    options = {"batch_size": max(1, n_samples // N_BATCHES), "budget_bytes": PLENTY}
    check_epoch(store, opened, expected, options)


def check_epoch(store, opened, expected, options):
    """An epoch holds each sample of arrays once and reads what is planned; its counters."""
    seen = np.zeros(len(next(iter(expected.values()))), int)
    with tdi.build_loader(store, opened, **options) as loader:
        planned = loader.plan.reads()
        assert loader.expected_reads == sum(planned.values())
        for batch in loader:
            ids = batch["sample_index"].numpy()
            seen[ids] += 1
            for array, values in expected.items():
                check_bits(batch[array.name].numpy(), values[ids])
        stats = loader.stats()
    assert (seen == 1).all()
    assert stats.reads == planned == {array.name: n_stored_chunks(array) for array in expected}
    n_absent = {array.name: array.n_absent() for array in expected}
    assert stats.missing == {name: n for name, n in n_absent.items() if n}
    return stats


def n_stored_chunks(array):
    return math.prod(
        math.ceil(n / step) for n, step in zip(array.shape, open_array(array).chunks, strict=True)
    )


def check_gets(array, store, stats):
    """The key of a chunk is asked for once, and that of a shard for its index and for its parts."""
    outer = open_array(array).shards
    n_gets = sum(store.gets.values())
    assert stats.requests == {array.name: n_gets}
    if outer is None:
        assert set(store.gets.values()) == {1}
        assert store.reads(array.path) == n_gets == n_stored_chunks(array)
    else:
        n_shards = math.prod(math.ceil(n / s) for n, s in zip(array.shape, outer, strict=True))
        assert len(store.gets) == n_shards <= n_gets
