"""What a node or a loader needs to know of the order that it stands in."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["AnyCursor", "Order"]


class AnyCursor(Protocol):
    """A place in the order of an epoch, equal on all ranks."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def position(self) -> int:
        """Draws handed out in it, over all ranks."""


class Order[C: AnyCursor](Protocol):
    """The order of one chain, as its planner knows it, or of a mix of chains.

    Places are values: an order keeps none of its own.
    """

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and world size, looked up at the first use."""

    def start_of(self, epoch: int, before: C | None = None) -> C:
        """Where an epoch begins that comes after a place of another."""

    def start_again(self, cursor: C) -> C:
        """Where the epoch of a place began; it keeps its lanes."""

    def next_epoch(self, cursor: C) -> C:
        """Where the epoch after that of a place begins."""

    def is_at_end(self, cursor: C) -> bool:
        """Whether nothing is left of the epoch, whatever the batch size and the ranks become."""

    def steps_from(self, cursor: C) -> int:
        """Batches that every rank still gets in this epoch."""

    def after(self, cursor: C, n_batches: int) -> C:
        """The place so many batches later, of those that the epoch has left."""

    def reads_from(self, cursor: C) -> dict[str, int]:
        """Stored chunks that this rank reads from a place to the end of its epoch, by array."""

    def read_cursor(self, state: Any, *, format_name: str = ...) -> C:
        """Check a state, and read the place that it names."""

    def write_cursor(self, cursor: C) -> dict[str, Any]:
        """The state that a place stands for."""
