"""Small trainings under Lightning, and the ledger of what each of them trained on."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import torchdata_insitu as tdi
from torchdata_insitu.testing import make_store

# What Lightning itself warns of here, as marks of a test module.
QUIET = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        # It looks at trees of batches in a way that torch no longer likes.
        r"`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
        r"You defined a `validation_step` but have no `val_dataloader`. Skipping val loop",
    )
]
N_BATCHES = 6
N_EPOCHS = 3
BATCH = 4
N_SAMPLES = 34


def small_store(path=None):
    """24 samples to train on, 10 to validate on."""
    return make_store({"t2m": (N_SAMPLES, 2, 3)}, chunks=(2, 2, 3), path=path)


def make_data(store=None, cls=None, **options):
    options = {
        "views": {"x": tdi.ViewSpec("t2m")},
        "split": {"train": [0, 24], "val": [24, 34]},
        "batch_size": BATCH,
        "block_chunks": 3,
        "budget_bytes": 10**7,
        **options,
    }
    return (cls or tdi.InSituDataModule)(small_store() if store is None else store, **options)


def make_ledger(base):
    """The ledger for one of the two packages of Lightning."""

    class Ledger(base):
        """Writes down the epochs that it began and the samples that it trained on.

        Args:
            fails_at: number of the training step that fails, if one does.
            one_cycle: schedule the learning rate over the steps that Lightning estimates.
        """

        def __init__(self, *, fails_at=None, one_cycle=False):
            super().__init__()
            self.layer = torch.nn.Linear(6, 1)
            self.entries = []
            self.validated = []
            self._fails_at = fails_at
            self._one_cycle = one_cycle
            self._n_steps = 0

        def on_train_epoch_start(self):
            self.entries.append(f"epoch {self.trainer.current_epoch}")

        def training_step(self, batch):
            parts = batch if isinstance(batch, list) else [batch]
            if self._n_steps == self._fails_at:
                raise ArithmeticError("this batch is too much")
            self._n_steps += 1
            self.entries.append([part["sample_index"].tolist() for part in parts])
            return sum(self.layer(part["x"].flatten(1)).pow(2).mean() for part in parts)

        def validation_step(self, batch):
            self.validated += tdi.mask_invalid(batch)["sample_index"].tolist()

        def test_step(self, batch):
            self.validation_step(batch)

        def predict_step(self, batch):
            return tdi.mask_invalid(batch)["sample_index"].tolist()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-6)
            if not self._one_cycle:
                return optimizer
            n_steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-6, total_steps=n_steps)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"},
            }

    return Ledger


Ledger = make_ledger(LightningModule)


class Saves(Callback):
    """Saves a checkpoint whenever one of some hooks is called, and how far the ledger was then."""

    def __init__(self, folder, hooks, only=None):
        self.saved = []
        self._folder = folder
        self._only = only
        for hook in hooks:
            setattr(self, hook, self._save_in(hook))

    def _save_in(self, hook):
        def save(trainer, module, *args):
            if trainer.sanity_checking:
                return
            path = self._folder / f"{len(self.saved)}-{hook}.ckpt"
            if self._only is None or self._only(path.stem):
                trainer.save_checkpoint(path)
            self.saved.append((path, len(module.entries)))

        return save


def make_trainer(folder, callbacks=(), cls=Trainer, **options):
    options = {"max_epochs": N_EPOCHS, **options}
    return cls(
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_checkpointing=options.pop("enable_checkpointing", False),
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        **options,
    )


def train(
    folder, *, data=None, module=None, ckpt_path=None, callbacks=(), data_options=(), **options
):
    """Train in a new trainer; gives the module."""
    module = module or Ledger()
    data = data or make_data(**dict(data_options))
    trainer = make_trainer(folder, callbacks, **options)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module
