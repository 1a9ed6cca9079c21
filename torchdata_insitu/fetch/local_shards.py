"""Stored chunks out of shards that are local files, read by the thread that decodes them."""

import os
from typing import NamedTuple

from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.chunk_job import ChunkJob
from torchdata_insitu.fetch.fetch_errors import read_error, shard_error
from torchdata_insitu.fetch.job_steps import JobSteps
from torchdata_insitu.fetch.local_files import fill_span, open_file, read_span
from torchdata_insitu.fetch.read_waits import ReadWaits
from torchdata_insitu.fetch.shard_index import ShardIndex, index_span
from torchdata_insitu.fetch.shard_job import ShardJob
from torchdata_insitu.fetch.shard_reads import ShardReads
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers


class LocalShards:
    """Opens a shard and reads the bytes of a stored chunk, into the slot where they are its rows.

    The index is read by whoever needs it first, or by several at the same time.
    """

    def __init__(
        self,
        root: str,
        steps: JobSteps,
        buffers: ThreadBuffers,
        waits: ReadWaits,
        shards: ShardReads,
    ) -> None:
        """Read below a folder, into the buffers of the decode threads."""
        self._root = root
        self._steps = steps
        self._buffers = buffers
        self._waits = waits
        self._shards = shards

    def land(self, job: ShardJob) -> None:
        """Bring the stored chunks of a job into their slots; runs on a decode thread.

        Raises:
            ReadError: The shard exists but cannot be read.
            DecodeError: It is damaged.
        """
        for member in job.members:
            payload = self._read(job, member)
            if payload is None:
                self._steps.missing(member)
                continue
            self._steps.found(job, payload.n_bytes)
            self._shards.part_came(member, payload.n_bytes)
            try:
                if payload.content is None:
                    member.decoder.finish(member.request, member.out)
                else:
                    member.decoder.decode(payload.content, member.request, member.out)
            except DecodeError:
                # The next time its bytes come they are no others.
                member.n_damaged += 1
                raise

    def _read(self, job: ShardJob, member: ChunkJob) -> "_Payload | None":
        """The bytes of one stored chunk; None where it is missing."""
        try:
            file = open_file(self._root, job.key)
            if file is None:
                return None
            try:
                state = _state(file)
                index = self._index(file, state, job)
                span = index.span(job.place_of(member).entry)
                return None if span is None else self._part(file, state.n_bytes, member, span)
            finally:
                os.close(file)
        except IsADirectoryError:
            # To Zarr it is no shard either.
            return None
        except OSError as cause:
            raise read_error(job.array, member.request, cause) from cause

    def _index(self, file: int, state: "_FileState", job: ShardJob) -> ShardIndex:
        known = self._shards.index_of(job)
        if known is not None and known.state == state:
            return known
        began = self._waits.begin()
        encoded = read_span(file, index_span(job.layout, job.place.n_entries))
        self._waits.end(began, encoded.size)
        return self._shards.index_came(job, encoded, state)

    def _part(self, file: int, file_bytes: int, member: ChunkJob, span: ByteSpan) -> "_Payload":
        size = span.n_bytes
        if span.stop > file_bytes:
            # Before there is memory for it: what a damaged index states has any size.
            raise _too_short(member, span, file_bytes)
        raw = member.decoder.raw_target(member.request, member.out)
        if raw is not None and len(raw) == size:
            content, target = None, raw
        else:
            content = target = memoryview(self._buffers.encoded(size))[:size]
        began = self._waits.begin()
        n_bytes = fill_span(file, span.start, target)
        self._waits.end(began, n_bytes)
        if n_bytes < size:
            raise _too_short(member, span, span.start + n_bytes)
        return _Payload(content, n_bytes)


class _Payload(NamedTuple):
    """The bytes of a stored chunk."""

    content: memoryview | None
    """None where they are in the slot."""
    n_bytes: int


class _FileState(NamedTuple):
    """What tells whether a file is the one that its index was read from."""

    device: int
    number: int
    n_bytes: int
    changed_ns: int


def _state(file: int) -> _FileState:
    status = os.fstat(file)
    return _FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _too_short(member: ChunkJob, span: ByteSpan, file_bytes: int) -> DecodeError:
    fault = (
        f"its index states a stored chunk in the bytes {span.start} to {span.stop}, and the file "
        f"ends after {file_bytes}"
    )
    return shard_error(member.array, member.request, fault, max(0, file_bytes - span.start))
