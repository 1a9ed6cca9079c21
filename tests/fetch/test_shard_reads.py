"""Reads of shards on every path: their values, their counts, and which reads they are."""

import numpy as np
import pytest

from tests.fetch.loads import fetching, one_array
from tests.fetch.shard_loads import (
    CHUNKS,
    INDEX,
    KEY,
    N_STORED,
    SHAPE,
    SHARDS,
    SPARSE,
    check_loads,
    loaded,
)
from tests.fetch.shard_stores import (
    NOWHERE,
    Index,
    check_at_rest,
    sharded,
    values_of,
)
from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch import shard_reads

LAYOUTS = {
    "plain": ((44, 6), (2, 3), (8, 6), 0),
    "uneven": ((37, 5, 7), (5, 2, 3), (10, 4, 9), 0),
    "other axis": ((5, 4, 37), (3, 2, 4), (6, 4, 12), 2),
    "larger than the array": ((5, 3), (8, 8), (16, 16), 0),
    "one chunk in a shard": ((11, 4), (2, 4), (2, 4), 0),
    "no field": ((41,), (3,), (12,), 0),
    "straight": ((22, 4), (2, 4), (8, 4), 0),
    "rows of several shards": ((12, 40), (2, 4), (6, 8), 0),
}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_zarr_and_each_stored_chunk_is_read_once(place, layout, codec):
    shape, chunks, shards, axis = LAYOUTS[layout]
    source = sharded(shape, chunks, shards, codec=codec)
    values = np.moveaxis(values_of(source), axis, 0)
    store = place.fill(source)
    array = one_array(store, name="t", sample_axis=axis)
    with fetching(store, array, decode_threads=2) as fetcher:
        for number in (1, 2):
            check_loads(loaded(fetcher, array), values, range(array.n_chunks))
            counts = fetcher.counts_of(array)
            assert counts.n_reads == counts.n_found == number * array.grid.n_chunks
            assert (counts.n_missing, counts.n_retries) == (0, 0)
        check_at_rest(store)


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("index", ["start", "end"])
@pytest.mark.parametrize("runs", [SPARSE, range(22), [7]])
def test_parts_and_whole_shards_with_the_index_at_either_end(place, index, checksum, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS, index=index, checksum=checksum)
    store = place.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        check_loads(loaded(fetcher, array, runs), values_of(source), runs)
        assert fetcher.n_reads == {"t": 2 * len(runs)}
        check_at_rest(store)


@pytest.mark.parametrize("max_inflight", [1, 2])
def test_few_permits_are_enough(place, max_inflight):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = place.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array, max_inflight=max_inflight, decode_threads=2) as fetcher:
        check_loads(loaded(fetcher, array), values_of(source), range(22))
        check_loads(loaded(fetcher, array, SPARSE), values_of(source), SPARSE)
        check_at_rest(store)


def test_missing_entries_and_missing_shards_are_filled_and_counted_once(place):
    source = sharded(SHAPE, CHUNKS, SHARDS, fill_value=-9)
    values = values_of(source)
    store = place.fill(source)
    place.remove("t/c/2/0")
    values[16:24] = -9
    place.change(KEY, lambda shard: INDEX.changed(shard, 3, (NOWHERE, NOWHERE)))
    values[10:12, 3:] = -9
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        # In parts, whole, and with the index that is known.
        for number, runs in enumerate(([5, 8], range(22), [5, 8]), start=1):
            loads = loaded(fetcher, array, runs)
            check_loads(loads, values, runs)
            n_missing = {5: 1, 8: 2, 9: 2, 10: 2, 11: 2}
            assert [load.n_missing for load in loads.loads] == [n_missing.get(r, 0) for r in runs]
            assert fetcher.n_missing == {"t": [3, 12, 15][number - 1]}
            assert fetcher.n_reads == {"t": [4, 48, 52][number - 1]}
        check_at_rest(store)


@pytest.mark.parametrize("runs", [[5], [4, 5, 6, 7], [8], [8, 9, 10, 11]])
def test_what_is_missing_can_be_an_error(place, runs):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = place.fill(source)
    place.remove("t/c/2/0")
    place.change(KEY, lambda shard: INDEX.changed(shard, 3, (NOWHERE, NOWHERE)))
    array = one_array(store, name="t")
    with fetching(store, array, on_missing="raise") as fetcher:
        loads = loaded(fetcher, array, runs)
        failed = {5} & set(runs) or set(runs)
        assert set(loads.errors) == failed
        for run, error in loads.errors.items():
            assert isinstance(error, ReadError)
            assert f"chunk ({run}, " in str(error)
            assert "on_missing" in str(error)
            assert "attempts" not in str(error)
            assert error.__cause__ is None
        assert fetcher.counts_of(array).n_retries == 0
        assert loads.n_calls == len(runs)
        check_at_rest(store)


def test_an_index_is_read_once_and_kept(remote):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        for run, n_requests in ((4, 2), (6, 3), (4, 4)):
            check_loads(loaded(fetcher, array, [run]), values_of(source), [run])
            assert remote.server.requests[KEY] == n_requests
            assert fetcher.counts_of(array).n_requests == n_requests
        # Half of the shard and more, but where everything lies is known.
        check_loads(loaded(fetcher, array, [4, 5, 6, 7]), values_of(source), [4, 5, 6, 7])
        assert remote.server.requests[KEY] == 5
    log = [(entry.byte_range, entry.status) for entry in remote.server.log if entry.key == KEY]
    assert log[0] == ("bytes=-132", 206)
    assert {status for _, status in log} == {206}


@pytest.mark.parametrize("n_wanted, n_requests", [(1, 2), (3, 2), (4, 1)])
def test_a_shard_that_is_wanted_whole_is_one_request(remote, n_wanted, n_requests):
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    runs = range(4, 4 + n_wanted)
    with fetching(store, array) as fetcher:
        check_loads(loaded(fetcher, array, runs), values_of(source), runs)
        assert fetcher.counts_of(array).n_requests == n_requests
    asked = [entry.byte_range for entry in remote.server.log if entry.key == KEY]
    assert len(asked) == n_requests
    assert any(asked) == (n_requests > 1)


@pytest.mark.parametrize("runs, n_requests", [([20, 21], 1), ([21], 2)])
def test_what_lies_outside_of_the_array_is_not_waited_for(remote, runs, n_requests):
    """Of the last shard four stored chunks of eight begin inside the array."""
    source = sharded(SHAPE, CHUNKS, SHARDS)
    store = remote.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        check_loads(loaded(fetcher, array, runs), values_of(source), runs)
        assert fetcher.counts_of(array).n_requests == n_requests


def test_a_large_shard_is_read_in_parts_however_much_of_it_is_wanted(remote, monkeypatch):
    monkeypatch.setattr(shard_reads, "_MOST_BYTES", 100)
    source = sharded((64, 6), (2, 6), (64, 6), codec="none")
    store = remote.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        check_loads(loaded(fetcher, array), values_of(source), range(32))
    ranges = [entry.byte_range for entry in remote.server.log if "/c/" in entry.key]
    # The index, then two stored chunks of 48 bytes at a time.
    assert len(ranges) == 1 + 16
    sizes = [spread(text) for text in ranges if not text.startswith("bytes=-")]
    assert set(sizes) == {96}


def spread(text):
    first, last = text.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


@pytest.mark.parametrize("most_gap, n_requests", [(0, 3), (47, 3), (48, 2), (95, 2), (96, 1)])
def test_what_lies_close_is_one_request(remote, monkeypatch, most_gap, n_requests):
    """Runs 0, 2 and 5 of one shard: a stretch of one, and one of two stored chunks between them."""
    monkeypatch.setattr(shard_reads, "_MOST_GAP", most_gap)
    source = sharded((64, 6), (2, 6), (64, 6), codec="none")
    store = remote.fill(source)
    array = one_array(store, name="t")
    own = Index(32)
    key = "t/c/0/0"
    # In the order of their numbers, whatever order Zarr writes them in.
    entries = own.of(remote.files[key])
    content = remote.files[key]
    body = b"".join(content[start : start + size] for start, size in entries)
    ordered = [[48 * number, 48] for number in range(32)]
    remote.put(key, own.put(body + bytes(own.n_bytes), ordered))
    with fetching(store, array) as fetcher:
        check_loads(loaded(fetcher, array, [5, 0, 2]), values_of(source), [5, 0, 2])
        assert fetcher.counts_of(array).n_requests == 1 + n_requests
        gaps = {3: 0, 2: 48, 1: 48 + 96}[n_requests]
        assert fetcher.bytes_read == own.n_bytes + 3 * 48 + gaps


def test_bytes_that_overlap_are_read_once(place):
    """Two stored chunks of equal content may be the same bytes."""
    source = sharded(SHAPE, CHUNKS, SHARDS, codec="none")
    store = place.fill(source)
    values = values_of(source)
    values[10:12, 3:] = values[10:12, :3]
    place.change(KEY, lambda shard: INDEX.changed(shard, 3, INDEX.of(shard)[2]))
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        check_loads(loaded(fetcher, array, [5]), values, [5])
        assert fetcher.n_reads == {"t": 2}
        check_at_rest(store)


def test_bytes_read_are_those_that_came(place):
    source = sharded(SHAPE, CHUNKS, SHARDS, codec="none")
    store = place.fill(source)
    array = one_array(store, name="t")
    with fetching(store, array, decode_threads=1) as fetcher:
        (begin, _), (other, size) = INDEX.of(place.files[KEY])[:2]
        # Where each is a read of its own, what lies between them is left out.
        n_bytes = 2 * size if place.kind == "folder" else other + size - begin
        for number in (1, 2):
            loaded(fetcher, array, [4])
            assert fetcher.bytes_read == INDEX.n_bytes + number * n_bytes
        check_at_rest(store)


def test_whole_shards_are_counted_with_their_index(remote):
    store = remote.fill(sharded(SHAPE, CHUNKS, SHARDS))
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        loaded(fetcher, array)
        stored = sum(len(content) for key, content in remote.files.items() if "/c/" in key)
        assert fetcher.bytes_read == stored
        assert fetcher.counts_of(array).n_requests == 6


def test_one_array_that_is_opened_twice_is_two():
    source = sharded(SHAPE, CHUNKS, SHARDS)
    twice = [one_array(source, name="t", decode_cf=decode_cf) for decode_cf in (True, False)]
    with fetching(source, *twice) as fetcher:
        for array in twice:
            check_loads(loaded(fetcher, array), values_of(source), range(22))
            assert fetcher.counts_of(array).n_reads == N_STORED


def test_shards_of_which_nothing_wanted_is_there_give_their_permits_back(place):
    """More of them than reads may be begun, so that the last ones wait for the first."""
    source = sharded((64, 4), (2, 4), (4, 4), fill_value=-1)
    place.fill(source)
    for shard in range(16):
        place.put(f"t/c/{shard}/0", Index(2).put(b"\0" * 36, 2 * [(NOWHERE, NOWHERE)]))
    array = one_array(place.store, name="t")
    with fetching(place.store, array, max_inflight=1) as fetcher:
        loads = loaded(fetcher, array)
        assert (loads.values == -1).all()
        assert fetcher.n_reads == fetcher.n_missing == {"t": 32}
        check_at_rest(place.store)
