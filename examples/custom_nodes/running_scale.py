"""The node that is yours: it learns mean and spread of each archive while batches go by."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torchdata.nodes import BaseNode

type Batch = dict[str, Tensor]


@dataclass
class Moments:
    """Mean and spread of all values seen so far."""

    n: int = 0
    """How many values."""
    mean: float = 0.0
    """Their mean."""
    squares: float = 0.0
    """The sum of their squared distances from it."""

    def add(self, values: Tensor) -> None:
        """Take a batch of values in, of any shape (Chan, Golub and LeVeque 1979)."""
        values = values.double()
        n, mean = values.numel(), values.mean().item()
        change, n_both = mean - self.mean, self.n + n
        self.squares += (values - mean).square().sum().item()
        self.squares += change**2 * self.n * n / n_both
        self.mean += change * n / n_both
        self.n = n_both

    @property
    def std(self) -> float:
        """Their standard deviation; 1 where all are equal."""
        return (self.squares / max(self.n, 1)) ** 0.5 or 1.0


class RunningScale(BaseNode[Batch]):
    """Brings ``"x"`` of every batch to mean 0 and spread 1, by what was seen of its archive so far.

    What it has learned is no place in an order, so that it has to be saved: the loader puts
    ``get_state`` into its own state, under ``"nodes"``.

    Args:
        source: the node before, whose batches have ``"x"`` and ``"archive"``, (B,), a number.
        names: the archives by number.
    """

    def __init__(self, source: BaseNode[Batch], names: Sequence[str]) -> None:
        super().__init__()
        self.source = source
        self.moments = {name: Moments() for name in names}

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Go on at a state, or with None at the next epoch: what was learned stays."""
        super().reset(initial_state)
        if initial_state is None:
            self.source.reset(None)
            return
        self.source.reset(initial_state["source"])
        self.moments = {name: Moments(**m) for name, m in initial_state["moments"].items()}

    def next(self) -> Batch:
        """The next batch: one in, one out, so that the loader knows where it stands."""
        batch = next(self.source)
        moments = list(self.moments.values())[int(batch["archive"][0])]
        moments.add(batch["x"])
        return {**batch, "x": (batch["x"] - moments.mean) / moments.std}

    def get_state(self) -> dict[str, Any]:
        """Plain numbers, which go through JSON unchanged, and the state of the node before."""
        return {
            "source": self.source.state_dict(),
            "moments": {name: asdict(moments) for name, moments in self.moments.items()},
        }
