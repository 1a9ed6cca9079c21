"""How good a forecast is: its error, and how much of persistence's error it takes away."""

from dataclasses import dataclass

import torch
from torch import Tensor

import torchdata_insitu as tdi

from .data import NOW, as_maps
from .model import ForecastModel


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of a split; each map is (n, C', H, W) in the units of the store."""

    samples: Tensor
    """The sample index each forecast starts from, (n,)."""
    truth: Tensor
    """What came."""
    forecast: Tensor
    """What the model expected."""
    persistence: Tensor
    """The map at the start: the forecast that nothing changes."""

    def rmse(self) -> Tensor:
        """Root mean square error of the model for each channel, (C',)."""
        return _mean_square(self.forecast - self.truth).sqrt()

    def persistence_rmse(self) -> Tensor:
        """Root mean square error of persistence for each channel, (C',)."""
        return _mean_square(self.persistence - self.truth).sqrt()

    def skill(self) -> Tensor:
        """Share of persistence's mean square error that the model takes away, (C',).

        1 is a perfect forecast, 0 is no better than persistence. Source: Murphy (1988), Skill
        scores based on the mean square error, Monthly Weather Review 116.
        """
        return 1 - (self.rmse() / self.persistence_rmse()).square()


def make_forecasts(model: ForecastModel, loader: tdi.InSituLoader) -> Forecasts:
    """Forecast every window of a loader."""
    parts = []
    for batch in loader:
        x, y = as_maps(batch)
        parts.append((batch["sample_index"], y, model.forecast(x), x[:, NOW, model.targets]))
    return Forecasts(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _mean_square(error: Tensor) -> Tensor:
    """Mean square over the points where both maps are known."""
    return error.square().nanmean((0, 2, 3))
