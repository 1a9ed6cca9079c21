"""Ranks that cost little: `python -m tests.forked_ranks MODULE:FUNCTION N FOLDER ...`.

Importing torch takes seconds: it is done once, and every rank begins as a fork of that process,
which has no thread yet. The function is called with the rank, the folder and the further arguments,
in a process group of `N` ranks, and what it returns is written to `FOLDER/answer-RANK.json`.
"""

import datetime as dt
import importlib
import json
import os
import pathlib
import sys
import traceback

import torch.distributed

from tests.processes import run_python

TIMEOUT_S = 55


def run_ranks(function, n_ranks, folder, *arguments, timeout_s=TIMEOUT_S):
    """What the function returns, by rank."""
    status, said = run_python(
        *("-m", "tests.forked_ranks", function, n_ranks, folder, *arguments),
        timeout_s=timeout_s,
    )
    assert status == 0, said
    return [json.loads((folder / f"answer-{rank}.json").read_text()) for rank in range(n_ranks)]


def run_rank(function, rank, n_ranks, folder, arguments):
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous.{os.getppid()}",
        rank=rank,
        world_size=n_ranks,
        timeout=dt.timedelta(seconds=TIMEOUT_S),
    )
    answer = function(rank, folder, *arguments)
    (folder / f"answer-{rank}.json").write_text(json.dumps(answer))
    torch.distributed.destroy_process_group()


def main(function, n_ranks, folder, *arguments):
    module, name = function.split(":")
    function = getattr(importlib.import_module(module), name)
    children = []
    for rank in range(int(n_ranks)):
        child = os.fork()
        if child == 0:
            try:
                run_rank(function, rank, int(n_ranks), pathlib.Path(folder), arguments)
            except BaseException:  # noqa: BLE001 - told to the parent by the status
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
