"""The rows that the draws of a segment take, looked up for many batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torchdata_insitu.gather.row_lookup import RowLookup

__all__ = ["DrawnRows"]

# A lookup costs as much for a thousand rows as for one; more of them at a time would only take
# memory, which a window of many offsets over a large block has a lot of.
_ROWS_AT_ONCE = 1 << 14


class DrawnRows:
    """Rows of the draws of one segment, by view, while its chunks are resident."""

    def __init__(
        self,
        anchors: np.ndarray,
        lookups: Sequence[RowLookup],
        views: Mapping[str, tuple[tuple[int, ...], np.ndarray]],
    ) -> None:
        """Look nothing up yet.

        Args:
            anchors: `(n,)` int64, the anchor of each draw, in draw order.
            lookups: where the rows of each array are, by its number.
            views: for each view the numbers of its arrays, and its offsets, `(n_offsets,)` int64.
        """
        self._anchors = anchors
        self._lookups = lookups
        self._views = views
        # By view the first draw that was looked up, and the rows of it and of those that follow.
        self._known: dict[str, tuple[int, np.ndarray]] = {}

    def of(self, view: str, start: int, stop: int) -> np.ndarray:
        """Rows of draws `start` to `stop`, `(stop - start, n_offsets, n_arrays)` int64.

        Draws are asked for in order: those that follow are looked up with them.

        Raises:
            InSituError: a sample lies in a chunk that is not resident.
        """
        first, rows = self._known.get(view, (0, self._anchors[:0]))
        if not first <= start <= stop <= first + len(rows):
            first, rows = start, self._look_up(view, start, stop)
            self._known[view] = first, rows
        return rows[start - first : stop - first]

    def _look_up(self, view: str, start: int, stop: int) -> np.ndarray:
        numbers, offsets = self._views[view]
        n_draws = max(stop - start, _ROWS_AT_ONCE // (len(offsets) * len(numbers)))
        samples = self._anchors[start : start + n_draws, None] + offsets
        rows = np.empty((*samples.shape, len(numbers)), np.int64)
        for place, number in enumerate(numbers):
            rows[:, :, place] = self._lookups[number].rows(samples)
        return rows
