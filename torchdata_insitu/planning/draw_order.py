"""The order of an epoch's units: runs of units, permuted by a key.

Order version 1, first half. Runs are the consecutive groups of `run_chunks` units, by unit number;
they are permuted by `keyed_permutation(n_runs, seed, epoch, "runs")` and the units inside a run
keep their order. Without shuffle the units keep the order of the store. Units without draws are
left out. The second half, lanes and blocks, is in `lanes`.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.keyed_random import keyed_permutation
from torchdata_insitu.planning.run_lengths import RunLengths

ORDER_VERSION = 1


@dataclass(frozen=True, eq=False, slots=True)
class DrawOrder:
    """The units of one epoch in the order they are drawn, laid end to end.

    Draws are never materialised: two numbers per unit say where its draws lie.

    Example:
        >>> lengths = RunLengths.encode([3, 3, 0, 2])
        >>> order = DrawOrder.of_epoch(lengths, seed=0, epoch=0, shuffle=False, run_chunks=1)
        >>> order.units.tolist(), order.firsts.tolist()
        ([0, 1, 3], [0, 3, 6, 8])
    """

    units: NDArray[np.int64]
    """`(n,)`, unit numbers in drawing order; units without draws are absent."""
    firsts: NDArray[np.int64]
    """`(n + 1,)`, draws before each of them; the last value is the number of draws."""

    @classmethod
    def of_epoch(
        cls, lengths: RunLengths, *, seed: int, epoch: int, shuffle: bool, run_chunks: int
    ) -> Self:
        """Order the units of an epoch.

        Args:
            lengths: Draws in each unit.
            seed: Key of the whole training.
            epoch: Key of the epoch.
            shuffle: Whether runs are permuted.
            run_chunks: Units in a run.
        """
        n_units = lengths.n_units
        if not shuffle:
            units = np.arange(n_units, dtype=np.int64)
        elif run_chunks == 1:
            units = keyed_permutation(n_units, seed, epoch, "runs")
        else:
            runs = keyed_permutation(-(-n_units // run_chunks), seed, epoch, "runs")
            units = (runs[:, None] * run_chunks + np.arange(run_chunks)).ravel()
            units = units[units < n_units]
        drawn = lengths.expand()[units]
        if not drawn.all():
            units, drawn = units[drawn > 0], drawn[drawn > 0]
        firsts = np.zeros(len(units) + 1, dtype=np.int64)
        np.cumsum(drawn, out=firsts[1:])
        return cls(units=units, firsts=firsts)

    @property
    def n_draws(self) -> int:
        """Draws in the epoch."""
        return int(self.firsts[-1])
