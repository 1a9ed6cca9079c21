"""Where the row of a sample lies, among the chunks that are resident."""

from __future__ import annotations

import numpy as np

from torchdata_insitu.errors import InSituError
from torchdata_insitu.geometry.chunk_grid import AxisChunks

__all__ = ["RowLookup"]


class RowLookup:
    """Rows of one array's samples in the region that holds its resident chunks."""

    def __init__(
        self, name: str, chunks: AxisChunks, sample_runs: np.ndarray, first_rows: np.ndarray
    ) -> None:
        """Take the resident chunks.

        Args:
            name: name of the array, for messages.
            chunks: the chunks of its sample axis.
            sample_runs: `(n,)` int64, the resident chunks in any order.
            first_rows: `(n,)` int64, the row at which each of them starts.
        """
        order = np.argsort(sample_runs)
        self._name = name
        self._chunks = chunks
        self._sample_runs = sample_runs[order]
        # Row of sample 0 if the chunk reached back to it: one addition a row instead of two.
        self._row_of_zero = first_rows[order] - chunks.starts(self._sample_runs)

    def rows(self, samples: np.ndarray) -> np.ndarray:
        """Row of each sample.

        Args:
            samples: int64, of any shape.

        Raises:
            InSituError: a sample lies in a chunk that is not resident; rows of another chunk are
                never returned in its place.
        """
        if len(self._sample_runs) == 0:
            msg = f"no chunk of array {self._name!r} is resident: the plan admitted none"
            raise InSituError(msg)
        wanted = self._chunks.chunk_of(samples)
        places = np.searchsorted(self._sample_runs, wanted)
        np.minimum(places, len(self._sample_runs) - 1, out=places)
        absent = self._sample_runs[places] != wanted
        if absent.any():
            msg = (
                f"chunk {int(wanted[absent][0])} of array {self._name!r} is not resident for "
                f"sample {int(samples[absent][0])}: the plan did not admit it"
            )
            raise InSituError(msg)
        rows: np.ndarray = samples + self._row_of_zero[places]
        return rows
