"""Shards that are damaged, or other ones than before: right values or an error, never others."""

import numpy as np
import pytest
import zarr

from tests.fetch.loads import fetching, one_array
from tests.fetch.shard_loads import (
    CHUNKS,
    INDEX,
    KEY,
    QUICK,
    SHAPE,
    SHARDS,
    SPARSE,
    check_errors,
    check_loads,
    loaded,
)
from tests.fetch.shard_stores import (
    NOWHERE,
    PLACES,
    Index,
    check_at_rest,
    files_of,
    sharded,
    values_of,
)
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.testing import FaultStore


def for_places(cases, few):
    """Each case in a place of each way to read, and few where the way is that of another place."""
    alike = {"slow folder", "memory", "obstore"}
    return [
        pytest.param(place, case, marks=() if is_quick else pytest.mark.slow)
        for place in PLACES
        for case in cases
        for is_quick in [place not in alike or case in few]
    ]


SPOILT = {
    "no byte": (lambda shard: shard[:0], "132 bytes, and 0 of them"),
    "less than the index": (lambda shard: shard[-40:], "132 bytes, and 40 of them"),
    "its end is cut off": (lambda shard: shard[:-7], "checksum"),
    "another index": (lambda shard: shard[:-40] + bytes(36) + shard[-4:], "checksum"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("runs", [[0, 5], range(22)], ids=["part", "whole"])
def test_a_shard_without_a_good_index_fails_and_no_other(place, spoilt, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = place.fill(source)
    spoil, fact = SPOILT[spoilt]
    place.change(KEY, spoil)
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, runs)
        failed = {4, 5, 6, 7} & set(runs)
        check_errors(loads, values_of(source), failed, DecodeError, fact, "attempts in ")
        check_at_rest(store)


OUTSIDE = {
    "beyond the end": (10**6, 50),
    "further than a file can be": (2**63, 50),
    "further than an integer": (NOWHERE - 1, 50),
    "over the end": (0, 10**6),
    "longer than memory": (0, 2**62),
    "half missing": (NOWHERE, 50),
    "half missing, its size": (0, NOWHERE),
}


@pytest.mark.parametrize(
    "place, outside", for_places(OUTSIDE, ["over the end", "half missing"]), indirect=["place"]
)
@pytest.mark.parametrize("runs, index", [([0, 5], "end"), ([4, 5], "start"), (range(22), "end")])
def test_an_entry_that_points_outside_of_the_shard_is_an_error(place, outside, runs, index):
    pair = OUTSIDE[outside]
    source = sharded(SHAPE, CHUNKS, SHARDS, checksum=False, index=index)
    own = Index(8, checksum=False, first=index == "start")
    store = place.fill(source)
    place.change(KEY, lambda shard: own.changed(shard, 3, pair))
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, runs)
        assert 5 in loads.errors
        check_errors(loads, values_of(source), set(loads.errors), DecodeError, "attempts in ")
        assert set(loads.errors) <= {4, 5, 6, 7}
        check_at_rest(store)


@pytest.mark.parametrize("runs", [[5], [4, 5]])
def test_a_stored_chunk_that_is_cut_off_leaves_the_others(place, runs):
    """The index comes first, so that it is whole where the object is not."""
    source = sharded(SHAPE, CHUNKS, SHARDS, index="start", codec="none")
    own = Index(8, first=True)
    store = place.fill(source)
    start, _ = own.of(place.files[KEY])[3]
    last = max(start for start, _ in own.of(place.files[KEY]))
    # The stored chunk moves to the end, and the end is lost.
    place.change(
        KEY, lambda shard: own.changed(shard, 3, (len(shard), 24)) + shard[start : start + 24]
    )
    assert last < len(place.files[KEY]) - 24
    place.change(KEY, lambda shard: shard[:-1])
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, runs)
        check_errors(loads, values_of(source), {5}, DecodeError, "chunk (5, 1)", "attempts in ")
        check_at_rest(store)


@pytest.mark.parametrize("runs", [[5], range(22)], ids=["part", "whole"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("place, size", for_places([0, 1, 23], [1]), indirect=["place"])
def test_an_entry_of_another_size_is_an_error_of_its_stored_chunk(place, runs, codec, size):
    source = sharded(SHAPE, CHUNKS, SHARDS, codec=codec)
    store = place.fill(source)
    place.change(KEY, lambda shard: INDEX.changed(shard, 3, (0, size)))
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        for _ in range(2):
            loads = loaded(fetcher, array, runs)
            check_errors(
                loads, values_of(source), {5}, DecodeError, "chunk (5, 1)", "after 2 attempts in "
            )
        check_at_rest(store)


@pytest.mark.parametrize("runs", [[5], range(22)], ids=["part", "whole"])
def test_a_damaged_stored_chunk_is_read_twice_and_fails_alone(place, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = place.fill(source)
    start, size = INDEX.of(place.files[KEY])[3]
    place.change(KEY, lambda shard: shard[:start] + b"\xa5" * size + shard[start + size :])
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = loaded(fetcher, array, runs)
        check_errors(
            loads, values_of(source), {5}, DecodeError, "chunk (5, 1)", "after 2 attempts in "
        )
        counts = fetcher.counts_of(array)
        assert counts.n_reads == counts.n_found == 2 * len(runs)
        assert counts.n_retries >= 1
        check_at_rest(store)


@pytest.mark.parametrize("runs", [[5], range(22)], ids=["part", "whole"])
def test_one_attempt_is_one_attempt(place, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = place.fill(source)
    start, size = INDEX.of(place.files[KEY])[3]
    place.change(KEY, lambda shard: shard[:start] + b"\xa5" * size + shard[start + size :])
    array = one_array(store, name="t")
    with fetching(store, array, retry=RetryPolicy(attempts=1)) as fetcher:
        loads = loaded(fetcher, array, runs)
        check_errors(loads, values_of(source), {5}, DecodeError, "chunk (5, 1)")
        assert "attempts" not in str(loads.errors[5])
        assert fetcher.counts_of(array).n_retries == 0
        check_at_rest(store)


@pytest.mark.parametrize("runs", [SPARSE, range(22)], ids=["part", "whole"])
def test_a_shard_that_was_written_anew_is_read_with_its_new_index(place, runs):
    """Its stored chunks lie in another order, so that none is where the old index says."""
    rng = np.random.default_rng(0)
    source = sharded(SHAPE, CHUNKS, SHARDS, dtype="f8")
    store = place.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
        # Values that compress to other sizes.
        zarr.open_array(source, path="t")[...] = rng.random(SHAPE)
        for key, content in files_of(source).items():
            if "/c/" in key:
                place.put(key, INDEX.reversed(content))
        check_loads(loaded(fetcher, array, runs), values_of(source), runs)
        counts = fetcher.counts_of(array)
        assert counts.n_reads == counts.n_found == 2 * (len(SPARSE) + len(runs))
        check_at_rest(store)


@pytest.mark.parametrize("cancel", [True, False])
def test_plain_stored_chunks_that_changed_places_are_found(place, cancel):
    """Bytes of the old place would decode as well; who cancels ends the time of an index."""
    source = sharded(SHAPE, CHUNKS, SHARDS, codec="none")
    store = place.fill(source)
    array = one_array(store, name="t")
    # Nothing but a file tells by itself that it is another one.
    cancel = cancel or place.kind != "folder"
    with fetching(store, array) as fetcher:
        for _ in range(2):
            check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
            if cancel:
                fetcher.cancel()
            for shard in range(6):
                place.change(f"t/c/{shard}/0", INDEX.reversed)


@pytest.mark.parametrize("cancel", [True, False])
def test_stored_chunks_that_were_added_are_found(place, cancel):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = place.fill(source)
    array = one_array(store, name="t")
    # Nothing but a file tells by itself that it is another one.
    cancel = cancel or place.kind != "folder"
    whole = place.files[KEY]
    place.change(KEY, lambda shard: INDEX.changed(shard, 3, (NOWHERE, NOWHERE)))
    with fetching(store, array) as fetcher:
        assert (loaded(fetcher, array, [5]).values[:, 3:] == 0).all()
        if cancel:
            fetcher.cancel()
        place.put(KEY, whole)
        check_loads(loaded(fetcher, array, [5]), values_of(source), [5])


def test_an_index_that_is_read_damaged_once_is_read_again():
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = FaultStore(source, "garbage", match=KEY, times=1)
    array = one_array(source, name="t")
    with fetching(store, array, retry=QUICK) as fetcher:
        check_loads(loaded(fetcher, array, [5]), values_of(source), [5])
        counts = fetcher.counts_of(array)
        # A try is the index and what follows.
        assert (counts.n_reads, counts.n_found, counts.n_retries) == (2, 2, 1)
        check_at_rest(store)
