"""What every way of reading a store does for the engine."""

import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torchdata_insitu.fetch.chunk_job import ReadJob


class LeavingThreads(NamedTuple):
    """Threads that were told to leave."""

    soon: list[threading.Thread]
    """They leave at once."""
    stuck: list[threading.Thread]
    """They leave when the read they are in ends, which may be never."""


class ChunkReader(Protocol):
    """Reads the stored bytes of jobs and hands these over to the decode threads.

    Its text, `str(reader)`, says how it reads.
    """

    def submit(self, jobs: Sequence[ReadJob], *, first: bool = False) -> None:
        """Queue jobs, on request before all others; never blocks.

        Raises:
            RuntimeError: Nothing can read them; no job was queued.
        """

    def take_waiting(self) -> list[ReadJob]:
        """Remove and return every job whose bytes have not come.

        Nothing writes into their slots, so that they can be ended at once.
        """

    def take_failed(self) -> list[ReadJob]:
        """Remove and return those of them whose load has failed."""

    def land(self, job: ReadJob) -> bool:
        """Bring the values of one stored chunk into its slot; runs on a decode thread.

        Returns:
            False where the job went back to the reader instead, or others go on with what came.

        Raises:
            ReadError: The store did not give the bytes.
            DecodeError: They are not the stored chunk.
        """

    def dismiss(self) -> LeavingThreads:
        """Let every thread of the reader leave; a later `submit` starts others."""

    def settle(self, timeout_s: float) -> None:
        """Wait until reads that were cancelled have ended, at most so long."""
