"""Blocking reads of an object store."""

from typing import Any

import numpy as np
import obstore
from numpy.typing import NDArray
from obstore.exceptions import NotSupportedError

from torchdata_insitu.fetch.chunk_job import ReadJob


class ObjectReads:
    """Reads objects or parts of them, in obstore's own threads and without Python's lock."""

    def __init__(self, store: Any) -> None:
        """Read from a store of obstore."""
        self._store = store

    def __call__(self, job: ReadJob) -> NDArray[np.uint8] | None:
        """The bytes of an object as obstore received them; None where there is no such key.

        Whatever obstore raises is passed on.
        """
        key, span = job.key, job.span
        content: Any
        try:
            if span is None:
                content = obstore.get(self._store, key).bytes()
            elif span.start < 0:
                content = self._end(key, span.n_bytes)
            else:
                content = obstore.get_range(self._store, key, start=span.start, end=span.stop)
        except FileNotFoundError:
            return None
        return np.frombuffer(content, np.uint8)

    def _end(self, key: str, n_bytes: int) -> Any:
        """The last bytes of an object."""
        options: Any = {"range": {"suffix": n_bytes}}
        try:
            return obstore.get(self._store, key, options=options).bytes()
        except NotSupportedError:
            # Azure knows no such request: it takes one for the size, and one for the bytes.
            size = obstore.head(self._store, key)["size"]
            return obstore.get_range(self._store, key, start=max(0, size - n_bytes), end=size)
