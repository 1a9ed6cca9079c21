"""One process of a training on several, started by `test_ddp`: `python -m` with a JSON of options.

Lightning starts the others with the same command.
"""

import json
import os
import sys
import warnings
from pathlib import Path

from lightning.pytorch import Trainer

import torchdata_insitu as tdi
from tests.lightning_.trainings import Ledger, Saves


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
    module = Ledger()
    trainer = Trainer(
        accelerator="cpu",
        devices=n_ranks,
        strategy="ddp" if n_ranks > 1 else "auto",
        callbacks=[saves],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=options["n_epochs"],
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=options["reload"],
    )
    error = None
    try:
        trainer.fit(module, datamodule=data, ckpt_path=options["ckpt_path"])
    except tdi.errors.StateError as found:
        error = str(found)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    told = {"entries": module.entries, "validated": module.validated, "error": error}
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
