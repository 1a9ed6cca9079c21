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
        options: Any = None
        if span is not None:
            part = {"suffix": span.n_bytes} if span.start < 0 else (span.start, span.stop)
            options = {"range": part}
            if job.tag is not None:
                # The index that told where the part is tells of this content only.
                options["if_match"] = job.tag
        try:
            found = self._get(key, options)
        except FileNotFoundError:
            return None
        content = np.frombuffer(found.bytes(), np.uint8)
        if job.request.place is not None:
            tag = found.meta["e_tag"]
            # A weak tag matches nothing.
            job.tag = None if tag is None or tag.startswith("W/") else tag
        return content

    def _get(self, key: str, options: Any) -> Any:
        try:
            return obstore.get(self._store, key, options=options)
        except NotSupportedError:
            if options is None or not isinstance(options["range"], dict):
                raise
            # Azure knows no request for the end: it takes one for the size, and one for the bytes.
            size = obstore.head(self._store, key)["size"]
            start = max(0, size - options["range"]["suffix"])
            part: Any = {**options, "range": (start, size)}
            return obstore.get(self._store, key, options=part)
