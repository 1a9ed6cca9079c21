"""Which reads a number of stored chunks in shards takes, and what each read has brought."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from obstore.exceptions import (
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from torchdata_insitu.errors import ReadError
from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.chunk_job import ChunkJob, Generation, ReadJob
from torchdata_insitu.fetch.fetch_errors import shard_error
from torchdata_insitu.fetch.limiter import Permit
from torchdata_insitu.fetch.read_counts import ReadCounts
from torchdata_insitu.fetch.retry import is_temporary
from torchdata_insitu.fetch.shard_index import (
    ShardIndex,
    ShardIndexError,
    ShardIndexes,
)
from torchdata_insitu.fetch.shard_job import ShardJob
from torchdata_insitu.geometry.shard_layout import ShardLayout
from torchdata_insitu.redaction import http_status

# A stretch between two stored chunks that nobody wants is read with them where it is so short:
# another request would take longer.
_MOST_GAP = 1 << 16
# Asked for otherwise it is refused again.
_FORBIDDEN = (PermissionError, PermissionDeniedError, UnauthenticatedError)
_FORBIDDEN_STATUS = {401, 403, 404, 405, 410}
_MOST_REWRITES = 3
_NO_RANGE = re.compile(r"invalid range|range was invalid", re.IGNORECASE)
# One request is no larger, where it holds more than one stored chunk: several are under way at a
# time, and what has come is decoded while others come.
_MOST_BYTES = 1 << 25


class NextJobs(NamedTuple):
    """What there is to do next: reads, and stored chunks that have come or are missing."""

    reads: list[ReadJob]
    landed: list[ReadJob]


class ShardReads:
    """Makes reads of shards out of stored chunks, and stored chunks out of what reads bring.

    A shard all of whose stored chunks are wanted at the same time is read whole, if it is not too
    large; then one request fills many slots. Otherwise its index is read, and then the stretches
    that hold what is wanted. The index is kept for whoever wants more of the shard later, until
    reads are cancelled: whoever reads then may have waited for a shard that was written anew.
    """

    def __init__(self, counts: ReadCounts) -> None:
        """Read nothing yet."""
        self._counts = counts
        self._indexes: dict[int, ShardIndexes] = {}
        self._generation: Generation | None = None
        # Of a store that does not answer requests for a part, whole shards are read.
        self._is_whole_only = False
        self._has_tags = True

    def grouped(self, jobs: Sequence[ChunkJob]) -> NextJobs:
        """The reads that stored chunks take; those that lie in no shard are read as they are."""
        next_jobs = NextJobs([], [])
        if jobs and jobs[0].running.generation is not self._generation:
            # In this order: who is interrupted in between begins with new ones again.
            self._indexes = {}
            self._generation = jobs[0].running.generation
        by_shard: dict[tuple[int, str], list[ChunkJob]] = {}
        for job in jobs:
            if job.request.place is None:
                next_jobs.reads.append(job)
            else:
                by_shard.setdefault((id(job.array), job.key), []).append(job)
        for members in by_shard.values():
            self._plan(members, next_jobs)
        return next_jobs

    def again(self, job: ReadJob) -> ReadJob:
        """The job to queue for another try of one."""
        if not isinstance(job, ChunkJob) or job.request.place is None:
            return job
        indexes = self._indexes_of(job)
        indexes.forget(job.key)
        shard = ShardJob([job], indexes, None)
        if not self._is_whole_only:
            shard.read_index_first()
        shard.take_over(job, n_attempts=job.n_attempts)
        return shard

    def changed(self, job: ReadJob, error: BaseException) -> bool:
        """Whether a job that failed is to be tried again, at once, as another read of its shard.

        A shard that was written anew has another index. Some stores give no part of an object, or
        not its end, and a part that begins behind the end of an object is refused too: the whole of
        it shows what is wrong.
        """
        cause = error.__cause__
        if not isinstance(job, ShardJob) or not isinstance(error, ReadError) or cause is None:
            return False
        if isinstance(cause, PreconditionError) and job.index is not None:
            # A server that refuses the tags it has given is not asked by them any more.
            if job.n_attempts > _MOST_REWRITES:
                self._has_tags = False
            job.indexes.forget(job.key)
            job.read_index_first()
            return True
        if not _is_of_a_part(cause) or not job.widen():
            return False
        self._is_whole_only |= isinstance(cause, NotSupportedError | NotImplementedError)
        return True

    def index_of(self, job: ShardJob) -> ShardIndex | None:
        """The index of the shard of a job, if it is known."""
        return job.index or job.indexes.find(job.key)

    def index_came(
        self, job: ShardJob, encoded: NDArray[np.uint8], state: object = None
    ) -> ShardIndex:
        """Read, count and keep the index of a shard.

        Args:
            job: A read of the shard.
            encoded: The bytes of the index.
            state: What identifies the content of the shard, None where nothing does.

        Raises:
            DecodeError: It is damaged.
        """
        self._counts.came(encoded.size)
        return self._read_index(job, encoded, ShardIndex.read, state)

    def part_came(self, member: ChunkJob, n_bytes: int) -> None:
        """Count a stored chunk whose bytes were counted with what was read."""
        if not member.n_damaged:
            self._counts.found(member.array, n_bytes, came=0)

    def taken_apart(self, job: ShardJob, payload: NDArray[np.uint8] | None) -> NextJobs:
        """What follows from what a read has brought; its permit is given on or ended.

        Args:
            job: The read.
            payload: What came; None where there is no such shard.

        Raises:
            DecodeError: The index is damaged, or the shard ends before all that the index tells of.
        """
        next_jobs = NextJobs([], [])
        members = job.members
        if payload is not None and job.span is not None and payload.size > job.span.n_bytes:
            # A server that knows no parts answers with the whole object.
            self._is_whole_only = True
            job.widen()
        if payload is None:
            _land(job, members, next_jobs)
            job.end_permit()
        elif job.is_for_index:
            index = self._read_index(job, payload, ShardIndex.read, self._tag(job))
            spans = _spans(index, members)
            self._follow_index(members, spans, job.indexes, index, next_jobs, after=job)
            job.end_permit()
        else:
            index = job.index or self._read_index(job, payload, ShardIndex.of_shard, self._tag(job))
            self._cut(job, index, payload)
            _land(job, members, next_jobs)
        return next_jobs

    def _tag(self, job: ShardJob) -> str | None:
        return job.tag if self._has_tags else None

    def _cut(self, job: ShardJob, index: ShardIndex, payload: NDArray[np.uint8]) -> None:
        """Give the members of a job what has come for them, and its permit."""
        members = job.members
        first = 0 if job.span is None else job.span.start
        spans = _spans(index, members)
        _check_inside(job, spans, first, payload.size)
        there = [m for m, span in zip(members, spans, strict=True) if span is not None]
        # Of one that the shard does not hold whole there is less than it takes to decode it.
        parts = [payload[s.start - first : s.stop - first] for s in spans if s is not None]
        permits: Sequence[Permit | None] = [None] * len(parts)
        if parts and job.permit is not None:
            permits = job.permit.split([part.size for part in parts])
            job.permit = None
        else:
            job.end_permit()
        for member, part, permit in zip(there, parts, permits, strict=True):
            member.payload, member.permit = part, permit
            self.part_came(member, part.size)

    def _plan(self, members: list[ChunkJob], next_jobs: NextJobs) -> None:
        """Begin to read one shard."""
        indexes = self._indexes_of(members[0])
        index = indexes.find(members[0].key)
        # Where it is that of a file, who opens the file sees whether it is still the same.
        is_usable = index is not None and isinstance(index.state, str | None)
        if index is not None and is_usable and not self._is_whole_only:
            spans = _spans(index, members)
            if all(span is None or span.n_bytes for span in spans):
                self._follow_index(members, spans, indexes, index, next_jobs)
                return
            # Nothing is no stored chunk: is that what the index tells by now?
            indexes.forget(members[0].key)
        job = ShardJob(members, indexes, None)
        n_bytes = job.expected_bytes(self._counts.of(job.array).expected_bytes)
        is_all = len(members) == job.place.n_inside and n_bytes <= _MOST_BYTES
        if not (is_all or self._is_whole_only):
            job.read_index_first()
        next_jobs.reads.append(job)

    def _follow_index(
        self,
        members: Sequence[ChunkJob],
        spans: Sequence[ByteSpan | None],
        indexes: ShardIndexes,
        index: ShardIndex,
        next_jobs: NextJobs,
        *,
        after: ShardJob | None = None,
    ) -> None:
        """Read the stretches that hold stored chunks; with the read of the index it is one try."""
        there: list[tuple[ByteSpan, ChunkJob]] = []
        for member, span in zip(members, spans, strict=True):
            if span is None or not span.n_bytes:
                # The index was asked for it, and it has answered; nothing is no stored chunk.
                self._counts.asked(member.array, member.count_reads())
                member.payload = None if span is None else np.empty(0, np.uint8)
                _land(after, [member], next_jobs)
            else:
                there.append((span, member))
        there.sort(key=lambda item: item[0])
        groups: list[ShardJob] = []
        group: list[ChunkJob] = []
        whole = ByteSpan(0, 0)
        for span, member in there:
            joined = ByteSpan(whole.start, max(whole.stop, span.stop))
            if group and span.start - whole.stop <= _MOST_GAP and joined.n_bytes <= _MOST_BYTES:
                group.append(member)
                whole = joined
                continue
            if group:
                groups.append(ShardJob(group, indexes, whole, index))
            group, whole = [member], span
        if group:
            groups.append(ShardJob(group, indexes, whole, index))
        if after is not None:
            for job in groups:
                job.take_over(after, n_attempts=after.n_attempts - 1)
                job.goes_on = True
        next_jobs.reads.extend(groups)

    def _read_index(
        self,
        job: ShardJob,
        encoded: NDArray[np.uint8],
        read: Callable[[NDArray[np.uint8], ShardLayout, int], ShardIndex],
        state: object = None,
    ) -> ShardIndex:
        try:
            index = read(encoded, job.layout, job.place.n_entries)
        except ShardIndexError as cause:
            raise shard_error(job.array, job.request, str(cause), encoded.size) from cause
        index.state = state
        job.indexes.keep(job.key, index)
        return index

    def _indexes_of(self, job: ChunkJob) -> ShardIndexes:
        # Made by whichever thread comes first; a second one would only be read again.
        return self._indexes.setdefault(id(job.array), ShardIndexes())


def _spans(index: ShardIndex, members: Iterable[ChunkJob]) -> list[ByteSpan | None]:
    """Where in their shard the members are; None for one that is not."""
    return [index.span(ShardJob.place_of(member).entry) for member in members]


def _land(job: ShardJob | None, members: Sequence[ChunkJob], next_jobs: NextJobs) -> None:
    for member in members:
        member.has_come, member.error = True, None
        if job is not None:
            member.n_attempts, member.began_s = job.n_attempts, job.began_s
        next_jobs.landed.append(member)


def _check_inside(
    job: ShardJob, spans: Sequence[ByteSpan | None], first: int, n_bytes: int
) -> None:
    """Refuse what holds no member; where it holds some, the others fail one by one."""
    known = [span for span in spans if span is not None]
    outside = [s for s in known if not first <= s.start <= s.stop <= first + n_bytes]
    if known and len(outside) == len(known):
        span = outside[0]
        fault = (
            f"its index states a stored chunk in the bytes {span.start} to {span.stop}, and the "
            f"bytes {first} to {first + n_bytes} are there"
        )
        raise shard_error(job.array, job.request, fault, n_bytes)


def _is_of_a_part(cause: BaseException) -> bool:
    """Whether a store that refused a part of an object may give the whole of it."""
    if isinstance(cause, _FORBIDDEN) or http_status(cause) in _FORBIDDEN_STATUS:
        return False
    # Some stores say so in an error that may mean anything.
    return not is_temporary(cause) or bool(_NO_RANGE.search(str(cause).partition("\n")[0]))
