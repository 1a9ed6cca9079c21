"""What passes between threads in an epoch, by stored chunk and by batch, and what is read.

Nothing is timed. Each count is also taken of a library into which a fault is planted that makes it
slower and changes no value: a check that passes then is none.
"""

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest

import torchdata_insitu as tdi
from tests.contracts.hot_paths import (
    N_SAMPLES,
    PATHS,
    STORED,
    WHOLE_SHARDS,
    keep_files_fast,
    make_stores,
    plain_views,
    store_of,
    warm,
)
from torchdata_insitu.fetch import chunk_job
from torchdata_insitu.fetch.chunk_load import ChunkLoad
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.fetch_engine import FetchEngine
from torchdata_insitu.fetch.limiter import Limiter
from torchdata_insitu.fetch.local_file_reader import LocalFileReader
from torchdata_insitu.fetch.reader_threads import ReaderThreads
from torchdata_insitu.fetch.shard_reads import NextJobs, ShardReads
from torchdata_insitu.fetch.zarr_loop_reader import ZarrLoopReader
from torchdata_insitu.gate import Gate
from torchdata_insitu.nodes.prefetch_channel import PrefetchChannel
from torchdata_insitu.pool.admission import Admission


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory)


@pytest.fixture(autouse=True)
def fast_files(monkeypatch):
    keep_files_fast(monkeypatch)


class HandOvers:
    """What passes between threads: jobs by queue, and calls that wake or schedule somebody."""

    def __init__(self, monkeypatch):
        # Noted by appending, which no lock is needed for.
        self._noted = []
        for owner, put, queue in (
            (DecodeThreads, "put", "decode"),
            (ReaderThreads, "_submit", "read"),
            (ZarrLoopReader, "submit", "loop"),
        ):
            monkeypatch.setattr(owner, put, self._jobs(getattr(owner, put), queue))
        for owner, name, what in (
            (FetchEngine, "submit", "submits"),
            (Limiter, "ask", "permits"),
            (Admission, "wake", "segments woken"),
            (asyncio.BaseEventLoop, "call_soon_threadsafe", "calls into the loop"),
            (Future, "__init__", "futures"),
        ):
            monkeypatch.setattr(owner, name, self._calls(getattr(owner, name), what))
        self._notify = threading.Condition.notify
        monkeypatch.setattr(threading.Condition, "notify", self._notified())
        monkeypatch.setattr(Gate, "open", self._opened(Gate.open))

    def clear(self):
        self._noted.clear()

    @property
    def counts(self):
        counts = Counter()
        for what, n in self._noted:
            counts[what] += n
        return counts

    def _jobs(self, put, queue):
        def counted(owner, jobs, **options):
            self._noted.append((f"{queue} jobs", len(jobs)))
            self._noted.append((f"{queue} puts", 1))
            return put(owner, jobs, **options)

        return counted

    def _calls(self, function, what):
        def counted(*args, **options):
            self._noted.append((what, 1))
            return function(*args, **options)

        return counted

    def _notified(self):
        notify = self._notify

        def counted(condition, n=1):
            self._noted.append((f"notified by {kind_of_thread()}", 1))
            notify(condition, n)

        return counted

    def _opened(self, open_gate):
        def counted(gate):
            # One that is open already costs nothing, and wakes nobody.
            if gate._lock.locked():
                self._noted.append((f"gates opened by {kind_of_thread()}", 1))
            open_gate(gate)

        return counted


def kind_of_thread():
    """The name of this thread, without its number."""
    # `current_thread` would register a thread that is only starting.
    thread = threading._active.get(threading.get_ident())
    return "starting" if thread is None else thread.name.rstrip("-0123456789")


def check_hand_overs(stores, path, monkeypatch):
    store = store_of(stores, path)
    hand_overs = HandOvers(monkeypatch)
    with warm(store, plain_views(store), decode_threads=2, block_chunks=8) as loader:
        plan, fetcher = loader.plan, loader.chain.fetcher
        before, requests_before = Counter(loader.stats().reads), fetcher.n_requests.total()
        hand_overs.clear()
        planner = loader.chain.planner
        segments = list(plan.segments(planner.start_of(2), *planner.ranks))
        planned = plan.reads(epoch=2)
        n_batches = sum(1 for _ in loader)
        counts = hand_overs.counts
        reads = {name: loader.stats().reads[name] - before[name] for name in planned}
        n_requests = fetcher.n_requests.total() - requests_before
    assert reads == planned
    n_stored = N_SAMPLES // STORED["shards" if "shard" in path else "files"]
    assert planned == {"a": n_stored, "b": n_stored}
    n_reads = sum(planned.values())
    # Many stored chunks of a shard come with one request.
    assert n_requests <= n_reads // 2 if path in WHOLE_SHARDS else n_requests == n_reads
    check_chunks(path, counts, n_reads, n_requests)
    assert counts["submits"] <= len(segments) + 1
    assert counts["segments woken"] <= len(segments)
    # Of a batch: from the prefetching thread that it is there, from the consumer that it is gone,
    # and that another one is there.
    assert counts["gates opened by insitu-prefetch"] <= n_batches + len(segments) + 2
    assert counts["gates opened by MainThread"] <= 2 * n_batches + 4
    assert counts["gates opened by insitu-decode"] <= counts["segments woken"]
    # Neither waits for a lock of the other.
    assert counts["notified by MainThread"] <= 1
    assert counts["notified by insitu-prefetch"] <= counts["submits"]


def check_chunks(path, counts, n_reads, n_requests):
    """What a stored chunk and a request pass through, by the way they are read."""
    is_object, is_on_loop = "objects" in path, "loop" in path
    # What the read of a shard has brought goes to a decode thread that takes it apart, and from
    # there, at once, to decode threads and to readers.
    n_taken_apart = n_requests if path in WHOLE_SHARDS else 0
    most_puts = counts["submits"] + n_taken_apart
    # To a reader and from there to a decode thread; a file is read by the thread that decodes.
    assert counts["read jobs"] == n_requests * is_object
    assert counts["loop jobs"] == n_requests * is_on_loop
    assert counts["decode jobs"] == n_reads + n_taken_apart
    assert counts["permits"] == n_requests
    assert counts["futures"] == 0
    assert counts["read puts"] <= most_puts * is_object
    assert counts["loop puts"] <= most_puts * is_on_loop
    assert counts["calls into the loop"] <= most_puts * is_on_loop
    n_landed = n_requests if is_object or is_on_loop else 0
    assert counts["decode puts"] <= most_puts + n_landed
    # A reader wakes one that decodes, and another reader where more waits to be read.
    assert counts["notified by insitu-read"] <= 2 * n_landed * is_object
    assert counts["notified by zarr_io"] <= n_landed * is_on_loop
    assert counts["notified by insitu-decode"] <= 2 * n_taken_apart


@pytest.mark.parametrize("path", PATHS)
def test_what_passes_between_threads_is_counted_by_chunk_and_batch(stores, path, monkeypatch):
    check_hand_overs(stores, path, monkeypatch)


def queues_jobs_twice(monkeypatch):
    perform, met = FetchEngine._perform, set()

    def later(self, job):
        if job in met:
            met.discard(job)
            perform(self, job)
        else:
            met.add(job)
            self._threads.put((job,))

    monkeypatch.setattr(FetchEngine, "_perform", later)


def queues_one_by_one(monkeypatch):
    for reader in (LocalFileReader, ReaderThreads):
        monkeypatch.setattr(reader, "submit", one_by_one(reader.submit))


def one_by_one(submit):
    def queued(self, jobs, *, first=False):
        for job in jobs:
            submit(self, (job,), first=first)

    return queued


def makes_futures(monkeypatch):
    end = chunk_job.RunningLoad.end_request

    def ended(self, error):
        Future().set_result(None)
        end(self, error)

    monkeypatch.setattr(chunk_job.RunningLoad, "end_request", ended)


def calls_the_loop_for_each(monkeypatch):
    come = ZarrLoopReader._come

    def then_called(self, job, task):
        come(self, job, task)
        asyncio.get_running_loop().call_soon_threadsafe(int)

    monkeypatch.setattr(ZarrLoopReader, "_come", then_called)


def wakes_at_each_chunk(monkeypatch):
    count_down = Admission.count_down

    def counted(self):
        is_last = count_down(self)
        if not is_last:
            self.wake()
        return is_last

    monkeypatch.setattr(Admission, "count_down", counted)


def notifies_for_each_batch(monkeypatch):
    take, condition = PrefetchChannel.take, threading.Condition()

    def notified(self):
        with condition:
            condition.notify()
        return take(self)

    monkeypatch.setattr(PrefetchChannel, "take", notified)


def opens_gates_for_each_batch(monkeypatch):
    get_state = tdi.GatherNode.get_state

    def opened(self):
        for _ in range(2):
            Gate().open()
        return get_state(self)

    monkeypatch.setattr(tdi.GatherNode, "get_state", opened)


def reads_a_chunk_twice(monkeypatch):
    submit = FetchEngine.submit

    def twice(self, loads, generation):
        first = loads[0]
        other = np.empty_like(first.out)
        again = ChunkLoad(first.array, first.sample_run, first.field_tile, other, lambda *_: None)
        submit(self, [*loads, again], generation)

    monkeypatch.setattr(FetchEngine, "submit", twice)


def reads_shards_by_chunk(monkeypatch):
    grouped = ShardReads.grouped

    def by_chunk(self, jobs):
        following = NextJobs([], [])
        for job in jobs:
            one = grouped(self, (job,))
            following.reads.extend(one.reads)
            following.landed.extend(one.landed)
        return following

    monkeypatch.setattr(ShardReads, "grouped", by_chunk)


@pytest.mark.parametrize(
    "path, fault",
    [
        *((path, queues_jobs_twice) for path in PATHS),
        *((path, queues_one_by_one) for path in ("files", "objects", "shard files")),
        *((path, makes_futures) for path in ("files", "objects")),
        ("loop", calls_the_loop_for_each),
        ("files", wakes_at_each_chunk),
        ("files", notifies_for_each_batch),
        ("files", opens_gates_for_each_batch),
        *((path, reads_a_chunk_twice) for path in ("plain files", "objects", "shard objects")),
        ("shard objects", reads_shards_by_chunk),
    ],
)
def test_a_further_hand_over_or_read_is_found(stores, path, fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_hand_overs(stores, path, monkeypatch)
