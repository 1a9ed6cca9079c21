"""Loads end exactly once, with the values of the store, however they are stopped."""

import asyncio
import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import numpy as np
import obstore.store
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.sync import _get_loop, sync
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from tests.fake_stores import Changes, NeverAnswers, Raises, is_chunk, only, without
from tests.fetch.loads import WAIT_S, Loads, fetching, load, one_array, stale_slot
from tests.small_loaders import eventually
from torchdata_insitu.errors import ClosedError, DecodeError, GeometryError, ReadError
from torchdata_insitu.fetch import zarr_loop_reader
from torchdata_insitu.fetch.chunk_fetcher import Cancelled, ChunkFetcher
from torchdata_insitu.fetch.chunk_load import ChunkLoad
from torchdata_insitu.fetch.stores import open_store
from torchdata_insitu.testing import CountingStore, make_store

SHAPE = (10, 4, 6)
TILES = (2, 2, 3)


@pytest.fixture(params=["folder", "memory", "wrapped folder"])
def tiled(request, tmp_path):
    """Five chunks of four stored chunks each, read in every way there is."""
    path = None if request.param == "memory" else tmp_path / "store"
    store = make_store({"t": SHAPE}, chunks=TILES, path=path)
    return CountingStore(store) if request.param == "wrapped folder" else store


def on_loop(n_turns=5):
    """Let Zarr's loop do what it was told before."""

    async def turns():
        for _ in range(n_turns):
            await asyncio.sleep(0)

    sync(turns())


def wait_until(loads_or_store, condition):
    """Poll on Zarr's loop, whose every turn may bring the condition about."""
    for _ in range(10_000):
        if condition(loads_or_store):
            return
        on_loop(1)
    pytest.fail("it did not come about")


def decode_threads():
    return [t for t in threading.enumerate() if t.name.startswith("insitu-decode")]


@given(data=st.data())
def test_values_equal_those_of_zarr(data):
    shape = data.draw(st.tuples(*[st.integers(1, 7)] * 3), label="shape")
    chunks = data.draw(st.tuples(*[st.integers(1, 9)] * 3), label="chunks")
    axis = data.draw(st.integers(0, 2), label="sample axis")
    codec = data.draw(st.sampled_from(["zstd", "blosc", "none", "gzip"]), label="codec")
    zarr_format = data.draw(st.sampled_from([2, 3]), label="format")
    store = make_store({"t": shape}, chunks=chunks, codec=codec, zarr_format=zarr_format)
    expected = np.moveaxis(zarr.open_array(store, path="t")[...], axis, 0)
    np.testing.assert_array_equal(load(store, sample_axis=axis).values, expected)


def test_every_store_gives_the_values_of_zarr(tiled):
    np.testing.assert_array_equal(load(tiled).values, zarr.open_array(tiled, path="t")[...])


def test_making_a_fetcher_starts_and_reads_nothing():
    store = CountingStore(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    before, reads = threading.enumerate(), store.gets.total()
    ChunkFetcher(store, [array])
    assert threading.enumerate() == before
    assert store.gets.total() == reads


def test_every_load_ends_once_on_a_decode_thread(tiled):
    array = one_array(tiled)
    with fetching(tiled, array, decode_threads=2) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert loads.n_calls == array.n_chunks
    assert all(name.startswith("insitu-decode") for name in loads.threads)


def test_each_stored_chunk_is_asked_for_once(tiled):
    store = CountingStore(tiled)
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
        assert fetcher.n_reads == {"t": 20}
    assert store.reads("t/") == 20
    assert max(store.gets.values()) <= 3  # metadata documents; a chunk has exactly one


def test_bytes_and_missing_chunks_are_counted():
    store = make_store({"t": (6, 4)}, chunks=(2, 4), codec="none")
    array = one_array(store)
    with fetching(without(store, ["t/c/1/0"]), array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        values = loads.wait().values
        assert (fetcher.n_reads["t"], fetcher.n_missing["t"]) == (3, 1)
        assert fetcher.bytes_read == 2 * 2 * 4 * 4
    assert (values[2:4] == 0).all()


def test_folder_without_a_chunk_counts_it_as_missing(tmp_path):
    store = make_store({"t": (6, 4)}, chunks=(2, 4), path=tmp_path)
    (tmp_path / "t/c/1/0").unlink()
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        np.testing.assert_array_equal(loads.wait().values, zarr.open_array(store, path="t")[...])
        assert fetcher.n_missing == {"t": 1}


def test_several_arrays_share_a_fetcher():
    store = make_store({"t": (6, 4), "u": (6, 4)}, chunks=(2, 4))
    arrays = [one_array(store, name=name) for name in ("t", "u")]
    with fetching(store, *arrays) as fetcher:
        for array in arrays:
            loads = Loads(array)
            fetcher.submit(loads.loads)
            want = zarr.open_array(store, path=array.path)[...]
            np.testing.assert_array_equal(loads.wait().values, want)
        assert fetcher.n_reads == {"t": 3, "u": 3}


def test_no_loads_start_no_thread():
    store = make_store({"t": SHAPE}, chunks=TILES)
    with fetching(store, one_array(store)) as fetcher:
        fetcher.submit([])
        assert not decode_threads()


def test_unknown_chunk_and_unknown_array_are_refused_before_anything_is_read():
    store = CountingStore(make_store({"t": SHAPE, "u": SHAPE}, chunks=TILES))
    t, u = (one_array(store, name=name) for name in ("t", "u"))
    with fetching(store, t) as fetcher:
        with pytest.raises(GeometryError, match=r"'t' has the chunks \(0, 0\) to \(4, 0\)"):
            fetcher.submit([*Loads(t).loads, ChunkLoad(t, 5, 0, stale_slot(t), print)])
        with pytest.raises(GeometryError, match="'u' is none of those"):
            fetcher.submit(Loads(u).loads)
    assert store.reads("t/") == 0


def test_slot_of_another_kind_is_refused():
    store = make_store({"t": SHAPE}, chunks=TILES)
    array = one_array(store)
    good = stale_slot(array)
    with fetching(store, array) as fetcher:
        for slot in (good[:1], good.view("i4"), np.asfortranarray(good)):
            with pytest.raises(GeometryError, match=r"a slot of array 't' has shape \(2, 4, 6\)"):
                fetcher.submit([ChunkLoad(array, 0, 0, slot, print)])


def test_closed_loop_ends_the_loads_with_an_error(monkeypatch):
    store = CountingStore(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    closed = asyncio.new_event_loop()
    closed.close()
    with fetching(store, array) as fetcher:
        with monkeypatch.context() as patch:
            patch.setattr(zarr_loop_reader, "zarr_loop", lambda: closed)
            failed = Loads(array)
            fetcher.submit(failed.loads)
            assert all(isinstance(error, ReadError) for error in failed.wait().ends.values())
        later = Loads(array)
        fetcher.submit(later.loads)
        assert not later.wait().errors
        assert failed.n_calls == array.n_chunks


def test_error_of_one_stored_chunk_ends_its_load_only(tiled):
    store = Raises(tiled, lambda: OSError("the disk is on fire"), only("t/c/1/1/0"))
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert list(loads.errors) == [1]
    error = loads.errors[1]
    assert isinstance(error, ReadError)
    for fact in ("'t'", "'t/c/1/1/0'", "(1, 1, 0)", "the disk is on fire"):
        assert fact in str(error)
    assert isinstance(error.__cause__, OSError)


def test_first_error_is_the_one_that_counts(tiled):
    store = Changes(tiled, lambda _: b"garbage", lambda key: key.startswith("t/c/2/"))
    array = one_array(store)
    with fetching(store, array, decode_threads=1) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert loads.n_calls == array.n_chunks
    assert isinstance(loads.errors[2], DecodeError)


def test_kept_error_does_not_keep_the_slot():
    store = Changes(make_store({"t": (4, 2)}, chunks=(2, 2)), lambda _: b"garbage")
    array = one_array(store)
    errors, ended = [], threading.Event()
    slot = stale_slot(array)
    with fetching(store, array) as fetcher:
        fetcher.submit(
            [ChunkLoad(array, 0, 0, slot, lambda _, error: (errors.append(error), ended.set()))]
        )
        assert ended.wait(WAIT_S)
    freed = weakref.ref(slot)
    del slot
    assert freed() is None
    assert errors[0].__traceback__ is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_store_that_raises_what_ends_a_loop_is_a_read_error(error):
    store = Raises(make_store({"t": (4, 2)}, chunks=(2, 2)), error)
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert all(isinstance(error, ReadError) for error in loads.errors.values())
    assert len(loads.errors) == 2
    on_loop()


def test_store_that_returns_no_buffer_is_a_read_error():
    class ReturnsBytes(WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            buffer = await super().get(key, prototype, byte_range)
            return buffer.to_bytes() if is_chunk(key) else buffer

    store = make_store({"t": (4, 2)}, chunks=(2, 2))
    array = one_array(store)
    with fetching(ReturnsBytes(store), array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert all(isinstance(error, ReadError) for error in loads.ends.values())


def test_store_that_never_answers_is_cancelled_at_once():
    store = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    with fetching(store, array, max_inflight=3) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        wait_until(store, lambda s: s.n_waiting == 3)
        fetcher.cancel()
        assert loads.all_ended.is_set()
        wait_until(store, lambda s: s.n_waiting == 0)
    assert all(type(error) is Cancelled for error in loads.errors.values())
    assert loads.n_calls == array.n_chunks
    assert store.n_cancelled == 3
    for slot in loads.slots:
        np.testing.assert_array_equal(slot.view(np.uint8), 0xA5)


def test_loads_after_a_cancel_are_read():
    stuck = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES), only("t/c/0/0/0"))
    array = one_array(stuck)
    with fetching(stuck, array, max_inflight=2) as fetcher:
        first, second = Loads(array, [0]), Loads(array, [1, 2])
        fetcher.submit(first.loads)
        fetcher.cancel()
        fetcher.submit(second.loads)
        np.testing.assert_array_equal(
            second.wait().values, zarr.open_array(stuck._store, path="t")[2:6]
        )
    assert type(first.errors[0]) is Cancelled


def test_close_returns_over_a_store_that_never_answers():
    store = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    fetcher = ChunkFetcher(store, [array])
    loads = Loads(array)
    fetcher.submit(loads.loads)
    fetcher.close()
    fetcher.close()
    assert len(loads.errors) == array.n_chunks
    assert not decode_threads()
    wait_until(store, lambda s: s.n_waiting == 0)


def test_fetcher_works_again_after_close(tiled):
    array = one_array(tiled)
    with fetching(tiled, array) as fetcher:
        for _ in range(3):
            loads = Loads(array)
            fetcher.submit(loads.loads)
            np.testing.assert_array_equal(
                loads.wait().values, zarr.open_array(tiled, path="t")[...]
            )
            fetcher.close()
            assert not decode_threads()


@pytest.mark.parametrize("max_inflight", [1, 2, 7])
def test_reads_under_way_stay_within_max_inflight(max_inflight):
    store = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    with fetching(store, array, max_inflight=max_inflight) as fetcher:
        loads = Loads(array)
        for item in loads.loads:
            fetcher.submit([item])
        wait_until(store, lambda s: s.n_waiting == max_inflight)
        on_loop()
        assert store.n_waiting == max_inflight
        sync(store.answer())
        loads.wait()
    assert store.most_waiting == max_inflight
    np.testing.assert_array_equal(loads.values, zarr.open_array(store, path="t")[...])


def test_other_users_of_the_loop_are_left_alone():
    config = dict(zarr.config.config)
    loop, executor = _get_loop(), _get_loop()._default_executor
    other = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), loop)
    store = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    fetcher = ChunkFetcher(store, [array])
    fetcher.submit(Loads(array).loads)
    wait_until(store, lambda s: s.n_waiting == 20)
    unrelated = make_store({"v": (3, 2)}, chunks=(1, 2))
    assert zarr.open_array(unrelated, path="v")[2, 1] == 5
    fetcher.close()
    assert zarr.open_array(unrelated, path="v")[2, 1] == 5
    on_loop()
    assert not other.done()
    assert _get_loop() is loop
    assert loop.is_running()
    assert loop._default_executor is executor
    assert dict(zarr.config.config) == config
    other.cancel()


@pytest.fixture
def pipe(tmp_path):
    """A folder store of five chunks whose first is a pipe: its reader waits for a writer."""
    store = make_store({"t": (10, 3)}, chunks=(2, 3), codec="none", path=tmp_path)
    path = tmp_path / "t/c/0/0"
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    return store, path, content


def test_cancel_ends_queued_loads_at_once_and_a_running_one_when_its_writer_left(pipe):
    store, path, content = pipe
    array = one_array(store)
    with fetching(store, array, decode_threads=1) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        with path.open("wb") as writer:  # opens when the decode thread has opened its end
            fetcher.cancel()
            assert sorted(loads.ends) == [1, 2, 3, 4]
            writer.write(content)
        loads.wait()
    assert all(type(error) is Cancelled for error in loads.ends.values())
    for slot in loads.slots[1:]:
        np.testing.assert_array_equal(slot.view(np.uint8), 0xA5)


def test_callback_that_raises_is_reported_and_the_threads_go_on(monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    store = make_store({"t": SHAPE}, chunks=TILES)
    array = one_array(store)

    def fails(load, error):
        raise ZeroDivisionError(str(load))

    with fetching(store, array, decode_threads=1) as fetcher:
        fetcher.submit([ChunkLoad(array, 0, 0, stale_slot(array), fails)])
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert not loads.errors
    assert [args.exc_type for args in reported] == [ZeroDivisionError]
    assert reported[0].thread.name.startswith("insitu-decode")


def test_an_interrupt_while_loads_are_cancelled_leaves_none_of_them():
    """Ctrl-C comes to the main thread, which waits for the ends of the loads."""
    closing, loads = unanswered(4)
    main = threading.main_thread().ident

    def interrupts(load, error):
        signal.pthread_kill(main, signal.SIGINT)
        loads.done(load, error)

    loads.loads[0].done = interrupts
    with closing as fetcher:
        with pytest.raises(KeyboardInterrupt):
            fetcher.cancel()
        loads.wait()
    assert all(type(error) is Cancelled for error in loads.ends.values())
    assert loads.n_calls == len(loads.loads)


@pytest.mark.parametrize("number", [0, 1])
def test_an_interrupt_in_a_callback_is_raised_after_the_other_loads_ended(monkeypatch, number):
    """Where no thread can be started any more, callbacks run on the thread that cancels."""
    closing, loads = unanswered(3)

    def interrupted(load, error):
        loads.done(load, error)
        raise KeyboardInterrupt

    def cannot_start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    loads.loads[number].done = interrupted
    with closing as fetcher:
        monkeypatch.setattr(threading.Thread, "start", cannot_start)
        with pytest.raises(KeyboardInterrupt):
            fetcher.cancel()
        monkeypatch.undo()
        assert len(loads.ends) == 3
    assert all(type(error) is Cancelled for error in loads.ends.values())


def unanswered(n_loads):
    """A fetcher that is closed by a `with` block, and loads that wait for a store for ever."""
    store = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    fetcher = ChunkFetcher(store, [array], decode_threads=1)
    loads = Loads(array, range(n_loads))
    fetcher.submit(loads.loads)
    eventually(lambda: store.n_waiting)
    return contextlib.closing(fetcher), loads


def test_callback_may_submit_and_close():
    store = make_store({"t": SHAPE}, chunks=TILES)
    array = one_array(store)
    with fetching(store, array, decode_threads=1) as fetcher:
        later = Loads(array, [1])
        closed = threading.Event()

        def submits(load, error):
            fetcher.submit(later.loads)

        fetcher.submit([ChunkLoad(array, 0, 0, stale_slot(array), submits)])
        assert not later.wait().errors

        def closes(load, error):
            fetcher.close()
            closed.set()

        fetcher.submit([ChunkLoad(array, 0, 0, stale_slot(array), closes)])
        assert closed.wait(WAIT_S)


def test_threads_end_when_the_fetcher_is_collected(tiled):
    array = one_array(tiled)
    fetcher = ChunkFetcher(tiled, [array])
    loads = Loads(array)
    fetcher.submit(loads.loads)
    loads.wait()
    threads = decode_threads()
    assert threads
    gone = weakref.ref(fetcher)
    del fetcher
    assert gone() is None
    for thread in threads:
        thread.join(WAIT_S)
    assert not decode_threads()


def test_collection_ends_loads_that_wait_for_a_store():
    store = NeverAnswers(make_store({"t": SHAPE}, chunks=TILES))
    array = one_array(store)
    fetcher = ChunkFetcher(store, [array])
    loads = Loads(array)
    fetcher.submit(loads.loads)
    wait_until(store, lambda s: s.n_waiting == 20)
    del fetcher
    loads.wait()
    wait_until(store, lambda s: s.n_waiting == 0)
    assert all(type(error) is Cancelled for error in loads.errors.values())


def test_collection_in_a_cycle_is_safe_wherever_it_happens():
    store = make_store({"t": SHAPE}, chunks=TILES)
    array = one_array(store)
    for _ in range(20):
        cycle = {"fetcher": ChunkFetcher(store, [array], decode_threads=2)}
        cycle["self"] = cycle
        loads = Loads(array)
        cycle["fetcher"].submit(loads.loads)
        del cycle
        gc.collect()
        loads.wait()
        assert all(type(error) is Cancelled for error in loads.errors.values())
    for thread in decode_threads():
        thread.join(WAIT_S)


@pytest.mark.parametrize("kind", ["folder", "memory", "stalls"])
def test_every_load_ends_once_whoever_submits_and_cancels(kind, tmp_path, caplog):
    store = make_store({"t": SHAPE}, chunks=TILES, path=tmp_path if kind == "folder" else None)
    expected = zarr.open_array(store, path="t")[...]
    if kind == "stalls":
        store = NeverAnswers(store, lambda key: is_chunk(key) and key.endswith("1/1"))
    array = one_array(store)
    everything = []

    def submits(fetcher, seed):
        random = np.random.default_rng(seed)
        for _ in range(6):
            loads = Loads(array, random.permutation(5).tolist())
            everything.append(loads)
            fetcher.submit(loads.loads)
            (int, fetcher.cancel, fetcher.close)[random.choice(3, p=[0.4, 0.4, 0.2])]()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for seed in range(12):
            with fetching(store, array, max_inflight=2 + seed % 7, decode_threads=2) as fetcher:
                users = [
                    threading.Thread(target=submits, args=(fetcher, (seed, n))) for n in range(3)
                ]
                for user in users:
                    user.start()
                for user in users:
                    user.join(WAIT_S)
    finally:
        sys.setswitchinterval(interval)
    assert len(everything) == 12 * 3 * 6
    for loads in everything:
        loads.wait()
        assert loads.n_calls == 5
        for run, slot in zip(loads.runs, loads.slots, strict=True):
            if loads.ends[run] is None:
                np.testing.assert_array_equal(slot, expected[2 * run : 2 * run + 2])
            else:
                assert type(loads.ends[run]) is Cancelled
    on_loop()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_is_told_to_spawn():
    store = make_store({"t": SHAPE}, chunks=TILES)
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
        ours, theirs = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CPython warns of what is tested here
            child = os.fork()
        if child == 0:
            try:
                fetcher.submit(loads.loads)
            except ClosedError as error:
                os.write(theirs, str(error).encode())
            fetcher.cancel()
            fetcher.close()
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as answer:
            text = answer.read()
        assert os.waitpid(child, 0)[1] == 0
    assert "spawn" in text
    assert "MemoryStore" not in text


def test_interpreter_exits_quietly_while_reads_wait():
    script = textwrap.dedent(
        """
        from tests.fake_stores import NeverAnswers
        from tests.fetch.loads import Loads, one_array
        from torchdata_insitu.fetch.chunk_fetcher import ChunkFetcher
        from torchdata_insitu.testing import make_store

        store = NeverAnswers(make_store({"t": (10, 4, 6)}, chunks=(2, 2, 3)))
        array = one_array(store)
        fetcher = ChunkFetcher(store, [array])
        fetcher.submit(Loads(array).loads)
        while store.n_waiting < 20:
            pass
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=pathlib.Path.cwd(),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_describe_says_how_an_array_is_read(tmp_path):
    folder = make_store({"t": (4, 3)}, chunks=(2, 3), path=tmp_path)
    array = one_array(folder)
    assert ChunkFetcher(folder, [array]).describe(array) == (
        "local files; zstd, straight into the slot"
    )
    through_obstore = open_store(obstore.store.LocalStore(tmp_path))
    assert ChunkFetcher(through_obstore, [array]).describe(array).startswith("local files")
    np.testing.assert_array_equal(
        load(through_obstore).values, zarr.open_array(folder, path="t")[...]
    )
    counted = CountingStore(folder)
    assert ChunkFetcher(counted, [array]).describe(array) == (
        "Zarr's event loop; zstd, straight into the slot"
    )


def test_subclass_of_a_folder_store_is_read_through_its_own_get(tmp_path):
    class Upper(LocalStore):
        n_gets = 0

        async def get(self, key, prototype=None, byte_range=None):
            self.n_gets += 1
            return await super().get(key, prototype, byte_range)

    make_store({"t": (4, 3)}, chunks=(2, 3), path=tmp_path)
    store = Upper(tmp_path)
    array = one_array(store)
    before = store.n_gets
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert store.n_gets == before + 2


def test_group_below_the_root_and_root_array_have_their_keys():
    nested = make_store({"group/t": (4, 3)}, chunks=(2, 3))
    np.testing.assert_array_equal(load(nested).values, zarr.open_array(nested, path="group/t")[...])
    root = MemoryStore()
    zarr.create_array(root, data=np.arange(12).reshape(4, 3), chunks=(2, 2))
    np.testing.assert_array_equal(load(root).values, zarr.open_array(root)[...])


def test_what_was_decided_before_a_close_does_not_start_the_readers_again(tiled):
    array = one_array(tiled)
    with fetching(tiled, array) as fetcher:
        generation = fetcher.generation
        fetcher.close()
        loads = Loads(array)
        fetcher.submit(loads.loads, generation)
        assert {type(error) for error in loads.errors.values()} == {Cancelled}
        assert decode_threads() == []
        later = Loads(array)
        fetcher.submit(later.loads, fetcher.generation)
        assert later.wait().errors == {}
