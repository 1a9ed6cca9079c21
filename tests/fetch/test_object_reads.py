"""Object stores are read with blocking gets, which hold nobody when a server does not answer."""

import pathlib
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import numpy as np
import obstore.store
import pytest
import zarr
from zarr.storage import ObjectStore

from tests.contracts.watchdog import promptly
from tests.fetch.loads import WAIT_S, Loads, fetching, one_array
from tests.fetch.shard_stores import Index, check_at_rest, files_of, sharded, values_of
from tests.small_loaders import eventually
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch.chunk_fetcher import Cancelled, ChunkFetcher
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.stores import open_store
from torchdata_insitu.testing import CountingStore, FaultServer, is_chunk, make_store

SHAPE, CHUNKS = (10, 4, 6), (2, 2, 3)
N_STORED = 20
KEY = "t/c/1/0/0"
QUICK = RetryPolicy(attempts=3, first_delay_s=1e-3)


@pytest.fixture
def inner():
    return make_store({"t": SHAPE}, chunks=CHUNKS)


@pytest.fixture
def values(inner):
    return zarr.open_array(inner, path="t")[...]


@pytest.fixture
def server(inner):
    with FaultServer(inner) as server:
        yield server


@pytest.fixture
def store(server):
    """Of one try: what obstore tries again itself is not what is tested."""
    return open_store(server.url, retry_config={"max_retries": 0})


def test_a_store_that_knows_no_end_of_an_object_is_asked_for_its_size(monkeypatch):
    """As Azure does."""
    store = ObjectStore(obstore.store.MemoryStore())
    made = sharded(SHAPE, (2, 2, 3), (10, 4, 6))
    for key, content in files_of(made).items():
        obstore.put(store.store, key, content)
    whole, asked = obstore.get, []

    def get(inner, key, *, options=None):
        asked.append(options)
        if isinstance(options["range"], dict):
            raise obstore.exceptions.NotSupportedError(
                "Azure does not support suffix range requests"
            )
        return whole(inner, key, options=options)

    monkeypatch.setattr(obstore, "get", get)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        loads = Loads(array, [1])
        fetcher.submit(loads.loads)
        assert np.array_equal(loads.wait().values, zarr.open_array(made, path="t")[2:4])
    assert asked[0] == {"range": {"suffix": 20 * 16 + 4}}
    assert all(isinstance(options["range"], tuple) for options in asked[1:])


def test_a_store_that_refuses_its_own_tags_is_asked_without(monkeypatch):
    store = ObjectStore(obstore.store.MemoryStore())
    made = sharded(SHAPE, (2, 2, 3), (10, 4, 6))
    for key, content in files_of(made).items():
        obstore.put(store.store, key, content)
    plain, n_refused = obstore.get, 0

    def get(inner, key, *, options=None):
        nonlocal n_refused
        if options is not None and "if_match" in options:
            n_refused += 1
            raise obstore.exceptions.PreconditionError("the content has another tag")
        return plain(inner, key, options=options)

    monkeypatch.setattr(obstore, "get", get)
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        loads = Loads(array, [1])
        fetcher.submit(loads.loads)
        assert np.array_equal(loads.wait().values, zarr.open_array(made, path="t")[2:4])
    assert 0 < n_refused < 10
    check_at_rest(store)


def loaded(store, **options):
    array = one_array(store, name="t")
    with fetching(store, array, **options) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        return loads.wait(), fetcher.counts_of(array)


def reader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("insitu-read")]


def test_values_are_those_of_zarr_and_each_key_is_asked_for_once(server, store, values):
    loads, counts = loaded(store)
    np.testing.assert_array_equal(loads.values, values)
    assert counts.n_reads == N_STORED
    assert {n for key, n in server.requests.items() if "/c/" in key} == {1}


@pytest.mark.parametrize("max_inflight", [1, 3, 64, 65])
def test_requests_stay_within_max_inflight(server, store, values, max_inflight):
    array = one_array(store, name="t")
    server.fail(stall=True)
    with fetching(store, array, max_inflight=max_inflight) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        most = min(max_inflight, N_STORED)
        assert server.wait_for(lambda s: s.n_stalled == most)
        assert limiter_of(store).n_inflight == most
        assert len(reader_threads()) == (most if max_inflight <= 64 else 0)
        server.release()
        np.testing.assert_array_equal(loads.wait().values, values)
    assert server.most_inflight <= max_inflight


def test_it_is_read_on_zarrs_loop_where_more_is_allowed_than_threads_are_good_for(store):
    array = one_array(store, name="t")
    said = [ChunkFetcher(store, [array], max_inflight=n).describe(array) for n in (5, 65)]
    assert said == [
        "blocking reads of obstore on up to 5 reader threads; zstd, through scratch",
        "Zarr's event loop; zstd, through scratch",
    ]


def test_subclasses_and_wrappers_are_read_through_their_own_get(store, values):
    asked = Counter()

    class Own(ObjectStore):
        async def get(self, key, prototype=None, byte_range=None):
            asked[key] += 1
            return await super().get(key, prototype, byte_range)

    counted = CountingStore(store)
    own = Own(store.store, read_only=True)
    for other, gets in ((counted, counted.gets), (own, asked)):
        array = one_array(other, name="t")
        assert ChunkFetcher(other, [array]).describe(array).startswith("Zarr's event loop")
        np.testing.assert_array_equal(loaded(other)[0].values, values)
        assert sum(n for key, n in gets.items() if is_chunk(key)) == N_STORED


def test_stores_in_memory_of_obstore_are_read_too(inner, values):
    memory = obstore.store.MemoryStore()
    with FaultServer(inner) as server:
        for key, content in server.files.items():
            obstore.put(memory, key, content)
    np.testing.assert_array_equal(loaded(ObjectStore(memory, read_only=True))[0].values, values)


def test_missing_keys_are_filled_and_counted(server, store):
    server.fail(KEY, status=404)
    loads, counts = loaded(store)
    assert (loads.values[2:4, :2, :3] == 0).all()
    assert counts.n_missing == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503},
        {"status": 500},
        {"status": 429},
        {"cut_after": 5},
        {"reset": True},
        {"status": 200, "body": b"<html>sign in</html>"},
        {"content_length": 10**6},
    ],
    ids=str,
)
def test_what_fails_once_is_read_again(server, store, values, fault):
    server.fail(KEY, times=1, **fault)
    loads, counts = loaded(store, retry=QUICK)
    np.testing.assert_array_equal(loads.values, values)
    assert counts.n_retries == 1
    assert counts.n_reads == N_STORED
    assert server.requests[KEY] == 2


@pytest.mark.parametrize(
    "fault, n_requests, expected",
    [
        ({"status": 503}, 3, (ReadError, "after 3 attempts in .*503")),
        ({"cut_after": 5}, 3, (ReadError, "after 3 attempts in .*body error")),
        ({"status": 403}, 1, (ReadError, "cannot read .*403")),
        ({"status": 401}, 1, (ReadError, "cannot read .*401")),
        ({"status": 410}, 1, (ReadError, "cannot read .*410")),
        (
            {"status": 200, "body": b"<html>sign in</html>"},
            2,
            (DecodeError, "after 2 attempts in "),
        ),
    ],
    ids=str,
)
def test_what_always_fails_is_an_error_that_names_the_chunk(
    server, store, fault, n_requests, expected
):
    error, said = expected
    server.fail(KEY, **fault)
    loads, _ = loaded(store, retry=QUICK)
    assert list(loads.errors) == [1]
    with pytest.raises(error, match=said) as raised:
        raise loads.errors[1]
    for fact in ("'t'", repr(KEY), "(1, 0, 0)"):
        assert fact in str(raised.value)
    assert server.requests[KEY] == n_requests


def test_a_server_that_restarts_is_waited_for(server, store, values):
    array = one_array(store, name="t")
    with fetching(store, array, retry=RetryPolicy(attempts=100, longest_delay_s=0.01)) as fetcher:
        server.down()
        loads = Loads(array)
        fetcher.submit(loads.loads)
        eventually(lambda: fetcher.counts_of(array).n_retries > 20)
        server.up()
        np.testing.assert_array_equal(loads.wait().values, values)


def test_a_server_that_does_not_answer_holds_nobody(server, store, values):
    array = one_array(store, name="t")
    server.fail(stall=True)
    fetcher = ChunkFetcher(store, [array], max_inflight=8)
    loads = Loads(array)
    fetcher.submit(loads.loads)
    assert server.wait_for(lambda s: s.n_stalled == 8)
    began = time.monotonic()
    fetcher.cancel()
    assert loads.all_ended.is_set()
    fetcher.close()
    fetcher.close()
    assert time.monotonic() - began < 1
    assert {type(error) for error in loads.ends.values()} == {Cancelled}
    for slot in loads.slots:
        np.testing.assert_array_equal(slot.view(np.uint8), 0xA5)
    # They count until they are back, and then leave.
    assert limiter_of(store).n_inflight == 8
    assert len(reader_threads()) == 8
    server.release()
    with promptly():
        for thread in reader_threads():
            thread.join()
    assert limiter_of(store).n_inflight == 0
    assert loads.n_calls == array.n_chunks
    np.testing.assert_array_equal(loaded(store)[0].values, values)


def test_after_a_cancel_new_reads_wait_for_the_room_of_old_ones(server, store, values):
    array = one_array(store, name="t")
    server.fail("t/c/0/0/0", stall=True)
    with fetching(store, array, max_inflight=1) as fetcher:
        first, later = Loads(array, [0]), Loads(array, [1, 2, 3, 4])
        fetcher.submit(first.loads)
        assert server.wait_for(lambda s: s.n_stalled == 1)
        fetcher.cancel()
        assert type(first.ends[0]) is Cancelled
        fetcher.submit(later.loads)
        assert server.most_inflight == 1
        server.release()
        np.testing.assert_array_equal(later.wait().values, values[2:])
    assert server.most_inflight == 1


def test_reader_threads_end_when_the_fetcher_is_collected(server, store):
    array = one_array(store, name="t")
    server.fail("t/c/0/0/0", stall=True)
    fetcher = ChunkFetcher(store, [array], max_inflight=4)
    loads = Loads(array)
    fetcher.submit(loads.loads)
    assert server.wait_for(lambda s: s.n_stalled == 1)
    eventually(lambda: len(loads.ends) == array.n_chunks - 1)
    del fetcher
    assert type(loads.wait().ends[0]) is Cancelled
    eventually(lambda: len(reader_threads()) == 1)
    server.release()
    eventually(lambda: not reader_threads())


def test_cancelling_from_many_sides_ends_every_load_once(server, store, values):
    array = one_array(store, name="t")
    server.fail(KEY, stall=True)
    everything = []

    def uses(fetcher, seed):
        draw = np.random.default_rng(seed)
        for _ in range(5):
            loads = Loads(array, draw.permutation(5).tolist())
            everything.append(loads)
            fetcher.submit(loads.loads)
            (int, fetcher.cancel, fetcher.close)[draw.choice(3, p=[0.3, 0.4, 0.3])]()

    with fetching(store, array, max_inflight=25, decode_threads=2) as fetcher:
        users = [threading.Thread(target=uses, args=(fetcher, seed)) for seed in range(3)]
        for user in users:
            user.start()
        for user in users:
            user.join(WAIT_S)
    server.release()
    for loads in everything:
        loads.wait()
        assert loads.n_calls == 5
        for run, slot in zip(loads.runs, loads.slots, strict=True):
            if loads.ends[run] is None:
                np.testing.assert_array_equal(slot, values[2 * run : 2 * run + 2])
            else:
                assert type(loads.ends[run]) is Cancelled
    eventually(lambda: limiter_of(store).n_inflight == 0 and limiter_of(store).n_bytes == 0)


def test_parts_of_shards_are_ranges_of_objects():
    source = sharded((16, 6), (2, 6), (16, 6), codec="none")
    with FaultServer(source) as server:
        store = open_store(server.url)
        loads = loaded_runs(store, [3, 4])
        np.testing.assert_array_equal(loads.values, values_of(source)[6:10])
        asked = [entry.byte_range for entry in server.log if "/c/" in entry.key]
    suffix, part = asked
    assert suffix == f"bytes=-{Index(8).n_bytes}"
    first, last = part.removeprefix("bytes=").split("-")
    assert int(last) - int(first) + 1 == 96


def loaded_runs(store, runs):
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        loads = Loads(array, runs)
        fetcher.submit(loads.loads)
        return loads.wait()


def test_more_stored_chunks_of_shards_than_reads_may_be_under_way():
    """Every part is a read of its own, since what lies between is long."""
    source = sharded((40, 20_000), (1, 20_000), (40, 20_000), codec="none")
    with FaultServer(source) as server:
        store = open_store(server.url)
        array = one_array(store, name="t")
        runs = list(range(0, 40, 3))
        with fetching(store, array, max_inflight=2) as fetcher:
            loads = Loads(array, runs)
            fetcher.submit(loads.loads)
            np.testing.assert_array_equal(loads.wait().values, values_of(source)[::3])
            assert server.most_inflight <= 2
            assert fetcher.counts_of(array).n_requests == 1 + len(runs)
            check_at_rest(store)


EXIT = """
    import sys, time
    import torchdata_insitu as tdi
    from tests.fetch.loads import Loads, one_array
    from torchdata_insitu.fetch.chunk_fetcher import ChunkFetcher
    from torchdata_insitu.fetch.stores import open_store

    store = open_store({url!r})
    array = one_array(store, name="t")
    fetcher = ChunkFetcher(store, [array], max_inflight=8)
    fetcher.submit(Loads(array).loads)
    print("reading", flush=True)
    sys.stdin.readline()

    class Slow:
        # Gives the reads time to end while the interpreter is being taken down.
        def __del__(self, sleep=time.sleep):
            sleep({linger_s})

    sys.slow = Slow()
"""


@pytest.mark.parametrize("ends", ["never", "while the interpreter goes"])
def test_the_interpreter_exits_cleanly_whenever_reads_end(server, ends):
    server.fail(stall=True)
    linger_s = 0 if ends == "never" else 1.0
    script = textwrap.dedent(EXIT.format(url=server.url, linger_s=linger_s))
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path.cwd(),
    ) as process:
        assert process.stdout.readline() == "reading\n"
        assert server.wait_for(lambda s: s.n_stalled == 8, WAIT_S)
        began = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        if ends != "never":
            threading.Timer(0.7, server.release).start()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert time.monotonic() - began < 10
    server.release()
