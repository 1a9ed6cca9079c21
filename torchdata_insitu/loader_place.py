"""Where a loader stands: the place its pass began at, and the batches handed out since."""

from __future__ import annotations

import dataclasses
import logging
import operator
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.order import Order
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor

__all__ = ["AHEAD", "LoaderPlace", "Place"]

AHEAD = 2
"""Batches that may be handed out and not trained on: the one in work, and one looked ahead to."""

_logger = logging.getLogger(__name__)


@dataclass
class Place:
    """Where a pass of a loader begins; batches handed out since then are counted beside it."""

    cursor: Cursor | MixCursor
    """The place of the first batch."""
    step: int = 0
    """Batches of the epoch on each rank before it."""
    is_kept: bool = False
    """Whether `set_epoch` leaves it alone: it was loaded, skipped to, or follows an error."""
    is_begun: bool = False
    """Whether batches of the epoch were handed out since the last `iter()` before it."""
    is_warned: bool = False
    """Whether the one warning was given that it was kept."""
    nodes: dict[str, Any] | None = field(default=None, repr=False)
    """State of foreign nodes after the gather."""


class LoaderPlace:
    """Keeps the books of a loader, and starts nothing.

    What moves it says whether a pass that is under way ends with it.

    Attributes:
        handed_out: batches since the place where the pass began.
        is_over: whether that pass came to its end.
    """

    def __init__(self, order: Order[Any]) -> None:
        """Stand at the start of epoch 0."""
        self._order = order
        self._start: Place | None = None
        self._first_epoch = 0
        self._next_epoch: int | None = None
        self._reset()

    def _reset(self) -> None:
        self.handed_out = 0
        self.is_over = False
        # Known once a pass has begun, and asked for with every batch.
        self._n_planned: int | None = None
        nodes = None if self._start is None else self._start.nodes
        # After the last batch, the one before it, and so on.
        self._nodes: deque[dict[str, Any] | None] = deque([nodes], maxlen=AHEAD + 1)

    # Both the lanes of a first epoch and what is left of a loaded one depend on the world size,
    # which may change until draws are handed out: what follows from it is kept from there on.
    @property
    def start(self) -> Place:
        """Where the pass began, or would begin as the ranks are now."""
        place, order = self._start, self._order
        if place is None:
            return Place(order.start_of(self._first_epoch))
        if order.steps_from(place.cursor):
            return place
        # Nothing is left of the epoch at this batch and world size.
        return Place(order.next_epoch(place.cursor), is_kept=True, nodes=place.nodes)

    def begin(self) -> None:
        """Hold on to the start: a pass from it begins."""
        before, self._start = self._start, self.start
        if before is not None and before is not self._start:
            epoch = before.cursor.epoch
            _logger.info("nothing is left of epoch %d at this batch and world size", epoch)
        self._n_planned = self._order.steps_from(self._start.cursor)

    def count(self, nodes: dict[str, Any] | None) -> None:
        """Count a batch that is handed out, with the state of foreign nodes after it."""
        self.handed_out += 1
        self._nodes.append(nodes)

    @property
    def cursor(self) -> Cursor | MixCursor:
        """The place of the next batch; of the next epoch once nothing of this one is left."""
        return self._cursor_after(self.handed_out)[0]

    @property
    def step(self) -> int:
        """Batches of that epoch handed out on each rank."""
        return self._cursor_after(self.handed_out)[1]

    @property
    def nodes(self) -> dict[str, Any] | None:
        """State of foreign nodes after the batch handed out last."""
        return self._nodes[-1]

    @property
    def n_planned(self) -> int:
        """Batches of the pass, from its start to the end of the epoch."""
        if self._n_planned is not None:
            # Raises if they are others than those that the pass began with.
            _ = self._order.ranks
            return self._n_planned
        return self._order.steps_from(self.start.cursor)

    @property
    def n_batches(self) -> int:
        """Batches of the whole epoch on each rank, those before the pass included."""
        # Epochs of a mix differ in length: of the next one, a loop is told when it has ended.
        cursor, step = self._cursor_after(self.handed_out if self.is_over else 0)
        return step + self._order.steps_from(cursor)

    def _cursor_after(self, handed_out: int) -> tuple[Cursor | MixCursor, int]:
        place, order = self.start, self._order
        start = place.cursor
        # An epoch that is done is saved as the start of the next: under another batch size or tail
        # there could be draws left of the finished one.
        if handed_out and handed_out >= order.steps_from(start):
            if self._next_epoch is not None:
                return self.epoch_start(self._next_epoch), 0
            return order.next_epoch(start), 0
        # Nothing handed out, nothing moved: neither may a place where nothing is left.
        return order.after(start, handed_out) if handed_out else start, place.step + handed_out

    def epoch_start(self, epoch: int) -> Cursor | MixCursor:
        """Where an epoch begins that comes after this place."""
        return self._order.start_of(epoch, self.start.cursor)  # type: ignore[no-any-return]

    def after(self, handed_out: int) -> Place:
        """Where a pass begins that goes on after so many batches of this one."""
        cursor, step = self._cursor_after(handed_out)
        # What is skipped is not seen by nodes.
        n_back = max(0, self.handed_out - handed_out)
        nodes = self._nodes[-1 - n_back] if n_back < len(self._nodes) else None
        return Place(cursor, step, is_kept=True, nodes=nodes)

    def after_trained(self, n_trained: int | None) -> Place:
        """Where a pass begins that trains on what this one did not.

        Args:
            n_trained: batches of the epoch that were trained on, those before the pass included.
                None if nobody says so, and a number of another epoch: all that were handed out.
        """
        handed_out = self.handed_out
        if n_trained is not None:
            trained = n_trained - self.start.step
            if trained >= 0 and 0 <= handed_out - trained <= AHEAD:
                handed_out = trained
        return self.after(handed_out)

    def stand(self, place: Place) -> None:
        """Let the next pass begin at a place, whatever was asked for before."""
        self._start = place
        self._next_epoch = None
        self._reset()

    def next_pass(self, *, failed: bool) -> bool:
        """Stand where the next iteration begins; whether that is another place.

        Args:
            failed: whether an error came up instead of the next batch.
        """
        place = self._start
        if self._next_epoch is not None:
            self.stand(Place(self.epoch_start(self._next_epoch), nodes=self.nodes))
        elif failed:
            self.stand(self.after(self.handed_out))
        elif place is not None and (self.handed_out or place.is_begun):
            self.stand(Place(self._order.next_epoch(place.cursor), nodes=self.nodes))
        else:
            return False
        return True

    def skip(self, n_batches: int) -> bool:
        """Go on further in the epoch; whether that is another place.

        Raises:
            PlanError: negative, or more than are left.
        """
        place = self.start
        left = self.n_planned - self.handed_out
        if isinstance(n_batches, bool) or not 0 <= n_batches <= left:
            msg = f"cannot skip {n_batches} batches: {left} are left of epoch {place.cursor.epoch}"
            raise PlanError(msg)
        n_batches = operator.index(n_batches)
        if not n_batches:
            return False
        is_begun = self.handed_out > 0 or place.is_begun
        handed_out, asked = self.handed_out + n_batches, self._next_epoch
        if n_batches < left:
            place = self.after(handed_out)
            place.is_begun = is_begun
            self.stand(place)
        else:
            # The iterator that is live ends here, and does not go on to the next epoch.
            self.stand(dataclasses.replace(place, nodes=self.nodes))
            self.handed_out = handed_out
        self._next_epoch = asked
        return True

    def set_epoch(self, epoch: int) -> bool:
        """Let the next iteration be an epoch from its start; whether that is another place now.

        Raises:
            PlanError: the epoch is negative.
            TypeError: it is no integer.
        """
        if isinstance(epoch, bool) or epoch < 0:
            raise PlanError(f"epoch is {epoch!r}, but must be an integer of at least 0")
        epoch = operator.index(epoch)
        if self._start is None:
            self._first_epoch = epoch
            return False
        place = self.start
        if self.handed_out or place.is_begun:
            self._next_epoch = epoch
        elif not place.is_kept:
            if (place.cursor.epoch, place.cursor.position) != (epoch, 0):
                self.stand(Place(self.epoch_start(epoch), nodes=self.nodes))
                return True
        elif place.cursor.epoch != epoch and not self._start.is_warned:
            self._start.is_warned = True
            msg = (
                f"set_epoch({epoch}) is ignored: the loader was put to position "
                f"{place.cursor.position} of epoch {place.cursor.epoch} and has not begun there yet"
            )
            warnings.warn(msg, stacklevel=3)
        return False

    def enter_epoch(self, epoch: int) -> bool:
        """`set_epoch` by a trainer that begins its own; whether that is another place now.

        A kept place of an earlier epoch is left, since the trainer has ended that epoch, whatever
        is left of it. One of a later epoch is kept: the trainer has only to close its own.
        """
        place = self._start
        is_kept = place is not None and place.is_kept and not place.is_begun
        if place is None or not is_kept or self.handed_out:
            return self.set_epoch(epoch)
        if self.start.cursor.epoch >= epoch:
            return False
        self.stand(Place(self.epoch_start(epoch), nodes=self.nodes))
        return True

    def __getstate__(self) -> dict[str, Any]:
        """The place of the next batch; a copy begins there."""
        start = self._start
        if self.handed_out:
            start = self.after(self.handed_out)
            start.is_kept = start.cursor.position > 0
        elif start is not None:
            start = dataclasses.replace(start, is_begun=False)
        kept = {name: self.__dict__[name] for name in ("_order", "_first_epoch", "_next_epoch")}
        return {**kept, "_start": start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Stand there, with nothing handed out."""
        self.__dict__.update(state)
        self._reset()
