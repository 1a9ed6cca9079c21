"""One read for several stored chunks: what it asks for, and how its members end."""

import threading

import numpy as np
import pytest

from tests.fetch.loads import Loads, one_array
from tests.fetch.shard_stores import Index, sharded
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.chunk_fetcher import Cancelled
from torchdata_insitu.fetch.chunk_job import ChunkJob, Generation, RunningLoad
from torchdata_insitu.fetch.requests import RequestTable
from torchdata_insitu.fetch.shard_index import ShardIndex, ShardIndexes
from torchdata_insitu.fetch.shard_job import ShardJob

# Shards of 4 rows of 2 stored chunks; the last one has 2 rows inside the array.
SHAPE, CHUNKS, SHARDS = (28, 6), (2, 3), (8, 6)
KEY = "t/c/1/0"


class Rig:
    """The stored chunks of some loads, all of one shard, in one job."""

    def __init__(self, runs=(4, 5, 7), *, span=None, index=None):
        source = sharded(SHAPE, CHUNKS, SHARDS, codec="none")
        shard = np.frombuffer(source._store_dict[KEY].to_bytes(), np.uint8)
        self.array = one_array(source, name="t")
        self.loads = Loads(self.array, runs)
        self.generation = Generation()
        table, lock = RequestTable(self.array), threading.Lock()
        self.runnings, self.members = [], []
        for load in self.loads.loads:
            requests = table.requests(load.sample_run)
            self.runnings.append(RunningLoad(load, len(requests), self.generation, lock))
            self.members += [ChunkJob(self.runnings[-1], request, None) for request in requests]
        self.indexes = ShardIndexes()
        self.known = ShardIndex.of_shard(shard, self.array.shards, 8)
        self.job = ShardJob(self.members, self.indexes, span, self.known if index else None)


def test_an_end_is_the_end_of_every_load():
    rig = Rig()
    rig.job.end(None)
    assert rig.loads.ends == {4: None, 5: None, 7: None}
    assert rig.loads.n_calls == 3


def test_each_load_gets_an_error_that_it_may_add_to():
    rig = Rig()
    cause = ConnectionResetError("by peer")
    error = ReadError("cannot read")
    error.__cause__ = cause
    error.add_note("seen before")

    def done(load, error):
        error.add_note(f"for run {load.sample_run}")
        Loads.done(rig.loads, load, error)

    for load in rig.loads.loads:
        load.done = done
    rig.job.end(error)
    ends = rig.loads.ends
    assert len({id(error) for error in ends.values()}) == 3
    for run, own in ends.items():
        assert type(own) is ReadError
        assert str(own) == "cannot read"
        assert own.__cause__ is cause
        assert own.__notes__ == ["seen before", f"for run {run}"]


class Peculiar(Exception):  # noqa: N818
    """What cannot be made again from what it was made of."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


def test_an_error_that_cannot_be_copied_ends_every_load():
    rig = Rig()
    rig.job.end(Peculiar(7, "odd"))
    assert [str(error) for error in rig.loads.ends.values()] == ["7: odd"] * 3


def test_an_interrupt_in_the_end_of_one_load_leaves_none_behind():
    rig = Rig()

    def done(load, error):
        Loads.done(rig.loads, load, error)
        if load.sample_run == 4:
            raise KeyboardInterrupt

    for load in rig.loads.loads:
        load.done = done
    with pytest.raises(KeyboardInterrupt):
        rig.job.end(None)
    assert rig.loads.n_calls == 3


def test_it_is_over_when_nobody_wants_it():
    rig = Rig()
    rig.runnings[0]._error = ValueError("elsewhere")
    assert [rig.job.is_over, rig.job.has_failed] == [False, False]
    rig.generation.cancelled = True
    assert rig.job.is_over
    assert not rig.job.has_failed


def test_members_leave_when_their_load_has_failed():
    rig = Rig()
    assert rig.job.take_failed() == []
    rig.runnings[1]._error = ValueError("elsewhere")
    gone = rig.job.take_failed()
    assert gone == rig.members[2:4]
    assert rig.job.members == rig.members[:2] + rig.members[4:]
    for member in gone:
        member.end(None)
    assert list(rig.loads.ends) == [5]
    rig.job.end(None)
    assert rig.loads.n_calls == 3


def test_it_leaves_itself_when_all_loads_have_failed():
    rig = Rig()
    for running in rig.runnings:
        running._error = ValueError("elsewhere")
    assert rig.job.take_failed() == [rig.job]
    assert rig.job.has_failed
    rig.job.end(None)
    assert rig.loads.n_calls == 3


def test_what_to_reckon_with_is_what_is_read():
    index_bytes = Index(8).n_bytes
    assert Rig().job.expected_bytes(100) == 8 * 100 + index_bytes
    assert Rig(runs=[12, 13]).job.expected_bytes(100) == 4 * 100 + index_bytes
    assert Rig(span=ByteSpan(10, 60), index=True).job.expected_bytes(100) == 50
    assert Rig(span=ByteSpan.last(index_bytes)).job.expected_bytes(100) == index_bytes


def test_stored_chunks_count_once_however_often_they_are_read():
    rig = Rig()
    assert [rig.job.count_reads() for _ in range(3)] == [6, 0, 0]
    assert [member.count_reads() for member in rig.members] == [0] * 6


def test_it_becomes_the_read_of_the_whole_shard_once():
    rig = Rig(span=ByteSpan(10, 60), index=True)
    assert rig.job.widen()
    assert (rig.job.span, rig.job.index, rig.job.is_for_index) == (None, None, False)
    assert not rig.job.widen()


@pytest.mark.parametrize("is_damaged", [True, False])
def test_damaged_bytes_put_the_index_in_doubt_and_nothing_else_does(is_damaged):
    rig = Rig(span=ByteSpan(10, 60), index=True)
    rig.indexes.keep(KEY, rig.known)
    failure = DecodeError("damaged") if is_damaged else ReadError("no answer")
    rig.job.has_come, rig.job.payload = True, np.zeros(3, np.uint8)
    rig.job.forget(failure)
    assert (rig.job.has_come, rig.job.payload, rig.job.error) == (False, None, failure)
    assert rig.job.is_for_index == is_damaged
    assert (rig.indexes.find(KEY) is None) == is_damaged
    assert rig.job.span == (ByteSpan.last(Index(8).n_bytes) if is_damaged else ByteSpan(10, 60))


def test_single_jobs_read_no_more_than_their_stored_chunk():
    """Whatever was to be read for all of them: each may be read by itself later."""
    index_span = ByteSpan.last(Index(8).n_bytes)
    for rig in (Rig(), Rig(span=index_span)):
        rig.job.n_attempts, rig.job.n_damaged, rig.job.began_s = 3, 1, 7.0
        singles = rig.job.singles()
        assert [single.members for single in singles] == [[member] for member in rig.members]
        for single in singles:
            assert (single.span, single.is_for_index) == (index_span, True)
            assert (single.n_attempts, single.n_damaged, single.began_s) == (3, 1, 7.0)
    rig = Rig(span=ByteSpan(0, 200), index=True)
    for single, member in zip(rig.job.singles(), rig.members, strict=True):
        assert single.span == rig.known.span(member.request.place.entry)
        assert single.index is rig.known


def test_one_stored_chunk_is_its_own_single_job():
    rig = Rig(runs=[4])
    job = ShardJob(rig.members[:1], rig.indexes, None)
    assert job.singles() == [job]


def test_a_cancelled_generation_ends_with_cancelled():
    rig = Rig()
    rig.generation.cancelled = True
    rig.job.end(None)
    assert {type(error) for error in rig.loads.ends.values()} == {Cancelled}
