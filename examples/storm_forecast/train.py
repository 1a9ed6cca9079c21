"""The training loop and its checkpoint: what a job needs to be killed and resumed bit for bit."""

import math
import pathlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

import torchdata_insitu as tdi

from .data import Data, as_maps, read_statistics
from .model import ForecastModel


@dataclass(frozen=True)
class Recipe:
    """How to train."""

    epochs: int
    """Passes over the training windows."""
    learning_rate: float = 3e-3
    """Falls to zero along half a cosine."""
    weight_decay: float = 0.3
    """Of AdamW."""
    seed: int = 0
    """Of the weights and of the dropout."""
    checkpoint_every: int = 5
    """Steps between two checkpoints."""


class Training:
    """A model in training, wherever it stands.

    Args:
        data: where batches come from.
        recipe: how to train.
        checkpoint: the file to write; where it exists, training goes on from it.
    """

    def __init__(self, data: Data, recipe: Recipe, checkpoint: pathlib.Path) -> None:
        # The same sums in the same order in every run: fixed algorithms on a fixed number of
        # threads. One is as fast as two for maps this small.
        torch.use_deterministic_algorithms(mode=True)
        torch.set_num_threads(1)
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.loader: tdi.InSituLoader = data.train_loader()
        self.model = ForecastModel(
            data.views["x"].sample_shape[1] * math.prod(data.views["x"].sample_shape[2:-2]),
            data.target_channels,
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), weight_decay=recipe.weight_decay
        )
        self.losses: list[float] = []
        self._checkpoint = checkpoint
        if checkpoint.exists():
            self._restore()
        else:
            with data.ordered_loader("train") as loader:
                self.model.set_statistics(read_statistics(loader, data.target_channels))
                self.n_stored_chunks = sum(loader.stats().reads.values())

    @property
    def n_steps(self) -> int:
        """Steps of the whole training."""
        return self.recipe.epochs * len(self.loader)

    def run(self, on_step: Callable[[int, float], None]) -> None:
        """Train to the end, from wherever this training stands.

        Args:
            on_step: called after every step with the steps done and the loss.
        """
        self.model.train()
        for _ in range(self.loader.epoch, self.recipe.epochs):
            for batch in self.loader:
                self._step(batch)
                if len(self.losses) % self.recipe.checkpoint_every == 0:
                    self._save()
                on_step(len(self.losses), self.losses[-1])
        self._save()
        self.loader.close()

    def _step(self, batch: dict[str, torch.Tensor]) -> None:
        progress = len(self.losses) / self.n_steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * (1 + math.cos(math.pi * progress)) / 2
        loss = self.model.loss(*as_maps(batch))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(loss.item())

    def _save(self) -> None:
        """Write all that the next step depends on: a kill leaves the old file or the new one."""
        new = self._checkpoint.with_suffix(".new")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "dropout": torch.get_rng_state(),
            "loader": self.loader.state_dict(),
            "losses": self.losses,
        }
        torch.save(state, new)
        new.replace(self._checkpoint)

    def _restore(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["dropout"])
        self.loader.load_state_dict(state["loader"])
        self.losses = state["losses"]
