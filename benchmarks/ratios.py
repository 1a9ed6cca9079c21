"""Ratios of what was measured side by side, and how they are summed up."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """How much faster one engine is than another: above 1 is faster."""

    title: str
    """What it is called in tables."""
    engine: str
    """The one that is judged."""
    against: tuple[str, ...]
    """What it is measured against; of several, the fastest of each repeat."""
    quantity: str = "epoch_s"
    """The seconds that are compared: `"epoch_s"`, `"again_s"` or `"first_batch_s"`."""


FIGURES = (
    Figure("ours / ceiling", "ours", ("ceiling",)),
    Figure("again: ours / ceiling", "ours", ("ceiling",), "again_s"),
    Figure("ours / into", "ours", ("into",)),
    Figure("through obstore / ceiling", "ours-obstore", ("ceiling",)),
    Figure("warm / memcpy", "ours-warm", ("memcpy",)),
    Figure("ours / insitubatch", "ours", ("insitubatch",)),
    Figure("ours / best DataLoader", "ours", ("dataloader-0", "dataloader-2")),
    Figure("first batch: ours / insitubatch", "ours", ("insitubatch",), "first_batch_s"),
    Figure("insitubatch / ceiling", "insitubatch", ("ceiling",)),
)


@dataclass(frozen=True)
class Spread:
    """Median and extremes."""

    median: float
    """Of all."""
    least: float
    """Smallest."""
    most: float
    """Largest."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


type Repeat = Mapping[str, Mapping[str, float | None]]
"""By engine, the seconds by quantity, all of one repeat; without engines that have none."""


def pair_ratios(figure: Figure, repeats: Sequence[Repeat]) -> list[float]:
    """The ratio of each repeat that has both engines.

    The two were measured one after the other, so that what slows the machine down for a while
    slows both.
    """
    ratios = []
    for repeat in repeats:
        mine = _seconds(repeat, figure.engine, figure.quantity)
        others = [_seconds(repeat, name, figure.quantity) for name in figure.against]
        known = [seconds for seconds in others if seconds is not None]
        if mine is not None and known:
            ratios.append(min(known) / mine)
    return ratios


def _seconds(repeat: Repeat, engine: str, quantity: str) -> float | None:
    return repeat.get(engine, {}).get(quantity)


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one positive value."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def worst(spreads: Mapping[str, Spread]) -> str:
    """The layout of the smallest median."""
    return min(spreads, key=lambda layout: spreads[layout].median)
