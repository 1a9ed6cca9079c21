"""What an epoch has to deliver, from plain Zarr indexing."""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray


class WrongEpochError(Exception):
    """An epoch delivered other values than are stored, or samples not exactly once."""


@dataclass(frozen=True)
class Piece:
    """Values that an engine delivered: rows of one array, over a part of the field."""

    array: str
    """Name of the array."""
    anchors: NDArray[np.int64]
    """What each row is drawn at, shape (n,)."""
    offset: int
    """From the anchor to the sample that the row holds."""
    field: tuple[slice, ...]
    """The part of the field, in steps of 1 and with both ends stated."""
    values: NDArray[Any]
    """Shape (n, *field)."""


def stored_values(path: Path) -> dict[str, NDArray[Any]]:
    """All values of every array of a store, by name."""
    return {name: array[...] for name, array in zarr.open_group(path, mode="r").arrays()}


class EpochCheck:
    """Compares the pieces of one epoch, from any thread, with what is stored.

    Args:
        stored: All values by array, see `stored_values`.
        anchors: What has to be drawn, each once.
        offsets: What has to come of each array for every anchor.
    """

    def __init__(
        self, stored: Mapping[str, NDArray[Any]], anchors: range, offsets: Sequence[int]
    ) -> None:
        self._stored = stored
        self._anchors = anchors
        self._offsets = offsets
        self._lock = threading.Lock()
        # How often each sample was an anchor, by array and offset, then by part of the field.
        self._counts: defaultdict[tuple[str, int], dict[_Corners, NDArray[np.int64]]]
        self._counts = defaultdict(dict)

    def see(self, piece: Piece) -> None:
        """Compare values and count rows.

        Raises:
            WrongEpochError: A value differs, or its dtype.
        """
        stored = self._stored[piece.array]
        expected = stored[(piece.anchors + piece.offset, *piece.field)]
        if piece.values.dtype != expected.dtype or not np.array_equal(piece.values, expected):
            msg = (
                f"array {piece.array!r} at offset {piece.offset}, field {piece.field}: "
                f"{piece.values.dtype} values of the anchors {piece.anchors[:8]} ... differ from "
                f"the {expected.dtype} values that are stored"
            )
            raise WrongEpochError(msg)
        corners = tuple((part.start, part.stop) for part in piece.field)
        with self._lock:
            parts = self._counts[piece.array, piece.offset]
            counts = parts.setdefault(corners, np.zeros(len(stored), np.int64))
            np.add.at(counts, piece.anchors, 1)

    def finish(self, *, is_cut: bool = False) -> None:
        """Check that each anchor came exactly once, or at most once in an epoch that was cut.

        Raises:
            WrongEpochError: One did not.
        """
        for name, stored in self._stored.items():
            expected = np.zeros(len(stored), np.int64)
            expected[self._anchors.start : self._anchors.stop] = 1
            for offset in self._offsets:
                parts = self._counts[name, offset]
                for corners, counts in parts.items():
                    wrong = counts > expected if is_cut else counts != expected
                    if wrong.any():
                        first = int(np.flatnonzero(wrong)[0])
                        msg = (
                            f"array {name!r} at offset {offset}, field {corners}: anchor {first} "
                            f"came {counts[first]} times instead of {expected[first]}"
                        )
                        raise WrongEpochError(msg)
                n_values = sum(_size(corners) for corners in parts)
                if n_values != stored[0].size:
                    msg = (
                        f"array {name!r} at offset {offset}: {n_values} of {stored[0].size} values "
                        "of the field came"
                    )
                    raise WrongEpochError(msg)


type _Corners = tuple[tuple[int, int], ...]


def _size(corners: _Corners) -> int:
    size = 1
    for start, stop in corners:
        size *= stop - start
    return size
