"""How long an epoch of a mix is, and how many batches of each source are in a stretch of it.

A source is *exhausted* once it has handed out the last batch of a pass. When the epoch of the mix
ends is the stop rule:

- "first": a source is chosen that is exhausted.
- "all": every source is exhausted. One that is can no longer be chosen, which leaves the others
  their weights in proportion.
- "cycle": every source was exhausted. One that is chosen again begins another pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.mix_choices import MixChoices

STOPS = ("first", "all", "cycle")
# Steps looked at in one go, and in the first go.
_STEPS_AT_ONCE = 1 << 16
_STEPS_AT_FIRST = 1 << 10
# A source so rare that its pass takes longer would never be through.
_MOST_STEPS = 10**8


@dataclass(frozen=True)
class MixSteps:
    """The steps of an epoch under a stop rule.

    A place in the epoch is given by the number of its step, the batches that each source has left
    of its pass (`left`), and which sources were exhausted before in this epoch (`were`).

    Raises:
        PlanError: An unknown stop rule.

    Example:
        >>> for stop in STOPS:
        ...     steps = MixSteps(MixChoices({"era5": 0.7, "cmip": 0.3}, seed=2), stop)
        ...     n_steps = steps.n_steps(0, 0, left=[5, 5])
        ...     print(stop, n_steps, steps.counts(0, 0, n_steps, left=[5, 5]))
        first 6 [1, 5]
        all 10 [5, 5]
        cycle 17 [5, 12]
    """

    choices: MixChoices
    """The choice of each step."""
    stop: str = "first"
    """The stop rule."""

    def __post_init__(self) -> None:
        """Check the stop rule."""
        if self.stop not in STOPS:
            msg = f"stop={self.stop!r} is unknown: choose one of {', '.join(map(repr, STOPS))}"
            raise PlanError(msg)

    def source(
        self, epoch: int, step: int, left: Sequence[int], were: Sequence[bool] = ()
    ) -> int | None:
        """The source of a step; None if the epoch is over."""
        if self.stop == "all":
            among = [number for number, n in enumerate(left) if n]
            return self.choices.at(epoch, step, among) if among else None
        if self.stop == "cycle":
            return self.choices.at(epoch, step) if _awaited(left, were) else None
        number = self.choices.at(epoch, step)
        return number if left[number] else None

    def n_steps(self, epoch: int, step: int, left: Sequence[int], were: Sequence[bool] = ()) -> int:
        """Steps from a place to the end of the epoch.

        Raises:
            PlanError: Under "cycle", a source is too rare to be ever through.
        """
        if self.stop == "all":
            return sum(left)
        if self.stop == "first":
            needs = {number: n + 1 for number, n in enumerate(left)}
            return self._first_place(epoch, step, needs)
        awaited = _awaited(left, were)
        for number in awaited:
            share = self.choices.share(number)
            if left[number] > share * _MOST_STEPS:
                msg = (
                    f"{left[number]} batches of source {self.choices.names[number]!r}, which is "
                    f"chosen with probability {share:.2g}, would take more than {_MOST_STEPS} "
                    f"steps with stop={self.stop!r}: give it more weight or another stop"
                )
                raise PlanError(msg)
        needs = {number: left[number] for number in awaited}
        return 1 + self._last_place(epoch, step, needs) if needs else 0

    def counts(self, epoch: int, step: int, n_steps: int, left: Sequence[int]) -> list[int]:
        """Batches of each source in `n_steps` steps from a place, which the epoch has left."""
        total = np.zeros(len(left), dtype=np.int64)
        if self.stop != "all":
            for start in range(step, step + n_steps, _STEPS_AT_ONCE):
                stop = min(start + _STEPS_AT_ONCE, step + n_steps)
                chosen = self.choices.of_steps(epoch, start, stop)
                total += np.bincount(chosen, minlength=len(left))
            return [int(count) for count in total]
        end = step + n_steps
        while step < end:
            rest = np.array(left, dtype=np.int64) - total
            among = np.flatnonzero(rest).tolist()
            chosen = self.choices.of_steps(epoch, step, min(end, step + _STEPS_AT_ONCE), among)
            # Up to the first step after which there is one source less to choose from.
            places = [np.flatnonzero(chosen == number) for number in among]
            ends = [
                int(at[rest[number] - 1]) + 1
                for number, at in zip(among, places, strict=True)
                if len(at) >= rest[number]
            ]
            n_alike = min(ends, default=len(chosen))
            total += np.bincount(chosen[:n_alike], minlength=len(left))
            step += n_alike
        return [int(count) for count in total]

    def _first_place(self, epoch: int, step: int, needs: dict[int, int]) -> int:
        """Steps before one of the sources is chosen for the n-th time."""
        return min(self._places(epoch, step, needs, n_wanted=1))

    def _last_place(self, epoch: int, step: int, needs: dict[int, int]) -> int:
        """Steps before the last of the sources is chosen for the n-th time."""
        return max(self._places(epoch, step, needs, n_wanted=len(needs)))

    def _places(self, epoch: int, step: int, needs: dict[int, int], n_wanted: int) -> list[int]:
        found: list[int] = []
        start, size = step, _STEPS_AT_FIRST
        while len(found) < n_wanted:
            chosen = self.choices.of_steps(epoch, start, start + size)
            for number, need in list(needs.items()):
                places = np.flatnonzero(chosen == number)
                if len(places) < need:
                    needs[number] = need - len(places)
                else:
                    found.append(start - step + int(places[need - 1]))
                    del needs[number]
            start += size
            size = min(2 * size, _STEPS_AT_ONCE)
        return found


def _awaited(left: Sequence[int], were: Sequence[bool]) -> list[int]:
    """Sources that were not exhausted yet."""
    whole = were or [False] * len(left)
    return [number for number, n in enumerate(left) if n and not whole[number]]
