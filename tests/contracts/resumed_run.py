"""Resumes a loader in a process of its own: `python -m tests.contracts.resumed_run REQUEST.json`.

The request names a store and states; the answer, on standard output, is what the loader gives after
each of them.
"""

import hashlib
import json
import pathlib
import sys

import torch

import torchdata_insitu as tdi

N_EPOCHS = 3
PLAN = {"batch_size": 5, "block_chunks": 3, "seed": 11, "lanes": 2}


def make_loader(path, **runtime):
    """The loader of both processes; what is no part of its plan may differ."""
    store = tdi.open_store(path)
    t, u = tdi.open_arrays(store).values()
    views = {"x": tdi.stack(t, u).window(-1, 0), "y": t.shift(2)}
    split = tdi.split_by_range(views, {"train": (4, 40)})["train"]
    return tdi.build_loader(store, views, split=split, **{**PLAN, "budget_bytes": 10**6, **runtime})


def passed(loader):
    """Per batch of a pass its samples and a digest of its values."""
    return [[batch["sample_index"].tolist(), _digest(batch)] for batch in loader]


def _digest(batch):
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in batch.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def resumed(path, state, **runtime):
    """The rest of the epoch that a state names, and the two epochs after it."""
    with make_loader(path, **runtime) as loader:
        loader.load_state_dict(state)
        return [passed(loader) for _ in range(N_EPOCHS)]


def main(request_path):
    request = json.loads(pathlib.Path(request_path).read_text(encoding="utf-8"))
    path = request["store"]
    answers = [resumed(path, state) for state in request["states"]]
    saved = torch.load(request["checkpoint"], weights_only=True)
    answers.append(resumed(path, saved["loader"]))
    # What only decides how fast it goes decides nothing else.
    answers.append(
        resumed(path, saved["loader"], prefetch_factor=0, decode_threads=1, max_inflight=1)
    )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
