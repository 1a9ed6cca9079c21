"""Which positions a rank takes, batch by batch, until the end of the pass.

From the origin `p0` of a pass, step `s` covers the window `[p0 + s*B*W, p0 + (s+1)*B*W)` of the
global order, for batches of `B` on `W` ranks. Rank `r` takes the positions `q` of it with
`q % W == r`: exactly `B` of them, whatever `p0` is. So its draws are a stream
`q0, q0 + W, q0 + 2*W ...`, in which batches end after every `B`.

What happens to the `R < B*W` positions that are left for the last window is the `tail`:

- "drop": they are not delivered.
- "short": each rank takes its own; the last batch is shorter. Fewer than `W` are not delivered,
  since a rank without a draw would have one step less.
- "exact": like "short", but nothing is left out: with fewer than `W`, ranks without a draw hand out
  one copy.
- "pad": every rank fills its batch to `B` with copies.

Copies repeat the last draw of the rank itself: that of the largest `q < N` with `q % W == r`, or
draw `N - 1` if the rank has none.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from torchdata_insitu.errors import StateError
from torchdata_insitu.planning.cursor import Cursor

type Tail = Literal["short", "drop", "pad", "exact"]
TAILS: tuple[str, ...] = get_args(Tail.__value__)


def steps_left(n_draws: int, position: int, batch_size: int, world_size: int, tail: str) -> int:
    """Batches that every rank still gets, from a position where a batch begins.

    Example:
        >>> [steps_left(103, 96, 4, 2, tail) for tail in ("drop", "short", "exact", "pad")]
        [0, 1, 1, 1]
        >>> [steps_left(97, 96, 4, 2, tail) for tail in ("drop", "short", "exact", "pad")]
        [0, 0, 1, 1]
    """
    full, rest = divmod(max(0, n_draws - position), batch_size * world_size)
    if rest == 0 or tail == "drop" or (tail == "short" and rest < world_size):
        return full
    return full + 1


def stop_position(n_draws: int, position: int, batch_size: int, world_size: int, tail: str) -> int:
    """First position that is not delivered, from a position where a batch begins.

    Example:
        >>> stop_position(103, 0, 4, 2, "drop"), stop_position(103, 0, 4, 2, "short")
        (96, 103)
    """
    rest = max(0, n_draws - position) % (batch_size * world_size)
    left_out = tail == "drop" or (tail == "short" and rest < world_size)
    return n_draws - rest if left_out else n_draws


@dataclass(frozen=True, slots=True)
class RankStream:
    """The positions that one rank hands out, in order, as a stream numbered from 0.

    Example:
        >>> stream = RankStream.of(
        ...     Cursor(0, 5, 1), n_draws=12, batch_size=2, rank=0, world_size=2, tail="pad"
        ... )
        >>> stream.n_steps, [stream.position(i) for i in range(stream.n_valid)], stream.n_total
        (2, [6, 8, 10], 4)
    """

    cursor: Cursor
    """Where the pass begins."""
    n_draws: int
    batch_size: int
    rank: int
    world_size: int
    origin: int
    """Where windows are counted from."""
    stop: int
    """First position that is not delivered on any rank."""
    n_steps: int
    """Batches from `origin`, equal on all ranks."""
    n_valid: int
    """Positions of the stream; what follows are copies."""
    n_total: int
    """Draws handed out from `origin`, copies among them."""
    begin: int
    """Place in the stream where the pass begins; 0 unless the cursor stands inside a batch."""

    @classmethod
    def of(
        cls,
        cursor: Cursor,
        *,
        n_draws: int,
        batch_size: int,
        rank: int,
        world_size: int,
        tail: str,
    ) -> Self:
        """Find the stream that a pass from a cursor hands out.

        Raises:
            StateError: The cursor stands inside a batch of another rank or world size.
        """
        origin = cursor.position if cursor.origin is None else cursor.origin
        stop = stop_position(n_draws, origin, batch_size, world_size, tail)
        n_steps = steps_left(n_draws, origin, batch_size, world_size, tail)
        first = origin + (rank - origin) % world_size
        n_valid = max(0, -((first - stop) // world_size))
        n_total = n_valid
        n_full = (stop - origin) // (batch_size * world_size)
        if n_steps > n_full and tail in ("pad", "exact"):
            n_total = max(n_valid, n_full * batch_size + (batch_size if tail == "pad" else 1))
        begin = 0
        if cursor.origin is not None:
            begin, off = divmod(cursor.position - first, world_size)
            if off or not 0 <= begin <= n_total:
                msg = (
                    f"the cursor stands inside a batch, at position {cursor.position} counted from "
                    f"{origin}, which rank {rank} of {world_size} does not hand out there: with "
                    "another rank or world size, continue from a cursor between two batches"
                )
                raise StateError(msg)
        return cls(
            cursor=cursor,
            n_draws=n_draws,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            origin=origin,
            stop=stop,
            n_steps=n_steps,
            n_valid=n_valid,
            n_total=n_total,
            begin=begin,
        )

    def position(self, place: int) -> int:
        """Global position of a place in the stream."""
        return self.origin + (self.rank - self.origin) % self.world_size + place * self.world_size

    def first_batches(self, n_batches: int) -> Self:
        """The stream of a rank that stops after so many batches."""
        n_draws = n_batches * self.batch_size
        return replace(
            self,
            n_steps=min(self.n_steps, n_batches),
            n_valid=min(self.n_valid, n_draws),
            n_total=min(self.n_total, n_draws),
        )

    @property
    def copied_position(self) -> int:
        """Global position of the draw that copies repeat."""
        last = self.n_draws - 1 - (self.n_draws - 1 - self.rank) % self.world_size
        return last if last >= 0 else self.n_draws - 1

    def cursor_at(self, place: int) -> Cursor:
        """Cursor of what the stream hands out at a place."""
        if place >= self.n_total:
            return self.cursor.between_batches(self.n_draws)
        step, inside = divmod(place, self.batch_size)
        batch_start = self._position_after(step)
        if inside == 0:
            return self.cursor.between_batches(batch_start)
        return replace(self.cursor, position=self.position(place), origin=batch_start)

    def batch_ends(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Batches that end in a stretch of the stream.

        Returns:
            Per batch that ends after `start` and not after `stop`: the place after its last draw,
            and the global position after the batch (the number of draws after the last batch).
        """
        ends = []
        for step in range(start // self.batch_size, self.n_steps):
            end = min((step + 1) * self.batch_size, self.n_total)
            if end > stop:
                break
            position = self.n_draws if end == self.n_total else self._position_after(step + 1)
            ends.append((end, position))
        return ends

    def _position_after(self, n_steps: int) -> int:
        return self.origin + n_steps * self.batch_size * self.world_size
