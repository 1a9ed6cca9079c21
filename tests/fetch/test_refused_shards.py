"""Stores that refuse shards or parts of them, for a while or for good."""

import pytest

from tests.fetch.loads import fetching, one_array
from tests.fetch.shard_loads import (
    CHUNKS,
    KEY,
    QUICK,
    SHAPE,
    SHARDS,
    SPARSE,
    check_errors,
    check_loads,
    loaded,
)
from tests.fetch.shard_stores import check_at_rest, sharded, values_of
from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.testing import CountingStore


@pytest.mark.parametrize("runs", [SPARSE, range(22)], ids=["part", "whole"])
def test_a_server_that_sends_no_parts_is_asked_for_whole_shards(remote, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source, ranges=False)
    array = one_array(store, name="t")
    with fetching(store, array, max_inflight=1, retry=RetryPolicy(attempts=1)) as fetcher:
        check_loads(loaded(fetcher, array, runs), values_of(source), runs)
        check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
        n_requests = remote.server.requests.total()
        for _ in range(2):
            check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
        # It is remembered: one request for a shard.
        assert remote.server.requests.total() == n_requests + 2 * len(SPARSE)
        assert fetcher.n_reads == {"t": 2 * (len(runs) + 3 * len(SPARSE))}
        check_at_rest(store)


class IgnoresRanges(CountingStore):
    """Sends the whole object, whatever part of it is asked for, as some servers do."""

    async def get(self, key, prototype, byte_range=None):
        del byte_range
        return await super().get(key, prototype)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("index", ["start", "end"])
@pytest.mark.parametrize("checksum", [True, False])
def test_a_store_that_sends_more_than_it_was_asked_for_gives_right_values(codec, index, checksum):
    source = sharded(SHAPE, CHUNKS, SHARDS, codec=codec, index=index, checksum=checksum)
    store = IgnoresRanges(source)
    array = one_array(source, name="t")
    with fetching(store, array) as fetcher:
        for _ in range(2):
            check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
        assert store.reads() == 2 * len(SPARSE)
        check_at_rest(store)


class CannotDoParts(CountingStore):
    async def get(self, key, prototype, byte_range=None):
        buffer = await super().get(key, prototype)
        if byte_range is not None:
            raise NotImplementedError("parts")
        return buffer


def test_a_store_that_cannot_read_parts_is_asked_for_whole_shards():
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = CannotDoParts(source)
    array = one_array(source, name="t")
    with fetching(store, array) as fetcher:
        for _ in range(2):
            check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
        assert store.reads() == 3 * len(SPARSE)
        check_at_rest(store)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("runs", [[5], range(22)], ids=["part", "whole"])
def test_what_is_refused_is_asked_for_once(remote, status, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    remote.server.fail(KEY, status=status)
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, runs)
        check_errors(loads, values_of(source), {4, 5, 6, 7} & set(runs), ReadError, str(status))
        assert "attempts" not in str(loads.errors[5])
        assert remote.server.requests[KEY] == 1
        check_at_rest(store)


def test_a_shard_that_is_gone_is_missing(remote):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        loaded(fetcher, array, [5])
        remote.server.fail(KEY, status=404)
        loads = loaded(fetcher, array, [5])
        assert (loads.values == 0).all()
        assert fetcher.n_missing == {"t": 2}
        check_at_rest(store)


@pytest.mark.parametrize("fault", [{"status": 503}, {"reset": True}, {"cut_after": 9}], ids=str)
@pytest.mark.parametrize("first", [1, 2], ids=["index", "part"])
def test_what_fails_once_is_read_again(remote, fault, first):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    remote.server.fail(KEY, first=first, times=1, **fault)
    with fetching(store, array, retry=QUICK) as fetcher:
        check_loads(loaded(fetcher, array, [5]), values_of(source), [5])
        counts = fetcher.counts_of(array)
        assert (counts.n_reads, counts.n_found, counts.n_requests) == (2, 2, 3)
        assert counts.n_retries >= 1
        check_at_rest(store)


@pytest.mark.parametrize("runs", [[5], range(22)], ids=["part", "whole"])
def test_what_always_fails_fails_after_all_attempts(remote, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    remote.server.fail(KEY, status=503)
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, runs)
        failed = {4, 5, 6, 7} & set(runs)
        check_errors(loads, values_of(source), failed, ReadError, "after 3 attempts in ", "503")
        assert remote.server.requests[KEY] == 3
        check_at_rest(store)


def test_attempts_are_counted_from_the_index_to_the_stored_chunk(remote):
    """The index comes at the second try; what follows has one left of three."""
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    remote.server.fail(KEY, status=503)
    remote.server.fail(KEY, first=2, times=1, latency_s=0.0)
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, [5])
        check_errors(loads, values_of(source), {5}, ReadError, "after 3 attempts in ", "503")
        assert remote.server.requests[KEY] == 4
        check_at_rest(store)
