"""One read of a shard, for any number of its stored chunks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.chunk_job import ChunkJob, ReadJob, ReadState
from torchdata_insitu.fetch.requests import Request
from torchdata_insitu.fetch.shard_index import ShardIndex, ShardIndexes, index_span
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.shard_layout import ShardLayout, ShardPlace


class ShardJob(ReadState):
    """The read of a shard, of its index, or of a stretch of it that holds stored chunks.

    What comes is taken apart by `ShardReads`. The members belong to loads that may end in different
    ways: one whose load has failed leaves, and the read goes on for the others.

    Attributes:
        members: the stored chunks that it is for, not empty, of one shard.
        indexes: where the index of the shard is kept.
        index: what tells where in the stretch each member is; None before the index has come.
    """

    __slots__ = ("_span", "index", "indexes", "members")

    def __init__(
        self,
        members: Sequence[ChunkJob],
        indexes: ShardIndexes,
        span: ByteSpan | None,
        index: ShardIndex | None = None,
    ) -> None:
        super().__init__()
        self.members = list(members)
        self.indexes = indexes
        self.index = index
        self._span = span
        self._set_tag()

    @property
    def array(self) -> ArrayGeometry:
        """See `ReadJob`."""
        return self.members[0].array

    @property
    def layout(self) -> ShardLayout:
        """Of the shards of the array."""
        return cast("ShardLayout", self.array.shards)

    @property
    def place(self) -> ShardPlace:
        """Of its first member."""
        return cast("ShardPlace", self.request.place)

    @property
    def request(self) -> Request:
        """Of its first member."""
        return self.members[0].request

    @staticmethod
    def place_of(member: ChunkJob) -> ShardPlace:
        """Of one of its members."""
        return cast("ShardPlace", member.request.place)

    @property
    def key(self) -> str:
        """See `ReadJob`."""
        return self.request.key

    @property
    def span(self) -> ByteSpan | None:
        """See `ReadJob`."""
        return self._span

    @property
    def is_for_index(self) -> bool:
        """Whether nothing but the index is read."""
        return self._span is not None and self.index is None

    @property
    def is_over(self) -> bool:
        """See `ReadJob`."""
        return all(member.is_over for member in self.members)

    @property
    def has_failed(self) -> bool:
        """See `ReadJob`."""
        return all(member.has_failed for member in self.members)

    def expected_bytes(self, stored_chunk: int) -> int:
        """See `ReadJob`."""
        if self._span is not None:
            return self._span.n_bytes
        place = self.place
        return place.n_inside * stored_chunk + self.layout.index_bytes(place.n_entries)

    def count_reads(self) -> int:
        """See `ReadJob`."""
        return sum(member.count_reads() for member in self.members)

    def end(self, error: BaseException | None) -> None:
        """See `ReadJob`."""
        interrupt: BaseException | None = None
        # Each load adds to its error what it was needed for, so that all are made before.
        errors = [error, *(_same(error) for _ in self.members[1:])]
        for member, own in zip(self.members, errors, strict=True):
            try:
                member.end(own)
            except BaseException as raised:  # noqa: BLE001 - raised once the others have ended
                interrupt = raised
        if interrupt is not None:
            raise interrupt

    def forget(self, failure: BaseException | None) -> None:
        """See `ReadJob`; where bytes are damaged, the index that told of them may be, too."""
        super().forget(failure)
        if isinstance(failure, DecodeError):
            self.indexes.forget(self.key)
            if self.index is not None:
                self.read_index_first()
        self._set_tag()

    def read_index_first(self) -> None:
        """Read nothing but the index at the next try."""
        self.index = None
        self._span = index_span(self.layout, self.place.n_entries)
        self._set_tag()

    def widen(self) -> bool:
        """Read the whole shard at the next try; False if that is what it did."""
        is_part, self._span = self._span is not None, None
        self.index = None
        self._set_tag()
        return is_part

    def _set_tag(self) -> None:
        """Ask for the content that the index tells of, and for any where none is known."""
        state = None if self.index is None else self.index.state
        self.tag = state if isinstance(state, str) else None

    def singles(self) -> list[ShardJob]:
        """The same, a job for each stored chunk, which reads no more than that and the index."""
        if len(self.members) == 1:
            return [self]
        singles = []
        for member in self.members:
            place = self.place_of(member)
            known = None if self.index is None else self.index.span(place.entry)
            span = known or index_span(self.layout, place.n_entries)
            single = ShardJob([member], self.indexes, span, self.index if known else None)
            single.take_over(self, n_attempts=self.n_attempts)
            singles.append(single)
        return singles

    def take_over(self, job: ReadJob, *, n_attempts: int) -> None:
        """Count on where another job for the same stored chunks has ended."""
        self.n_attempts, self.n_damaged = n_attempts, job.n_damaged
        self.began_s = job.began_s

    def take_failed(self) -> list[ReadJob]:
        """See `ReadJob`."""
        failed: list[ReadJob] = []
        others: list[ChunkJob] = []
        for member in self.members:
            (failed if member.has_failed else others).append(member)
        if not others:
            return [self]
        self.members = others
        return failed


def _same(error: BaseException | None) -> BaseException | None:
    """The same error as another object, where it can be copied."""
    try:
        twin = copy.copy(error)
    except Exception:  # noqa: BLE001 - what an error takes to be made is its own affair
        return error
    if error is None or twin is None:
        return None
    twin.__cause__ = error.__cause__
    if hasattr(error, "__notes__"):
        twin.__notes__ = list(error.__notes__)
    return twin.with_traceback(error.__traceback__)
