"""Loads of one array in shards, and what became of them."""

import numpy as np

from tests.fetch.loads import Loads
from tests.fetch.shard_stores import Index
from torchdata_insitu.fetch.retry import RetryPolicy

# 6 shards of 4 rows of stored chunks, two side by side; the last one has 2 inside the array.
SHAPE, CHUNKS, SHARDS = (44, 6), (2, 3), (8, 6)
N_STORED = 44
INDEX = Index(8)
KEY = "t/c/1/0"
QUICK = RetryPolicy(attempts=3, first_delay_s=1e-4)
# What asks for one of a shard's four rows of stored chunks reads parts of it.
SPARSE = [0, 5, 8]


def loaded(fetcher, array, runs=None):
    loads = Loads(array, runs)
    fetcher.submit(loads.loads)
    return loads.wait()


def rows_of(values, array, runs):
    return np.concatenate([values[slice(*array.sample_chunks.bounds(run))] for run in runs])


def check_loads(loads, values, runs):
    assert loads.n_calls == len(runs)
    np.testing.assert_array_equal(loads.values, rows_of(values, loads.array, runs))


def check_errors(loads, values, failed, kind, *facts):
    """Loads of these runs failed, each with an error of its own that says why; others did not."""
    assert loads.n_calls == len(loads.runs)
    assert sorted(loads.errors) == sorted(failed)
    assert len({id(error) for error in loads.errors.values()}) == len(failed)
    for error in loads.errors.values():
        assert isinstance(error, kind), repr(error)
        for fact in ("'t'", repr(KEY), *facts):
            assert fact in str(error), str(error)
    for run, slot in zip(loads.runs, loads.slots, strict=True):
        if run not in failed:
            start, stop = loads.array.sample_chunks.bounds(run)
            np.testing.assert_array_equal(slot[: stop - start], values[start:stop])
