"""Which of several sources the next batch comes from, as a function of a number.

Choice `i` of an epoch is word `i` of the stream keyed by `(seed, epoch, "mix")`, laid into the
sources in the order of their names, each as wide as its weight. It depends on nothing else: not on
earlier choices, not on the rank, and not on the order in which the sources were given. Where the
widths end is computed in whole numbers, so that it is the same on every machine.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.keyed_random import keyed_words_at
from torchdata_insitu.planning.whole_number import whole_number

# Choices computed in one go for whoever asks for one after the other.
_BLOCK = 4096
_N_WORDS = 1 << 64


class MixChoices:
    """Choices among sources by weight.

    Attributes:
        names: the sources, sorted.
        weights: their weights, in that order.
        seed: keys every choice.

    Raises:
        PlanError: No source, a name that is no text, or a weight that is not a positive, finite
            number.

    Example:
        >>> choices = MixChoices({"era5": 0.7, "cmip": 0.3}, seed=2)
        >>> choices.names
        ('cmip', 'era5')
        >>> choices.of_steps(epoch=0, start=0, stop=8).tolist()
        [1, 0, 1, 1, 1, 1, 1, 0]
        >>> choices.of_steps(epoch=0, start=5, stop=8).tolist(), choices.at(epoch=0, step=7)
        ([1, 1, 0], 0)
    """

    def __init__(self, weights: Mapping[str, float], *, seed: int = 0) -> None:
        """Check the weights; nothing is drawn."""
        if not weights:
            raise PlanError("the mix has no source: give at least one, with its weight")
        for name, weight in weights.items():
            if not isinstance(name, str):
                msg = f"a source of the mix is named {name!r}: names are text, as keys of JSON are"
                raise PlanError(msg)
            _check_weight(name, weight)
        self.names = tuple(sorted(weights))
        self.weights = tuple(float(weights[name]) for name in self.names)
        self.seed = whole_number("seed", seed)
        self._all = tuple(range(len(self.names)))
        self._edges: dict[tuple[int, ...], NDArray[np.uint64]] = {}
        self._kept: tuple[tuple[int, int, tuple[int, ...]], list[int]] | None = None

    def of_steps(
        self, epoch: int, start: int, stop: int, among: Sequence[int] | None = None
    ) -> NDArray[np.int64]:
        """Choices `start ... stop - 1` of an epoch.

        Args:
            epoch: Of the mix.
            start: Number of the first choice.
            stop: Number after the last one.
            among: Numbers of the sources that can be chosen, ascending; None for all.

        Returns:
            `(stop - start,)` int64, numbers of sources.
        """
        among = self._all if among is None else tuple(among)
        words = keyed_words_at(start, stop, self.seed, epoch, "mix")
        places = np.searchsorted(self._edges_of(among), words, side="right")
        return np.array(among, dtype=np.int64)[places]

    def at(self, epoch: int, step: int, among: Sequence[int] | None = None) -> int:
        """Choice `step` of an epoch; cheap for one step after the other.

        Args:
            epoch: Of the mix.
            step: Number of the choice.
            among: As in `of_steps`.
        """
        among = self._all if among is None else tuple(among)
        block, within = divmod(step, _BLOCK)
        key = (epoch, block, among)
        # Replaced as a whole: several threads may ask at once.
        kept = self._kept
        if kept is None or kept[0] != key:
            start = block * _BLOCK
            kept = self._kept = key, self.of_steps(epoch, start, start + _BLOCK, among).tolist()
        return kept[1][within]

    def share(self, number: int) -> float:
        """The probability of a source among all; 0 if no word stands for it."""
        edges = [0, *map(int, self._edges_of(self._all)), _N_WORDS]
        return (edges[number + 1] - edges[number]) / _N_WORDS

    def _edges_of(self, among: tuple[int, ...]) -> NDArray[np.uint64]:
        """First word of each source but the first, `(len(among) - 1,)`."""
        edges = self._edges.get(among)
        if edges is None:
            weights = [Fraction(self.weights[number]) for number in among]
            total = sum(weights)
            sums = [sum(weights[:n]) for n in range(1, len(weights))]
            words = [math.floor(part * _N_WORDS / total) for part in sums]
            edges = self._edges[among] = np.array(words, dtype=np.uint64)
        return edges

    def __getstate__(self) -> dict[str, object]:
        """Without what is only kept for speed."""
        return {**self.__dict__, "_kept": None, "_edges": {}}


def _check_weight(name: str, weight: object) -> None:
    is_number = isinstance(weight, Real | np.integer | np.floating) and not isinstance(weight, bool)
    if not (is_number and math.isfinite(weight) and weight > 0):  # type: ignore[arg-type, operator]
        msg = (
            f"the weight of source {name!r} is {weight!r}, but must be a positive, finite number: "
            "leave a source out that nothing is to come from"
        )
        raise PlanError(msg)
