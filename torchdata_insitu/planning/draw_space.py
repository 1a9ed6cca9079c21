"""What the order of an epoch knows about the data it orders."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.run_lengths import RunLengths


@runtime_checkable
class DrawSpace(Protocol):
    """All draws of an epoch, grouped in units whose draws read the same chunks.

    The order permutes units by number and length alone; what a draw is and which chunks it reads is
    the space's own. Units are numbered in store order. Chunks are rows `(array, sample_run,
    field_tile)` of int64, arrays by their number in `array_names`.
    """

    @property
    def kind(self) -> str:
        """Name of the kind of draws, for fingerprints: "anchor"."""

    @property
    def n_units(self) -> int:
        """Number of units."""

    @property
    def n_columns(self) -> int:
        """Columns of a draw."""

    @property
    def has_offsets(self) -> bool:
        """Whether draws read other samples than their own.

        Neighbouring units then share chunks, and it pays to permute runs of units.
        """

    @property
    def shard_units(self) -> int:
        """Units that lie in one shard, of the array where these are most; 1 without shards.

        Neighbouring units can then come with one request, and it pays to permute runs of them.
        """

    @property
    def array_names(self) -> tuple[str, ...]:
        """Name of each array, without repeats."""

    @property
    def stored_per_chunk(self) -> tuple[int, ...]:
        """Stored chunks in one chunk of each array."""

    def unit_lengths(self) -> RunLengths:
        """Draws in each unit; 0 where a unit has none."""

    def draws(self, unit: int, start: int, stop: int) -> NDArray[np.int64]:
        """Draws `start ... stop - 1` of a unit in store order, `(n, n_columns)`."""

    def unit_chunks(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Chunks that each unit reads, unit by unit.

        Returns:
            owner: `(n,)`, index into `units`, not decreasing.
            chunks: `(n, 3)`, rows; a unit may name a chunk more than once.
        """

    def chunks(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Distinct chunks that units read, `(n, 3)`, in the order of their first use."""

    def chunks_of_draws(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Distinct chunks that draws read, `(n, 3)`, in the order of their first use."""

    def chunks_bound(self, n_units: int) -> tuple[int, ...]:
        """Most chunks of each array that any `n_units` consecutive units read; never too few."""

    def digest(self) -> dict[str, str]:
        """Fingerprints "arrays" and "offsets", and "units" if lengths alone do not name them."""
