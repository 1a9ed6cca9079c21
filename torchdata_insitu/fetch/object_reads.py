"""Blocking reads of an object store."""

from typing import Any

import numpy as np
import obstore
from numpy.typing import NDArray

from torchdata_insitu.fetch.chunk_job import ChunkJob


class ObjectReads:
    """Reads whole objects; the requests run in obstore's own threads, without Python's lock."""

    def __init__(self, store: Any) -> None:
        """Read from a store of obstore."""
        self._store = store

    def __call__(self, job: ChunkJob) -> NDArray[np.uint8] | None:
        """The bytes of an object as obstore received them; None where there is no such key.

        Whatever obstore raises is passed on.
        """
        try:
            return np.frombuffer(obstore.get(self._store, job.request.key).bytes(), np.uint8)
        except FileNotFoundError:
            return None
