"""Small loaders and chains, and what tests ask of their batches."""

import asyncio
import contextlib
import itertools
import os
import traceback
import warnings

import pytest
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.fake_stores import Raises, is_chunk
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.testing import make_store

PLENTY = 10**7
N = 22
# A read that fails is the end of it.
ONE_TRY = tdi.RetryPolicy(attempts=1)


def small_store(n=N, chunk=4, **options):
    """One array "t2m" whose first value of sample `i` is `6 * i`."""
    return make_store({"t2m": (n, 2, 3)}, chunks=(chunk, 2, 3), **options)


def views_of(store, name="x"):
    return {name: tdi.open_arrays(store)["t2m"]}


def make_loader(store=None, views=None, **options):
    """A loader of batches of four, with a pool that holds everything unless one is given."""
    store = small_store() if store is None else store
    if "pool" not in options:
        options.setdefault("budget_bytes", PLENTY)
    options.setdefault("batch_size", 4)
    options.setdefault("block_chunks", 2)
    return tdi.build_loader(store, views or views_of(store), **options)


def make_gather(store=None, pool=None, transforms=(), **plan):
    """A chain up to the gather."""
    store = small_store() if store is None else store
    pool = tdi.ChunkPool(PLENTY) if pool is None else pool
    plan = {"batch_size": 4, "block_chunks": 2, **plan}
    planner = tdi.ChunkPlanner(views_of(store), **plan)
    fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
    return tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool), batch_transforms=transforms)


@contextlib.contextmanager
def shut_down(node):
    """The node; what it and the nodes below it started is ended afterwards."""
    try:
        yield node
    finally:
        for found in walk(node):
            if hasattr(found, "shutdown"):
                found.shutdown()


def eventually(condition):
    """Poll on Zarr's loop until something that other threads do has come about."""

    async def turn():
        await asyncio.sleep(0)

    for _ in range(100_000):
        if condition():
            return
        sync(turn())
    pytest.fail("it did not come about")


def ids(batch):
    return batch["sample_index"].tolist()


def all_ids(batches):
    return [ids(batch) for batch in batches]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def values(batch, name="x"):
    """Sample numbers as the values of a batch tell them."""
    return (batch[name][:, 0, 0] / 6).tolist()


def take(loader, n):
    """Samples of batches of a new iterator, which is then left."""
    items = iter(loader)
    return [ids(next(items)) for _ in range(n)]


def state_after(n_epochs, n_batches, **options):
    """The state of a loader that went so far."""
    with make_loader(**options) as loader:
        for _ in range(n_epochs):
            list(loader)
        take(loader, n_batches)
        return loader.state_dict()


class Once:
    """Fails the first time a key or a batch is met that `match` is true of, and never again."""

    def __init__(self, match=is_chunk, error=None):
        self.error = error or ConnectionError("the line went dead")
        self.n_met = 0
        self._match = match

    def __call__(self, met):
        if not self._match(met):
            return False
        self.n_met += 1
        return self.n_met == 1


def raises_once(store, key, error=None):
    """A store that does not give one key the first time, and what counts its reads of that key."""
    once = Once(lambda met: met == key, error)
    return Raises(store, lambda: once.error, once), once


class FailsAt:
    """A batch transform that raises at the n-th batch it is given, once."""

    def __init__(self, number, error=None):
        self.error = error or LookupError("no such thing in this batch")
        self._left = number

    def __call__(self, batch):
        self._left -= 1
        if self._left == 0:
            raise self.error
        return batch


def in_forked_child(function):
    """What a function says that is run in a forked child: nothing, or its traceback."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # A fork of a process with threads is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:  # noqa: BLE001 - all that goes wrong is what the parent asks for
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said
