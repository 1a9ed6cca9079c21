"""What stands for your data: two archives of temperatures that agree in nothing but the field."""

import math
import pathlib
from dataclasses import dataclass

import torch
import zarr


@dataclass(frozen=True)
class Archive:
    """A Zarr store with one array ``"temperature"`` (days, 16, 24)."""

    name: str
    """What it is called in the mix."""
    url: str
    """Where it is; whatever ``open_store`` takes."""
    weight: float
    """Its share of the batches."""


def make_archives(folder: pathlib.Path) -> list[Archive]:
    """Write both: observed in kelvin, and a longer simulation in degrees that is too warm."""
    _write(folder / "observed.zarr", n_days=200, days_in_chunk=8, mean=285.0)
    _write(folder / "simulated.zarr", n_days=360, days_in_chunk=20, mean=17.0)
    return [
        Archive("observed", str(folder / "observed.zarr"), weight=0.6),
        Archive("simulated", str(folder / "simulated.zarr"), weight=0.4),
    ]


def _write(path: pathlib.Path, *, n_days: int, days_in_chunk: int, mean: float) -> None:
    days = torch.arange(n_days).reshape(-1, 1, 1) * (2 * math.pi / 365)
    weather = torch.randn(n_days, 16, 24, generator=torch.Generator().manual_seed(n_days))
    values = mean + 10 * torch.sin(days) + 3 * weather
    array = zarr.create_group(path).create_array(
        "temperature", shape=values.shape, dtype="float32", chunks=(days_in_chunk, 16, 24)
    )
    array[...] = values.numpy()
