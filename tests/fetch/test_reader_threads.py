"""Blocking reads run on as many threads as there are permits, and hold nobody."""

import threading

import numpy as np
import pytest

from tests.fetch.loads import WAIT_S, Loads, one_array
from tests.small_loaders import eventually
from torchdata_insitu.fetch.chunk_job import ChunkJob, Generation, RunningLoad
from torchdata_insitu.fetch.decode_threads import DecodeThreads
from torchdata_insitu.fetch.job_steps import JobSteps
from torchdata_insitu.fetch.limiter import Limiter
from torchdata_insitu.fetch.read_counts import ReadCounts
from torchdata_insitu.fetch.reader_threads import ReaderThreads
from torchdata_insitu.fetch.retries import Retries
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.testing import make_store

N_CHUNKS = 12


class Door:
    """Reads wait in it until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.n_inside = self.most_inside = 0
        self.error = None

    def read(self, job):
        with self.lock:
            self.n_inside += 1
            self.most_inside = max(self.most_inside, self.n_inside)
        self.begun.release()
        assert self.opened.wait(WAIT_S)
        with self.lock:
            self.n_inside -= 1
        if self.error is not None:
            raise self.error
        return np.frombuffer(job.request.key.encode(), np.uint8)

    def wait_for(self, n_reads):
        for _ in range(n_reads):
            assert self.begun.acquire(timeout=WAIT_S)


class Rig:
    """Reader threads whose jobs go to a list where the decode threads would be."""

    def __init__(self, limiter, *, max_inflight=3, n_threads=8):
        self.array = one_array(make_store({"t": (N_CHUNKS, 4)}, chunks=(1, 4)))
        self.door = Door()
        self.come = []
        self.account = limiter.account(max_inflight)
        self.counts = ReadCounts([self.array])
        retries = Retries(RetryPolicy(), self.come.append)
        self.decoding = DecodeThreads(1, self.decode)
        steps = JobSteps(
            self.decoding,
            self.counts,
            self.account,
            retries,
            missing_is_error=False,
            take_apart=lambda *_: None,
        )
        self.threads = ReaderThreads(self.door.read, steps, n_threads, "reads")
        self.account.granted = self.threads.granted
        self.generation = Generation()

    def decode(self, job):
        self.come.append(job)
        job.end_permit()

    def jobs(self, runs=range(N_CHUNKS)):
        request = [type("Request", (), {"key": f"t/c/{run}/0"})() for run in runs]
        loads = Loads(self.array, runs)
        return loads, [
            ChunkJob(RunningLoad(load, 1, self.generation, threading.Lock()), item, None)
            for load, item in zip(loads.loads, request, strict=True)
        ]

    def cancel(self):
        self.generation.cancelled = True
        self.generation = Generation()
        jobs = self.threads.take_waiting()
        self.account.withdraw()
        for job in jobs:
            job.end(None)
        return jobs

    def close(self):
        self.door.opened.set()
        self.cancel()
        leaving = self.threads.dismiss()
        for thread in (*leaving.soon, *leaving.stuck, *self.decoding.dismiss()):
            thread.join(WAIT_S)
        for job in self.come:
            job.end_permit()


@pytest.fixture
def limiter():
    return Limiter("a store")


@pytest.fixture
def make(limiter):
    rigs = []

    def make(**options):
        rigs.append(Rig(limiter, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
    assert (limiter.n_inflight, limiter.n_bytes) == (0, 0)


def reading():
    return [t for t in threading.enumerate() if t.name.startswith("insitu-read")]


def test_threads_come_with_the_jobs_and_hand_over_what_they_read(make):
    rig = make()
    assert not reading()
    _, jobs = rig.jobs([0, 1])
    rig.threads.submit(jobs)
    rig.door.wait_for(2)
    assert len(reading()) == 2
    assert all(thread.daemon for thread in reading())
    rig.door.opened.set()
    eventually(lambda: len(rig.come) == 2)
    assert {bytes(job.payload) for job in rig.come} == {b"t/c/0/0", b"t/c/1/0"}
    assert all(job.has_come for job in rig.come)


def test_reads_stay_within_the_permits_and_all_are_made(make, limiter):
    rig = make(max_inflight=3)
    _, jobs = rig.jobs()
    rig.threads.submit(jobs)
    rig.door.wait_for(3)
    assert limiter.n_inflight == 3
    rig.door.opened.set()
    eventually(lambda: len(rig.come) == N_CHUNKS)
    assert rig.door.most_inside == 3
    assert rig.counts.by_name("n_reads") == {"t": N_CHUNKS}


def test_threads_stay_within_their_number(make):
    rig = make(max_inflight=64, n_threads=2)
    _, jobs = rig.jobs()
    rig.threads.submit(jobs)
    rig.door.wait_for(2)
    assert len(reading()) == 2
    rig.door.opened.set()
    eventually(lambda: len(rig.come) == N_CHUNKS)


def test_two_readers_of_a_store_take_turns(make):
    one, other = make(max_inflight=1), make(max_inflight=1)
    for rig in (one, other):
        _, jobs = rig.jobs()
        rig.threads.submit(jobs)
    one.door.opened.set()
    other.door.opened.set()
    eventually(lambda: len(one.come) == len(other.come) == N_CHUNKS)


def test_the_room_of_one_that_leaves_goes_to_the_other(make, limiter):
    leaves, stays = make(max_inflight=4), make(max_inflight=4)
    _, jobs = leaves.jobs()
    leaves.threads.submit(jobs)
    leaves.door.wait_for(4)
    _, jobs = stays.jobs()
    stays.threads.submit(jobs)
    leaves.cancel()
    leaves.door.opened.set()
    stays.door.wait_for(4)
    assert limiter.n_inflight == 4
    stays.door.opened.set()
    eventually(lambda: len(stays.come) == N_CHUNKS)
    assert leaves.come == []


def test_cancelled_reads_end_their_jobs_and_count_until_they_are_back(make, limiter):
    rig = make(max_inflight=3)
    loads, jobs = rig.jobs()
    rig.threads.submit(jobs)
    rig.door.wait_for(3)
    assert len(rig.cancel()) == N_CHUNKS
    assert loads.all_ended.is_set()
    assert limiter.n_inflight == 3
    later, jobs = rig.jobs([0])
    rig.threads.submit(jobs)
    assert rig.door.n_inside == 3
    rig.door.opened.set()
    eventually(lambda: len(rig.come) == 1)
    assert rig.come == jobs
    eventually(lambda: limiter.n_inflight == 0)
    assert later.ends == {}


def test_threads_in_a_read_are_told_apart_when_all_are_dismissed(make):
    rig = make(max_inflight=1)
    _, jobs = rig.jobs([0, 1, 2])
    rig.threads.submit(jobs)
    rig.door.wait_for(1)
    eventually(lambda: rig.threads._crew.n_idle == 2)
    rig.cancel()
    leaving = rig.threads.dismiss()
    assert (len(leaving.soon), len(leaving.stuck)) == (2, 1)
    for thread in leaving.soon:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert leaving.stuck[0].is_alive()
    rig.door.opened.set()
    leaving.stuck[0].join(WAIT_S)
    assert not leaving.stuck[0].is_alive()


def test_others_come_after_a_dismissal(make):
    rig = make()
    rig.door.opened.set()
    for _ in range(5):
        rig.come.clear()
        _, jobs = rig.jobs([0, 1])
        rig.threads.submit(jobs)
        eventually(lambda: len(rig.come) == 2)
        for job in rig.come:
            job.end_permit()
        for thread in rig.threads.dismiss().soon:
            thread.join(WAIT_S)


def test_what_a_read_raises_goes_with_the_job(make):
    rig = make()
    rig.door.error = ConnectionResetError("by peer")
    rig.door.opened.set()
    _, jobs = rig.jobs([0])
    rig.threads.submit(jobs)
    eventually(lambda: rig.come)
    assert rig.come[0].error is rig.door.error
    assert rig.come[0].payload is None


def test_jobs_of_loads_that_have_failed_are_not_read(make):
    rig = make(max_inflight=1)
    loads, jobs = rig.jobs([0, 1])
    rig.threads.submit(jobs)
    rig.door.wait_for(1)
    jobs[1].running._error = ValueError("its other read has failed")
    rig.door.opened.set()
    eventually(lambda: loads.ends)
    assert list(loads.ends) == [1]
    eventually(lambda: rig.come == jobs[:1])


def test_a_job_of_a_load_that_is_over_stays_with_who_passes_it_on(make):
    rig = make()
    loads, (job,) = rig.jobs([0])
    rig.generation.cancelled = True
    assert not rig.threads.pass_on(job)
    assert rig.threads.take_waiting() == []
    assert loads.ends == {}


def test_it_says_how_it_reads(make):
    assert str(make(n_threads=5).threads) == "reads on up to 5 reader threads"
