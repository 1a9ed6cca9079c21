"""What each of four forked ranks does in a mesh of two by two."""

# Slicing a mesh imports it, which takes longer than the test: once, before the ranks are forked.
import torch._dynamo  # noqa: F401
from torch.distributed.device_mesh import init_device_mesh

import torchdata_insitu as tdi


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


def run_rank(rank, folder):
    """What one of the four processes answers."""
    del rank
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return batches_of(str(folder / "store.zarr"), mesh)
