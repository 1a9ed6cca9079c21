"""A training with Accelerate: `torchrun -m tests.engines.accelerate_job FOLDER N_STEPS ...`.

A training for each `N_STEPS`: it goes on from `FOLDER/state` where that is, and after so many
steps (0: never) saves and ends. Each rank writes what it was handed out to `FOLDER/RANK.json`:
for each training a list of epoch, step and samples.
"""

import json
import pathlib
import sys

import torch
from accelerate import Accelerator

import torchdata_insitu as tdi
from tests.engines.ddp_job import N_EPOCHS, handed_out, make_loader


def train(folder, n_steps):
    """The recipe: model and optimizer are prepared, the loader is registered."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = make_loader(str(folder / "store.zarr"))
    accelerator.register_for_checkpointing(loader)
    if (folder / "state").exists():
        accelerator.load_state(folder / "state")
    tdi.check_ranks(loader)

    steps = []
    with loader:
        for epoch in range(loader.epoch, N_EPOCHS):
            for step, batch in enumerate(loader, start=loader.step):
                loss = model(batch["x"].flatten(1) / 1000).square().mean()
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                steps.append([epoch, step, handed_out(batch)])
                if len(steps) == n_steps:
                    accelerator.save_state(folder / "state")
                    return steps, weights(model)
    return steps, weights(model)


def weights(model):
    return [parameter.tolist() for parameter in model.parameters()]


def main(folder, *lives):
    folder = pathlib.Path(folder)
    steps = [train(folder, int(n_steps))[0] for n_steps in lives]
    (folder / f"{Accelerator(cpu=True).process_index}.json").write_text(json.dumps(steps))
    Accelerator(cpu=True).end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
