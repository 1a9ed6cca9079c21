"""Four processes in a mesh of two by two: `python -m tests.contracts.mesh_run FOLDER`.

What torch imports for a mesh takes longer than the test: the processes are forked after that, and
before anything of the library was used.
"""

import datetime as dt
import json
import multiprocessing
import pathlib
import sys

import torch._dynamo
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import torchdata_insitu as tdi

WORLD_SIZE = 4
TIMEOUT_S = 60


def valid_ids(batch):
    rows = zip(batch["sample_index"].tolist(), batch["valid"].tolist(), strict=True)
    return [sample for sample, is_valid in rows if is_valid]


def batches_of(store, mesh):
    """What a process sees of two epochs and of a resumed one."""
    views = {"x": tdi.open_arrays(store)["t"]}
    plan = {"batch_size": 4, "tail": "exact", "block_chunks": 2, "budget_bytes": 10**6}
    answer = {}
    with tdi.build_loader(store, views, mesh=mesh["dp"], **plan) as loader:
        answer["epochs"] = [[valid_ids(batch) for batch in loader] for _ in range(2)]
        answer["ranks"] = loader.chain.planner.ranks
    with tdi.build_loader(store, views, mesh=mesh["dp"], **plan) as loader:
        next(iter(loader))
        answer["state"] = loader.state_dict()
    with tdi.build_loader(store, views, mesh=mesh["dp"], **plan) as loader:
        loader.load_state_dict(answer["state"])
        answer["resumed"] = [valid_ids(batch) for batch in loader]
    try:
        tdi.build_loader(store, views, mesh=mesh, **plan)
    except tdi.errors.PlanError as error:
        answer["refused"] = str(error)
    return answer


def run_rank(folder, rank):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=dt.timedelta(seconds=TIMEOUT_S),
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    answer = batches_of(str(folder / "store.zarr"), mesh)
    (folder / f"{rank}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    folder = pathlib.Path(sys.argv[1])
    processes = [
        context.Process(target=run_rank, args=(folder, rank)) for rank in range(WORLD_SIZE)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
