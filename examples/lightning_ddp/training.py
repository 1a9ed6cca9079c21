"""The model, the data module, and one job: train until the end or a signal.

Run by `jobs.py` as `python -m examples.lightning_ddp.training`; with `ddp`, Lightning starts the
same command again for each further process.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

import torchdata_insitu as tdi

from .ledger import write_entry

ARCHIVE = Path(__file__).parent.parent / "storm_forecast" / "storm.zarr"
GLOBAL_BATCH_SIZE = 4
N_EPOCHS = 3
CHECKPOINT_EVERY = 5


class StepAhead(LightningModule):
    """Predicts the change of the temperature until the next step of the archive."""

    def __init__(self, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 1, 3, padding=1)
        )

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """The mean squared error of one batch."""
        del index
        return self._loss(batch)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """The same over held-back hours, each counted once."""
        del index
        kept = tdi.mask_invalid(batch)
        n_samples = len(kept["sample_index"])
        if n_samples:
            self.log("val_loss", self._loss(kept), batch_size=n_samples)

    def _loss(self, batch: dict[str, Tensor]) -> Tensor:
        now = torch.nan_to_num(batch["x"]) / 10
        change = torch.nan_to_num(batch["y"]) / 10 - now[:, 1]
        predicted: Tensor = self.net(now)[:, 0]
        return (predicted - change).square().mean()

    def configure_optimizers(self) -> Any:
        """A schedule that needs to know how many steps there will be."""
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Ledger(Callback):
    """Writes down which samples a process trained on in each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Add a line for the step that is done."""
        del pl_module, index
        write_entry(
            self._folder,
            rank=trainer.global_rank,
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            samples=batch["sample_index"].tolist(),
            loss=float(outputs["loss"]),
        )


def make_data(n_processes: int) -> tdi.InSituDataModule:
    """Pairs of two hours, and the hour after them."""
    return tdi.InSituDataModule(
        ARCHIVE,
        views={"x": tdi.ViewSpec("t", window=[-1, 0]), "y": tdi.ViewSpec("t", shift=1)},
        split={"train": [0, 48], "val": [48, 64]},
        # As many samples a step on one process as on two, so that steps mean the same.
        batch_size=GLOBAL_BATCH_SIZE // n_processes,
        block_chunks=4,
        budget_bytes=64 << 20,
    )


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    arguments = parser.parse_args()
    seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    checkpoint = ModelCheckpoint(
        arguments.checkpoints, every_n_train_steps=CHECKPOINT_EVERY, save_last=True
    )
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if arguments.processes > 1 else "auto",
        devices=arguments.processes,
        max_epochs=N_EPOCHS,
        callbacks=[checkpoint, Ledger(arguments.ledger)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = arguments.checkpoints / "last.ckpt"
    trainer.fit(
        StepAhead(),
        datamodule=make_data(arguments.processes),
        ckpt_path=last if last.exists() else None,
    )


if __name__ == "__main__":
    main()
