"""A small convolutional model that forecasts the change over the lead time."""

import torch
from torch import Tensor, nn

from .data import NOW, Statistics


class ForecastModel(nn.Module):
    """Two maps in time in, the expected change out.

    The forecast is persistence (the map at the start) plus a change: a linear stencil that learns
    what a regression would, and two small convolutions for what is not linear, as when the wind
    carries a gradient. Both start at zero, so that training starts from persistence.

    Missing values (NaN) become 0, the mean, and one more channel for each input says where values
    are there. The padding beyond the edge of the map is marked as missing in the same way.

    The statistics are buffers: a checkpoint of the model holds them, and what resumes from it
    measures nothing again.

    Args:
        n_inputs: channels of the input maps.
        target_channels: where the targets stand among them.
        width: channels of the hidden layer.
    """

    mean: Tensor
    std: Tensor
    change: Tensor
    targets: Tensor

    def __init__(self, n_inputs: int, target_channels: list[int], width: int = 32) -> None:
        super().__init__()
        n_targets = len(target_channels)
        self.register_buffer("mean", torch.zeros(n_inputs))
        self.register_buffer("std", torch.ones(n_inputs))
        self.register_buffer("change", torch.ones(n_targets))
        self.register_buffer("targets", torch.tensor(target_channels))
        self.stencil = nn.Conv2d(3 * n_inputs, n_targets, 5, padding=2)
        last = nn.Conv2d(width, n_targets, 3, padding=1)
        self.network = nn.Sequential(
            nn.Conv2d(3 * n_inputs, width, 3, padding=1),
            nn.GELU(),
            nn.Dropout2d(0.3),
            last,
        )
        for layer in (self.stencil, last):
            nn.init.zeros_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def set_statistics(self, statistics: Statistics) -> None:
        """Normalise with these from now on."""
        self.mean.copy_(statistics.mean)
        self.std.copy_(statistics.std)
        self.change.copy_(statistics.change)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast the change of the targets, in units of their usual change.

        Args:
            x: the inputs (B, 2, C, H, W) in the units of the store; NaN where missing.

        Returns:
            (B, C', H, W), without NaN.
        """
        now = (x[:, NOW] - self.mean[:, None, None]) / self.std[:, None, None]
        tendency = (x[:, NOW] - x[:, 0]) / self.std[:, None, None]
        is_there = now.isfinite()
        maps = torch.cat([now.nan_to_num(0.0), tendency.nan_to_num(0.0), is_there], dim=1)
        change: Tensor = self.stencil(maps) + self.network(maps)
        return change

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared error of the change, over the points where it is known.

        Args:
            x: the inputs (B, 2, C, H, W).
            y: the targets (B, C', H, W); NaN where missing.
        """
        wanted = (y - x[:, NOW, self.targets]) / self.change[:, None, None]
        is_known = wanted.isfinite()
        error = torch.where(is_known, self(x) - wanted.nan_to_num(0.0), 0.0)
        loss: Tensor = error.square().sum() / is_known.sum().clamp_min(1)
        return loss

    @torch.no_grad()
    def forecast(self, x: Tensor) -> Tensor:
        """Forecast the targets.

        Args:
            x: the inputs (B, 2, C, H, W).

        Returns:
            (B, C', H, W) in the units of the store; NaN where the start is missing.
        """
        self.eval()
        change: Tensor = self(x) * self.change[:, None, None]
        return x[:, NOW, self.targets] + change
