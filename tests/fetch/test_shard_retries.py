"""Reads of shards that are made again: how often, what is counted, and with which index."""

import numpy as np
import pytest
import zarr

from tests.fake_stores import Raises
from tests.fetch.loads import Loads, fetching, one_array
from tests.fetch.shard_stores import Index, Place, check_at_rest, sharded
from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch import shard_reads
from torchdata_insitu.fetch.object_reads import ObjectReads
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.testing import FaultStore

KEY = "t/c/0/0"
QUICK = RetryPolicy(attempts=3, first_delay_s=1e-3)


class Asked:
    """Counts the reads of a key."""

    def __init__(self, matches):
        self.n_reads = 0
        self._matches = matches

    def __call__(self, key):
        self.n_reads += key == KEY
        return key == KEY and self._matches(self.n_reads)


def test_stretches_after_an_index_that_was_read_again_are_no_retries(monkeypatch):
    monkeypatch.setattr(shard_reads, "_MOST_GAP", 0)
    first = Asked(lambda n_reads: n_reads == 1)
    inner = sharded((80, 6), (2, 3), (80, 6), codec="none")
    store = Raises(inner, lambda: ConnectionResetError("the line broke"), first)
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = Loads(array, [0, 2, 4, 6])
        fetcher.submit(loads.loads)
        assert np.array_equal(loads.wait().values[:2], zarr.open_array(inner, path="t")[:2])
        counts = fetcher.counts_of(array)
    assert counts.n_reads == 8
    assert counts.n_requests == first.n_reads == 2 + 8
    assert counts.n_retries == 1
    check_at_rest(store)


def test_damaged_bytes_take_no_tries_beyond_those_of_the_policy():
    place = Place("memory", None)
    place.fill(sharded((8, 6), (2, 6), (8, 6)))

    def spoil(shard):
        start, size = Index(4).of(shard)[0]
        return shard[:start] + b"\xff" * size + shard[start + size :]

    place.change(KEY, spoil)
    after_first = Asked(lambda n_reads: n_reads > 1)
    store = FaultStore(place.store, "raise", match=after_first)
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert after_first.n_reads == 3
    assert isinstance(loads.errors[0], ReadError)
    assert "after 3 attempts" in str(loads.errors[0])
    check_at_rest(store)


@pytest.mark.parametrize("kind", ["obstore", "http"])
def test_a_shard_that_is_mended_between_two_tries_is_read(kind, monkeypatch):
    place = Place(kind, None)
    place.fill(sharded((8, 6), (2, 6), (8, 6)))
    good = place.files[KEY]
    # The last byte is of the checksum of the index.
    place.put(KEY, good[:-1] + bytes([good[-1] ^ 1]))
    read, tags = ObjectReads.__call__, []

    def mending(self, job):
        tags.append(job.tag)
        content = read(self, job)
        place.put(KEY, good)
        return content

    monkeypatch.setattr(ObjectReads, "__call__", mending)
    array = one_array(place.store, name="t")
    with fetching(place.store, array, retry=QUICK) as fetcher:
        loads = Loads(array, [0, 2])
        fetcher.submit(loads.loads)
        assert not loads.wait().errors
    assert tags[:2] == [None, None]
    assert tags[2] is not None
    check_at_rest(place.store)
    place.close()
