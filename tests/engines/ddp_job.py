"""A training with DDP: `torchrun -m tests.engines.ddp_job FOLDER START KILL_AT N_STEPS ...`.

A life for each `N_STEPS`: it goes on from `FOLDER/checkpoint.pt` where there is one, with a model
and a loader of its own, saves after every second step, and after so many steps (0: never) saves and
ends. Rank 1 kills itself before step number `KILL_AT` (0: never) of a life, unless torchrun has
restarted it.

Each rank writes what it is handed out to `FOLDER/START.RESTART.LIFE-RANK.jsonl`: first where it
began, then a line for each step, before the step is trained on. A step that was saved was thus
written by every rank.
"""

import json
import os
import pathlib
import signal
import sys

import torch
import torch._dynamo  # DDP imports it, which ranks that are forked then need not do each
from torch.nn.parallel import DistributedDataParallel

import torchdata_insitu as tdi

N_EPOCHS = 2
SAVE_EVERY = 2


def make_loader(store, **options):
    views = {"x": tdi.open_arrays(store)["t2m"]}
    options = {"batch_size": 3, "block_chunks": 2, "budget_bytes": 10**7, **options}
    return tdi.build_loader(store, views, tail="exact", seed=5, **options)


def handed_out(batch):
    """Samples of a batch that are no copies."""
    return batch["sample_index"][batch["valid"]].tolist()


def train(folder, life, n_steps, kill_at):
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_loader(str(folder / "store.zarr"))
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    tdi.check_ranks(loader)

    def save():
        if rank == 0:
            new = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, new)
            new.replace(checkpoint)

    n_done = 0
    with loader, (folder / f"{life}-{rank}.jsonl").open("w", buffering=1) as ledger:
        ledger.write(json.dumps([loader.epoch, loader.step]) + "\n")
        for epoch in range(loader.epoch, N_EPOCHS):
            first = loader.step
            for step, batch in enumerate(loader, start=first):
                if rank == 1 and kill_at == n_done + 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                ledger.write(json.dumps([epoch, step, handed_out(batch)]) + "\n")
                loss = model(batch["x"].flatten(1) / 1000).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                n_done += 1
                if n_done % SAVE_EVERY == 0 or n_done == n_steps:
                    save()
                if n_done == n_steps:
                    if rank == 0:
                        (folder / "stopped.json").write_text(json.dumps(loader.state_dict()))
                    return


def train_in_group(rank, folder, life, n_steps):
    """One life in a process group that is there already."""
    train(folder, life, int(n_steps), kill_at=0)


def main(folder, start, kill_at, *lives):
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    # Not the store of torchrun, which has the addresses of the processes before a restart.
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous.{start}.{restart}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    for life, n_steps in enumerate(lives):
        kill_first = int(kill_at) if restart == "0" else 0
        train(pathlib.Path(folder), f"{start}.{restart}.{life}", int(n_steps), kill_first)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
