"""Lengths of many units, run-length encoded."""

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False, slots=True)
class RunLengths:
    """How many draws each unit has, as runs of units of equal length.

    A year of daily chunks is two numbers and not 365, and ten million chunks still are.
    Neighbouring runs always differ, so that equal units have equal encodings and equal digests.

    Example:
        >>> lengths = RunLengths.encode([24, 24, 24, 7])
        >>> lengths.lengths.tolist(), lengths.counts.tolist(), lengths.total
        ([24, 7], [3, 1], 79)
    """

    lengths: NDArray[np.int64]
    """`(runs,)`, draws in each unit of a run."""
    counts: NDArray[np.int64]
    """`(runs,)`, units in each run."""

    @classmethod
    def encode(cls, lengths: ArrayLike) -> Self:
        """Encode one length per unit."""
        values = np.asarray(lengths, dtype=np.int64)
        is_first = np.ones(len(values), dtype=np.bool_)
        np.not_equal(values[1:], values[:-1], out=is_first[1:])
        starts = np.flatnonzero(is_first)
        counts = np.diff(starts, append=len(values))
        return cls(lengths=values[starts], counts=counts.astype(np.int64, copy=False))

    @property
    def n_units(self) -> int:
        """Number of units."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """Draws in all units."""
        return int(np.dot(self.lengths, self.counts))

    def expand(self) -> NDArray[np.int64]:
        """One length per unit, `(n_units,)`."""
        return np.repeat(self.lengths, self.counts)

    def digest(self) -> str:
        """Name the lengths in 16 hexadecimal digits (BLAKE2b of the runs, little-endian)."""
        text = hashlib.blake2b(digest_size=8)
        for values in (self.lengths, self.counts):
            text.update(values.astype("<i8").tobytes())
        return text.hexdigest()
