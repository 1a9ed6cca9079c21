"""What a batch holds and where it comes from: views on a store, split by time, two loaders."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import torchdata_insitu as tdi

NOW = -1  # the last offset of the input window is the time the forecast starts from


@dataclass(frozen=True)
class Source:
    """A store and what to read from it."""

    url: str
    """The Zarr store: a path or the URL of an object store."""
    inputs: tuple[str, ...] | None
    """Arrays the forecast starts from, equal in field shape and data type; None for all."""
    targets: tuple[str, ...] | None
    """Arrays to forecast, some or all of the inputs; None for all inputs."""
    sample_axis: str
    """Name or number of the axis along which samples are counted."""
    lead: int
    """How many steps ahead the forecast is."""
    held_back: float
    """Share of the steps, the last ones, that training never sees."""


class Data:
    """The views, the splits and the loaders of one source.

    A batch has ``"x"`` (B, 2, n_inputs, *field): the inputs one step before the start and at the
    start; ``"y"`` (B, n_targets, *field): the targets ``lead`` steps later.

    Args:
        source: what to read.
        batch_size: windows in a batch.
        block_chunks: chunks along time whose windows are shuffled among themselves.
        budget: memory for chunks, as a share of what the training steps take decoded. Below 1,
            chunks come and go all the time.
        seed: keys the shuffle.
    """

    def __init__(
        self, source: Source, *, batch_size: int, block_chunks: int, budget: float, seed: int
    ) -> None:
        axis = int(source.sample_axis) if source.sample_axis.isdigit() else source.sample_axis
        self.store = tdi.open_store(source.url)
        self.arrays = tdi.open_arrays(self.store, source.inputs, sample_axis=axis)
        self.inputs = source.inputs or tuple(self.arrays)
        self.targets = source.targets or self.inputs
        missing = [name for name in self.targets if name not in self.inputs]
        if missing:
            raise SystemExit(f"targets {missing} are not among the inputs {list(self.inputs)}")
        if len(self.arrays[self.inputs[0]].field_shape) < 2:  # noqa: PLR2004, a map has two axes
            raise SystemExit(f"{self.inputs[0]!r} has no maps: the model needs two field axes")
        self.views = {
            "x": tdi.stack(*(self.arrays[name] for name in self.inputs)).window(-1, 0),
            "y": tdi.stack(*(self.arrays[name] for name in self.targets)).shift(source.lead),
        }
        self.n_samples = self.arrays[self.inputs[0]].n_samples
        self.first_held_back = self.n_samples - max(1, round(self.n_samples * source.held_back))
        self.splits = tdi.split_by_range(
            self.views,
            {
                "train": (0, self.first_held_back),
                "held back": (self.first_held_back, self.n_samples),
            },
        )
        self._batch_size = batch_size
        self._block_chunks = block_chunks
        self._budget = budget
        self._seed = seed

    @property
    def train_bytes(self) -> int:
        """Decoded size of the arrays over the steps that training sees."""
        return sum(a.sample_bytes for a in self.arrays.values()) * self.first_held_back

    def train_loader(self) -> tdi.InSituLoader:
        """Shuffled windows of the steps before those held back."""
        return tdi.build_loader(
            self.store,
            self.views,
            split=self.splits["train"],
            batch_size=self._batch_size,
            shuffle=True,
            seed=self._seed,
            block_chunks=self._block_chunks,
            budget_bytes=int(self.train_bytes * self._budget),
        )

    def ordered_loader(self, split: str) -> tdi.InSituLoader:
        """Every window of a split once, in order of time."""
        return tdi.build_loader(
            self.store,
            self.views,
            split=self.splits[split],
            batch_size=self._batch_size,
            shuffle=False,
            block_chunks=1,
            tail="short",
        )

    @property
    def target_channels(self) -> list[int]:
        """Where the targets stand among the channels of the inputs."""
        size = math.prod(self.arrays[self.inputs[0]].field_shape[:-2])
        starts = [self.inputs.index(name) * size for name in self.targets]
        return [start + i for start in starts for i in range(size)]


def as_maps(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs (B, 2, C, H, W) and targets (B, C', H, W), whatever axes a field has before H and W.

    Every variable at every level is one channel.
    """
    return batch["x"].float().flatten(2, -3), batch["y"].float().flatten(1, -3)


@dataclass(frozen=True)
class Statistics:
    """What the model is normalised with, a value for each channel. NaN does not count."""

    mean: Tensor
    """Mean of the inputs, (C,)."""
    std: Tensor
    """Standard deviation of the inputs, (C,)."""
    change: Tensor
    """Root mean square change of the targets over the lead time, (C',)."""


def read_statistics(loader: tdi.InSituLoader, target_channels: list[int]) -> Statistics:
    """Measure the training windows in one pass.

    Args:
        loader: an ordered loader over the training windows.
        target_channels: where the targets stand among the channels of the inputs.
    """
    n = total = squares = n_change = change_squares = torch.zeros((), dtype=torch.float64)
    for batch in loader:
        x, y = as_maps(batch)
        now = x[:, NOW].double()
        change = y.double() - now[:, target_channels]
        axes = (0, 2, 3)
        n = n + now.isfinite().sum(axes)
        total = total + now.nansum(axes)
        squares = squares + now.square().nansum(axes)
        n_change = n_change + change.isfinite().sum(axes)
        change_squares = change_squares + change.square().nansum(axes)
    mean = total / n
    std = (squares / n - mean.square()).clamp_min(1e-12).sqrt()
    return Statistics(mean.float(), std.float(), (change_squares / n_change).sqrt().float())
