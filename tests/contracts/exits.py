"""Programs that end in the middle, each run in a process of its own by `test_lifecycle_exit.py`.

Importing torch takes seconds: it is done once, and every program begins as a fork of that process,
which has no thread yet.
"""

import contextlib
import gc
import json
import os
import pathlib
import signal
import sys
import threading
import time
import warnings

import torch.utils.data

from tests.contracts.stalled_loaders import FIRST_STALLED, AsDataset, Stalled, batches_from, rest
from torchdata_insitu.errors import ClosedError

N_CHUNKS = len(batches_from(0))
KEPT = []
"""What lives until the interpreter exits."""


def made(kind, root, folder):
    if kind in {"memory", "local"}:
        folder, kind = (folder, "files") if kind == "local" else (None, "Zarr's loop")
        return kept(Stalled(kind, folder, N_CHUNKS), root)
    return kept(Stalled(kind, folder), root)


def kept(stalled, root):
    loader = stalled.loader(root)
    KEPT.extend([stalled, loader])
    return stalled, loader


def left_in_the_middle(kind, root, folder):
    _, loader = made(kind, root, folder)
    items = iter(loader)
    KEPT.append(items)
    next(items)


def left_while_a_thread_waits(kind, root, folder):
    """The thread is a daemon: one that is not would be waited for by the interpreter."""
    _, loader = made(kind, root, folder)
    n_taken, changed = [], threading.Semaphore(0)

    def take():
        with contextlib.suppress(Exception):
            for batch in loader:
                n_taken.append(len(batch))
                changed.release()

    threading.Thread(target=take, daemon=True).start()
    for _ in range(FIRST_STALLED):
        changed.acquire()


def press_ctrl_c(taken, pressed):
    """Once all that comes was taken."""

    def press():
        # The next batch is asked for just afterwards; an interrupt that comes before is one too.
        for _ in range(2_000):
            while len(taken) < FIRST_STALLED:
                os.sched_yield()
            os.sched_yield()
        pressed.append(time.perf_counter())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def interrupted(kind, root, folder):
    _, loader = made(kind, root, folder)
    taken = []
    press_ctrl_c(taken, [])
    for batch in loader:
        taken += rest([batch])


def interrupted_and_left(kind, root, folder):
    with contextlib.suppress(KeyboardInterrupt):
        interrupted(kind, root, folder)


def interrupted_and_resumed(kind, root, folder):
    """Prints how long the interrupt took, and goes on in the same process."""
    stalled, loader = made(kind, root, folder)
    taken, pressed = [], []
    press_ctrl_c(taken, pressed)
    try:
        for batch in loader:
            taken += rest([batch])
    except KeyboardInterrupt:
        seconds = time.perf_counter() - pressed[0]
    state = loader.state_dict()
    stalled.release()
    taken += rest(loader)
    assert taken == batches_from(0)
    loader.load_state_dict(state)
    assert rest(loader) == batches_from(FIRST_STALLED)
    sys.stdout.write(f"{seconds}\n")


def refused_in_forked_workers(kind, root, folder):
    """In a process without the threads of torch, with which its own workers can hang."""
    # A fork of a process with threads is what is tried.
    warnings.simplefilter("ignore", DeprecationWarning)
    stalled, loader = made(kind, root, folder)
    items = iter(loader)
    taken = rest([next(items)])
    batches = torch.utils.data.DataLoader(
        AsDataset(loader), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    started = time.perf_counter()
    try:
        list(batches)
    except ClosedError as error:
        assert "start workers with the 'spawn' method" in str(error)  # noqa: PT017
        seconds = time.perf_counter() - started
    stalled.release()
    assert taken + rest(items) == batches_from(0)
    sys.stdout.write(f"{seconds}\n")


PROGRAMS = {
    program.__name__: program
    for program in (
        left_in_the_middle,
        left_while_a_thread_waits,
        interrupted,
        interrupted_and_left,
        interrupted_and_resumed,
        refused_in_forked_workers,
    )
}


def run_all(cases, folder):
    """Fork for each case. A child leaves this in the middle, and exits as programs do."""
    # What was imported is looked at by no collection at the exits, which saves a second for each.
    gc.freeze()
    for number, (program, kind, root) in enumerate(cases):
        path = folder / f"{number}.txt"
        child = os.fork()
        if child == 0:
            said = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 1)
            os.dup2(said, 2)
            PROGRAMS[program](kind, root, folder / f"{number}.zarr")
            return
        started = time.perf_counter()
        _, status = os.waitpid(child, 0)
        seconds = time.perf_counter() - started
        code = os.waitstatus_to_exitcode(status)
        sys.stdout.write(json.dumps([code, seconds, path.read_text()]) + "\n")
        # What a child inherits unwritten it would write too.
        sys.stdout.flush()


if __name__ == "__main__":
    run_all(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))
