"""The draws of one epoch, readable at any position."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.planning.draw_order import DrawOrder
from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.lanes import Lane


@dataclass(frozen=True, eq=False, slots=True)
class Epoch:
    """The global order of an epoch with a given number of lanes."""

    space: DrawSpace
    order: DrawOrder
    shuffle_key: tuple[int, int] | None
    """`(seed, epoch)`; None keeps the order of the store inside blocks."""
    n_lanes: int
    block_chunks: int

    def lane(self, number: int) -> Lane:
        """One lane."""
        return Lane(self.order, number=number, n_lanes=self.n_lanes, block_chunks=self.block_chunks)

    def block_draws(self, lane: Lane, block: int) -> NDArray[np.int64]:
        """Draws of a block, in the order they are handed out, `(n, n_columns)`."""
        return lane.block_draws(self.space, block, shuffle_key=self.shuffle_key)

    def draws(self, start: int, stop: int) -> NDArray[np.int64]:
        """Draws at the positions `start ... stop - 1`, `(stop - start, n_columns)`.

        One block a lane is held at a time.
        """
        draws = np.empty((stop - start, self.space.n_columns), dtype=np.int64)
        for offset in range(min(self.n_lanes, stop - start)):
            index, number = divmod(start + offset, self.n_lanes)
            lane = self.lane(number)
            rows = draws[offset :: self.n_lanes]
            done = 0
            while done < len(rows):
                block = lane.block_at(index + done)
                first, last = lane.block_bounds(block)
                n = min(last - index - done, len(rows) - done)
                skip = index + done - first
                rows[done : done + n] = self.block_draws(lane, block)[skip : skip + n]
                done += n
        return draws
