"""Failed reads are tried again when their time has come, and can be ended until then."""

import numpy as np
import pytest
import zarr

from tests.contracts.documents import files_of
from tests.contracts.places import placed
from tests.fake_stores import Changes, NeverAnswers, Raises, only
from tests.fetch.loads import Loads, fetching, one_array
from tests.small_loaders import Once, eventually
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch.chunk_fetcher import Cancelled, ChunkFetcher
from torchdata_insitu.fetch.fetch_errors import read_error
from torchdata_insitu.fetch.retries import Retries
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.testing import CountingStore, make_store

SHAPE, CHUNKS = (10, 4), (2, 4)
# So short that a failure costs a test nothing.
QUICK = RetryPolicy(first_delay_s=1e-4)
# So long that no test lives to see it.
LONG = RetryPolicy(first_delay_s=1000, longest_delay_s=1000, budget_s=10**6)


class Time:
    """A clock that stands still, and the calls that are due later."""

    def __init__(self):
        self.now = 0.0
        self.later = []

    def clock(self):
        return self.now

    def call_later(self, delay_s, function):
        self.later.append((self.now + delay_s, function))

    def pass_until(self, moment):
        self.now = moment
        due = [call for call in self.later if call[0] <= moment]
        self.later = [call for call in self.later if call[0] > moment]
        for _, function in due:
            function()


class Job:
    """As much of a job as `Retries` looks at."""

    def __init__(self):
        self.has_failed = False
        self.n_attempts = self.n_damaged = 0
        self.began_s = 0.0

    def take_failed(self):
        return [self] if self.has_failed else []


def failed_read(cause=None):
    array = one_array(make_store({"t": SHAPE}, chunks=CHUNKS))
    request = type("Request", (), {"key": "t/c/0/0", "coordinates": (0, 0)})()
    return read_error(array, request, cause or ConnectionResetError("by peer"))


@pytest.fixture
def moment():
    return Time()


@pytest.fixture
def tried():
    return []


def make_retries(moment, tried, **policy):
    return Retries(
        RetryPolicy(**policy),
        tried.append,
        clock=moment.clock,
        share=lambda: 1.0,
        call_later=moment.call_later,
    )


def test_delays_grow_until_the_attempts_are_used(moment, tried):
    retries, job = (
        make_retries(moment, tried, attempts=4, first_delay_s=1, longest_delay_s=3),
        Job(),
    )
    delays = []
    for _ in range(4):
        retries.begin(job)
        delays.append(retries.delay_s(job, failed_read()))
    assert delays == [1, 2, 3, None]


def test_no_attempt_begins_beyond_the_budget(moment, tried):
    retries, job = (
        make_retries(moment, tried, budget_s=60, first_delay_s=5, longest_delay_s=5),
        Job(),
    )
    moment.now = 1000.0
    retries.begin(job)
    moment.now = 1050.0
    assert retries.delay_s(job, failed_read()) == 5
    moment.now = 1058.0
    assert retries.delay_s(job, failed_read()) is None
    moment.now = 1061.0
    assert retries.delay_s(job, failed_read()) is None
    assert retries.delay_s(job, DecodeError("cut")) is None
    assert retries.is_spent(job)


def test_what_does_not_decode_is_tried_once_more_at_once(moment, tried):
    retries, job = make_retries(moment, tried), Job()
    retries.begin(job)
    assert retries.delay_s(job, DecodeError("cut")) == 0
    retries.begin(job)
    assert retries.delay_s(job, DecodeError("cut")) is None


def test_what_lasts_is_not_tried_again(moment, tried):
    retries, job = make_retries(moment, tried), Job()
    retries.begin(job)
    assert retries.delay_s(job, failed_read(PermissionError("403"))) is None
    assert retries.delay_s(job, ReadError("missing, and must not")) is None
    assert retries.delay_s(job, MemoryError()) is None


def test_a_job_that_waits_goes_on_when_its_time_has_come(moment, tried):
    retries, job = make_retries(moment, tried), Job()
    retries.wait(job, 2.0)
    moment.pass_until(1.9)
    assert tried == []
    moment.pass_until(2.0)
    assert tried == [job]
    assert retries.take() == []


def test_a_job_that_was_taken_does_not_go_on(moment, tried):
    retries, jobs = make_retries(moment, tried), [Job(), Job()]
    for job in jobs:
        retries.wait(job, 1.0)
    jobs[1].has_failed = True
    assert retries.take(failed_only=True) == [jobs[1]]
    assert retries.take() == [jobs[0]]
    moment.pass_until(2.0)
    assert tried == []


def test_a_job_that_cannot_wait_stays_with_the_caller(moment, tried):
    def refuse(delay_s, function):
        raise RuntimeError("the loop is closed")

    retries = Retries(RetryPolicy(), tried.append, call_later=refuse)
    with pytest.raises(RuntimeError, match="closed"):
        retries.wait(Job(), 1.0)
    assert retries.take() == []


def test_the_error_says_how_often_and_how_long_it_was_tried(moment, tried):
    retries, job = make_retries(moment, tried), Job()
    for _ in range(3):
        retries.begin(job)
    moment.now = 7.5
    first = failed_read()
    final = retries.final(job, first)
    assert str(final) == f"after 3 attempts in 7.5 s: {first}"
    assert final.__cause__ is first.__cause__
    job.n_attempts = 1
    assert retries.final(job, first) is first


@pytest.fixture(params=["folder", "memory"])
def stored(request, tmp_path):
    path = tmp_path / "store" if request.param == "folder" else None
    return make_store({"t": SHAPE}, chunks=CHUNKS, path=path)


def fails(store, times, key="t/c/1/0", error=ConnectionResetError):
    """A store that does not give one key so many times."""
    left = [times]

    def match(met):
        if met != key or not left[0]:
            return False
        left[0] -= 1
        return True

    return Raises(store, lambda: error("by peer"), match)


def test_a_read_that_fails_for_a_while_is_tried_again_and_counted(stored):
    array = one_array(stored)
    with fetching(fails(stored, 3), array, retry=QUICK) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        np.testing.assert_array_equal(loads.wait().values, zarr.open_array(stored, path="t")[...])
        assert fetcher.n_reads == {"t": 5}
        assert fetcher.counts_of(array).n_retries == 3


def test_a_read_that_always_fails_ends_with_what_was_tried(stored):
    store = CountingStore(fails(stored, 10**9))
    array = one_array(stored)
    with fetching(store, array, retry=QUICK) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        error = loads.wait().errors.pop(1)
        assert fetcher.counts_of(array).n_retries == 4
    assert not loads.errors.keys() - {1}
    assert isinstance(error, ReadError)
    assert isinstance(error.__cause__, ConnectionResetError)
    for fact in ("after 5 attempts in 0", "'t'", "'t/c/1/0'", "(1, 0)", "by peer"):
        assert fact in str(error)
    assert store.gets["t/c/1/0"] == 5


def test_what_lasts_is_read_once(stored):
    store = CountingStore(fails(stored, 10**9, error=PermissionError))
    array = one_array(stored)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        assert "attempts" not in str(loads.wait().errors[1])
    assert store.gets["t/c/1/0"] == 1


def test_bytes_that_were_cut_on_the_way_are_fetched_once_more():
    stored = make_store({"t": SHAPE}, chunks=CHUNKS)
    store = Changes(stored, lambda payload: payload[:-1], Once(lambda key: key == "t/c/1/0"))
    array = one_array(stored)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        np.testing.assert_array_equal(loads.wait().values, zarr.open_array(stored, path="t")[...])
        assert (fetcher.n_reads["t"], fetcher.counts_of(array).n_retries) == (5, 1)
        assert fetcher.counts_of(array).n_found == 5


def test_a_damaged_file_is_read_twice_and_then_named(tmp_path):
    store = make_store({"t": SHAPE}, chunks=CHUNKS, path=tmp_path)
    (tmp_path / "t/c/1/0").write_bytes(b"garbage")
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        error = loads.wait().errors[1]
        assert isinstance(error, DecodeError)
        assert "after 2 attempts" in str(error)
        assert fetcher.counts_of(array).n_retries == 1
        assert fetcher.bytes_read > 0


@pytest.mark.parametrize("place", ["folder", "memory", "obstore memory"])
@pytest.mark.parametrize("shards", [None, (4, 4)])
@pytest.mark.parametrize("what", ["value", "fill value"])
def test_a_value_that_does_not_fit_is_not_read_again(tmp_path, place, shards, what):
    """The bytes are whole: they would be the same the next time."""
    values = np.arange(40, dtype="i4").reshape(SHAPE)
    if what == "value":
        values[3, 1] = 300
    else:
        values[2:4] = -200
    stored = make_store({"t": values}, chunks=CHUNKS, fill_value=-200, shards=shards)
    with (
        placed(place, files_of(stored), tmp_path) as store,
        fetching(store, array := one_array(store, dtype="i1")) as fetcher,
    ):
        loads = Loads(array)
        fetcher.submit(loads.loads)
        errors = loads.wait().errors
        assert list(errors) == [1]
        assert fetcher.counts_of(array).n_retries == 0
    assert type(errors[1]) is DecodeError
    text = str(errors[1])
    assert text.startswith("cannot cast array 't'")
    assert f"the value {300 if what == 'value' else -200} does not fit int8" in text


def test_one_attempt_is_one_attempt(stored):
    store = CountingStore(Changes(stored, lambda _: b"garbage", only("t/c/1/0")))
    array = one_array(stored)
    with fetching(store, array, retry=RetryPolicy(attempts=1)) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        assert isinstance(loads.wait().errors[1], DecodeError)
    assert store.gets["t/c/1/0"] == 1


@pytest.mark.parametrize("end", ["cancel", "close", "collect"])
def test_loads_that_wait_to_be_tried_again_end_at_once(end):
    stored = make_store({"t": SHAPE}, chunks=CHUNKS)
    store = Raises(stored, lambda: ConnectionResetError("by peer"))
    array = one_array(stored)
    fetcher = ChunkFetcher(store, [array], retry=LONG)
    waiting = fetcher._engine._retries._waiting
    loads = Loads(array)
    fetcher.submit(loads.loads)
    eventually(lambda: len(waiting) == 5)
    if end == "collect":
        del fetcher
    else:
        getattr(fetcher, end)()
        assert loads.all_ended.is_set()
    assert {type(error) for error in loads.wait().ends.values()} == {Cancelled}
    assert loads.n_calls == 5
    assert not waiting


def test_decode_threads_and_the_loop_serve_others_while_a_job_waits(stored):
    array = one_array(stored)
    with fetching(fails(stored, 1), array, retry=LONG, decode_threads=1) as fetcher:
        first, others = Loads(array, [1]), Loads(array, [0, 2, 3, 4])
        fetcher.submit(first.loads)
        fetcher.submit(others.loads)
        assert not others.wait().errors
        assert first.ends == {}


def test_a_load_that_has_failed_does_not_wait_for_its_other_reads():
    """Of the two reads of one load one waits for its second try, the other one fails for good."""
    stored = make_store({"t": (2, 4)}, chunks=(2, 2))
    late = NeverAnswers(
        Raises(stored, lambda: PermissionError("403"), only("t/c/0/1")), only("t/c/0/1")
    )
    store = Raises(late, lambda: ConnectionResetError("by peer"), only("t/c/0/0"))
    array = one_array(stored)
    with fetching(store, array, retry=LONG) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        eventually(lambda: len(fetcher._engine._retries._waiting) == 1 and late.n_waiting == 1)
        zarr.core.sync.sync(late.answer())
        error = loads.wait().errors[0]
    assert isinstance(error.__cause__, PermissionError)


class Odd(Exception):  # noqa: N818
    """What a client library raises that can tell nothing about it."""

    @property
    def status(self):
        raise RuntimeError("there was no answer")


class Broken(RetryPolicy):
    def delay_s(self, n_attempts, share):
        del n_attempts, share
        raise ZeroDivisionError("a policy with a mistake")


@pytest.mark.parametrize(
    "error, policy, expected",
    [
        (Odd, QUICK, "there was no answer"),
        (OSError, Broken(), "a policy with a mistake"),
    ],
)
def test_what_goes_wrong_while_an_error_is_judged_ends_the_load(error, policy, expected):
    store = make_store({"t": SHAPE}, chunks=CHUNKS)
    array = one_array(store)
    failing = Raises(store, error, only("t/c/1/0"))
    with fetching(failing, array, retry=policy, decode_threads=1) as fetcher:
        for _ in range(2):
            loads = Loads(array)
            fetcher.submit(loads.loads)
            loads.wait()
            assert list(loads.errors) == [1]
            assert expected in str(loads.errors[1])
            assert "'t/c/1/0'" in str(loads.errors[1].__context__)


def test_an_error_that_is_its_own_cause_ends_the_load():
    store = make_store({"t": SHAPE}, chunks=CHUNKS)
    array = one_array(store)

    def in_a_circle():
        error = OSError("it hangs on itself")
        error.__cause__ = OSError("and the other way round")
        error.__cause__.__cause__ = error
        return error

    failing = Raises(store, in_a_circle, only("t/c/1/0"))
    with fetching(failing, array, retry=QUICK, decode_threads=1) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert "'t/c/1/0'" in str(loads.errors[1])


def test_what_goes_wrong_when_the_time_has_come_ends_the_load(monkeypatch):
    store = make_store({"t": SHAPE}, chunks=CHUNKS)
    array = one_array(store)
    once = Once(lambda key: key == "t/c/1/0")
    real, asked = Retries.is_spent, []

    def is_spent(self, job):
        asked.append(job.request.key)
        if len(asked) > 1:
            raise ZeroDivisionError("a clock with a mistake")
        return real(self, job)

    monkeypatch.setattr(Retries, "is_spent", is_spent)
    with fetching(Raises(store, lambda: once.error, once), array, retry=QUICK) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
    assert [str(error) for error in loads.errors.values()] == ["a clock with a mistake"]
