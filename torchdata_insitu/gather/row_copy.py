"""The one copy between slots and batch: drawn rows into place, off the interpreter's lock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchdata_insitu.page_memory import page_aligned

__all__ = ["RowCopy"]


class RowCopy:
    """Copies the rows of one view; arrays, offsets and draws all at once where they can be.

    Arrays whose arenas share a region take one `np.take` for the whole batch. Arrays in several
    regions (a stack whose parts another chain made resident before) take one each, through a
    scratch that is kept, because `np.take` makes a fresh copy of an output that is not
    contiguous.
    """

    def __init__(self) -> None:
        """Start without scratch; the first stack over several regions makes it."""
        self._scratch: np.ndarray | None = None

    def __reduce__(self) -> tuple[type[RowCopy], tuple[()]]:
        """A pickled or copied one starts without scratch too."""
        return RowCopy, ()

    def copy(self, regions: Sequence[np.ndarray], rows: np.ndarray, out: np.ndarray) -> None:
        """Copy rows into place.

        Args:
            regions: for each array of the view, the rows of its region, `(n_rows, *field)`.
            rows: `(n, n_offsets, n_arrays)` int64, rows of those regions.
            out: `(n, n_offsets, n_arrays, *field)`, C-contiguous.
        """
        field = out.shape[3:]
        first = regions[0]
        if all(region is first for region in regions):
            # "clip" only spares NumPy a buffered copy of `out`: every row was looked up.
            np.take(first, rows.reshape(-1), axis=0, out=out.reshape(-1, *field), mode="clip")
            return
        scratch = self._scratch_for(out)
        for number, region in enumerate(regions):
            part = scratch[: rows.shape[0] * rows.shape[1]]
            np.take(region, rows[:, :, number].reshape(-1), axis=0, out=part, mode="clip")
            out[:, :, number] = part.reshape(rows.shape[0], rows.shape[1], *field)

    def _scratch_for(self, out: np.ndarray) -> np.ndarray:
        n_rows = out.shape[0] * out.shape[1]
        if self._scratch is None or len(self._scratch) < n_rows:
            self._scratch = page_aligned((n_rows, *out.shape[3:]), out.dtype)
        return self._scratch
