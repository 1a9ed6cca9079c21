"""A dataset that Accelerate shares out: `torchrun -m tests.engines.dispatch_job FOLDER`.

Each rank writes the samples of its batches to `FOLDER/RANK.json`, by epoch.
"""

import json
import pathlib
import sys

from accelerate import Accelerator
from torch.utils.data import DataLoader

import torchdata_insitu as tdi
from tests.engines.ddp_job import N_EPOCHS, handed_out, make_loader


def main(folder):
    folder = pathlib.Path(folder)
    accelerator = Accelerator(cpu=True)
    loader = make_loader(str(folder / "even.zarr"), rank=0, world_size=1)
    dataset = tdi.as_iterable_dataset(loader, sharded_by="caller")
    batches = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=0))
    epochs = [[handed_out(batch) for batch in batches] for _ in range(N_EPOCHS)]
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(epochs))
    loader.close()
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
