"""One process of a training on several, started by `test_ddp`: `python -m` with a JSON of options.

Lightning starts the others with the same command, or spawns them.
"""

import json
import os
import sys
import warnings
from pathlib import Path

from lightning.pytorch import Callback, Trainer

import torchdata_insitu as tdi
from tests.lightning_.trainings import Ledger, Saves


class Training(Ledger):
    """Goes to a spawned process by its name."""


class Tells(Callback):
    """Writes down what a rank did, in its own process."""

    def __init__(self, folder):
        self._folder = folder

    def on_train_end(self, trainer, module):
        tell(self._folder, trainer.global_rank, module, error=None)


def tell(folder, rank, module, error):
    told = {"entries": module.entries, "validated": module.validated, "error": error}
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))


def main():
    warnings.filterwarnings("ignore")
    options = json.loads(sys.argv[1])
    folder = Path(options["folder"])
    data = tdi.InSituDataModule(
        options["url"],
        {"x": tdi.ViewSpec("t2m")},
        {"train": [0, 48], "val": [48, 58]},
        batch_size=4,
        seed=options["seeds"][int(os.environ.get("LOCAL_RANK", "0"))],
        block_chunks=2,
        budget_bytes=10**7,
    )
    n_ranks = options["n_ranks"]
    saves = Saves(folder, ["on_train_batch_end"] if options["saves"] else [])
    module = Training()
    trainer = Trainer(
        accelerator="cpu",
        devices=n_ranks,
        strategy=options["strategy"] if n_ranks > 1 else "auto",
        callbacks=[saves, Tells(folder)],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=options["n_epochs"],
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=options["reload"],
    )
    try:
        trainer.fit(module, datamodule=data, ckpt_path=options["ckpt_path"])
    except tdi.errors.StateError as found:
        tell(folder, int(os.environ.get("LOCAL_RANK", "0")), module, str(found))


if __name__ == "__main__":
    main()
