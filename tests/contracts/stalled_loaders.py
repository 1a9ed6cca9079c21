"""Loaders over stores that stall, one for each way of reading, and other people's nodes in them."""

import contextlib
import os
import pathlib
import threading

import numpy as np
import pytest
import torch.utils.data
import torchdata.nodes
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.small_loaders import ids
from torchdata_insitu.testing import FaultServer, FaultStore, is_chunk, make_store

N_SAMPLES, CHUNK = 40, 4
# The blocks are the chunks 0; 1 and 2; 3 and 4; 5 and 6; 7 and 8; 9. Batches are chunks.
FIRST_STALLED = 7
VALUES = counted((N_SAMPLES, 2))
WAIT_S = 20.0


def touched(batch):
    """The function of nodes that map."""
    return dict(batch)


ROOTS = {
    "gather": lambda gather: gather,
    "Prefetcher": tdi.Prefetcher,
    "PinMemory": lambda gather: tdi.PinMemory(tdi.Prefetcher(gather)),
    "its Mapper": lambda gather: torchdata.nodes.Mapper(gather, touched),
    "its ParallelMapper": lambda gather: torchdata.nodes.ParallelMapper(gather, touched, 2),
    "its Prefetcher": lambda gather: torchdata.nodes.Prefetcher(gather, 2),
    "its PinMemory": torchdata.nodes.PinMemory,
    "Prefetcher of its Mapper": lambda gather: tdi.Prefetcher(ROOTS["its Mapper"](gather)),
    "Prefetcher of its ParallelMapper": lambda gather: tdi.Prefetcher(
        ROOTS["its ParallelMapper"](gather)
    ),
    "Prefetcher of its Prefetcher": lambda gather: tdi.Prefetcher(ROOTS["its Prefetcher"](gather)),
    "Prefetcher of its PinMemory": lambda gather: tdi.Prefetcher(ROOTS["its PinMemory"](gather)),
}
"""What stands on the gather; torchdata's own nodes are "its"."""

OUR_ROOTS = ("gather", "Prefetcher")
FEW_ROOTS = (*OUR_ROOTS, "its ParallelMapper", "Prefetcher of its Prefetcher")


def quick_first(names, all_of_them, is_quick):
    """A parameter, of which the cases that are not quick are left to the full run."""
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *(case if isinstance(case, tuple) else (case,)),
                marks=() if is_quick(case) else pytest.mark.slow,
            )
            for case in all_of_them
        ],
    )


def pretend_accelerator(monkeypatch):
    """An accelerator as far as pinning goes."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)


def number_of(key):
    """Of a chunk along the sample axis."""
    return int(key.split("/")[2])


class StalledStore:
    """A store whose chunks from one on do not come before `release`, for one way of reading.

    On Zarr's loop, over HTTP, between two tries of a read that failed, or of local files, whose
    reads nobody can cancel.
    """

    KINDS = ("Zarr's loop", "HTTP", "tries", "files")

    def __init__(self, kind, folder, first_stalled=FIRST_STALLED):
        self._first_stalled = first_stalled
        self._server = self._fault = None
        self._pipes = {}
        self._feeder = None
        self._is_closed = threading.Event()
        if kind == "files":
            inner = make_store({"t": VALUES}, chunks=(CHUNK, 2), path=folder)
            for number in range(first_stalled, N_SAMPLES // CHUNK):
                path = pathlib.Path(folder) / f"t/c/{number}/0"
                self._pipes[path] = path.read_bytes()
                path.unlink()
                os.mkfifo(path)
            self.store = tdi.open_store(folder)
            return
        inner = make_store({"t": VALUES}, chunks=(CHUNK, 2))
        if kind == "HTTP":
            self._server = FaultServer(inner)
            self._server.up()
            self._server.fail(self._stalls, stall=True)
            self.store = tdi.open_store(self._server.url)
        else:
            fault = "raise" if kind == "tries" else "stall"
            self._fault = self.store = FaultStore(inner, fault, match=self._stalls)

    def _stalls(self, key):
        return is_chunk(key) and number_of(key) >= self._first_stalled

    def release(self):
        """Let everything come."""
        if self._fault is not None:
            self._fault.release()
        if self._server is not None:
            self._server.release()
        pipes, self._pipes = self._pipes, {}
        moved = {}
        for path, payload in pipes.items():
            # New readers find a file. Who waits in the pipe is fed, also one that had found the
            # pipe and comes to wait in it only now.
            moved[path.with_suffix(".pipe")] = payload
            os.link(path, path.with_suffix(".pipe"))
            spare = path.with_suffix(".new")
            spare.write_bytes(payload)
            spare.rename(path)
        if moved:
            self._feeder = threading.Thread(target=self._feed, args=(moved,), daemon=True)
            self._feeder.start()

    def _feed(self, pipes):
        while not self._is_closed.wait(0.001):
            for path, payload in pipes.items():
                with contextlib.suppress(OSError):
                    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                    try:
                        os.write(pipe, payload)
                    finally:
                        os.close(pipe)

    def close(self):
        self.release()
        self._is_closed.set()
        if self._feeder is not None:
            self._feeder.join()
        if self._server is not None:
            self._server.close()


class Stalled:
    """A stalled store, and loaders over it."""

    def __init__(self, kind, folder, first_stalled=FIRST_STALLED):
        self.stalled = StalledStore(kind, folder, first_stalled)
        self.store = self.stalled.store
        self.release = self.stalled.release
        self.views = {"x": tdi.open_arrays(self.store, "t")["t"]}
        self.pool = tdi.ChunkPool(PLENTY)

    def gather(self, **plan):
        plan = {"batch_size": CHUNK, "shuffle": False, "block_chunks": 2, **plan}
        planner = tdi.ChunkPlanner(self.views, **plan)
        retry = tdi.RetryPolicy(budget_s=1e6, first_delay_s=1e5, longest_delay_s=1e5)
        fetcher = tdi.AsyncChunkFetcher(planner, self.store, self.pool, retry=retry)
        return tdi.GatherNode(tdi.ChunkPoolNode(fetcher, self.pool))

    def loader(self, root="gather", **plan):
        return tdi.InSituLoader(ROOTS[root](self.gather(**plan)))


@contextlib.contextmanager
def stalled(kind, folder, first_stalled=FIRST_STALLED):
    """Answers at the end, so that what cannot be cancelled ends too."""
    made = Stalled(kind, folder, first_stalled)
    try:
        yield made
    finally:
        made.stalled.close()


class AsDataset(torch.utils.data.IterableDataset):
    """What people write around a loader to put it into torch's."""

    def __init__(self, loader):
        self._loader = loader

    def __iter__(self):
        return iter(self._loader)


class Asking:
    """A thread that takes batches until an error; `wait_for` so many of them."""

    def __init__(self, items, *, is_checked=True):
        self.taken = []
        self._is_checked = is_checked
        self.error = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(items,), name="asking")
        self._thread.start()

    def _run(self, items):
        try:
            for batch in items:
                if self._is_checked:
                    check_values(batch)
                with self._changed:
                    self.taken.append(ids(batch))
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error

    def wait_for(self, n_batches):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= n_batches, WAIT_S)

    def join(self):
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def check_values(batch):
    np.testing.assert_array_equal(batch["x"].numpy(), VALUES[batch["sample_index"].numpy()])


def batches_from(n_before):
    """Samples of the batches that are left after so many of an epoch that is not shuffled."""
    return [list(range(n, n + CHUNK)) for n in range(n_before * CHUNK, N_SAMPLES, CHUNK)]


def rest(batches):
    """Samples of batches whose values are right."""
    found = []
    for batch in batches:
        check_values(batch)
        found.append(ids(batch))
    return found


def bytes_of(store, key):
    """What a store holds under a key."""
    return sync(store.get(key, default_buffer_prototype())).to_bytes()
