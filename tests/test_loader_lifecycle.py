"""Ends: close, with, del, break, exit, fork."""

import contextlib
import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torchdata.nodes
import zarr

import torchdata_insitu as tdi
from tests.conftest import new_threads, open_descriptors
from tests.fake_stores import NeverAnswers, only
from tests.small_loaders import (
    FailsAt,
    N,
    all_ids,
    eventually,
    flat,
    ids,
    in_forked_child,
    make_gather,
    make_loader,
    small_store,
    values,
)
from torchdata_insitu.errors import ClosedError

JOIN_S = 20


@pytest.fixture(scope="module")
def epochs():
    with make_loader() as loader:
        return [all_ids(loader) for _ in range(3)]


def in_the_middle(loader, n=2):
    items = iter(loader)
    for _ in range(n):
        next(items)
    return items


def stock_prefetcher(gather):
    return torchdata.nodes.Prefetcher(gather, 2)


ROOTS = {
    "gather": lambda gather: gather,
    "Prefetcher": tdi.Prefetcher,
    "torchdata's Prefetcher": stock_prefetcher,
    "both": lambda gather: tdi.Prefetcher(stock_prefetcher(gather)),
}
each_root = pytest.mark.parametrize("root", ROOTS)


# Ends


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_close_ends_iterators_threads_and_leases_and_the_next_iteration_works(
    prefetch_factor, epochs
):
    pool = tdi.ChunkPool(10**6)
    before = set(threading.enumerate())
    loader = make_loader(pool=pool, prefetch_factor=prefetch_factor)
    items = in_the_middle(loader)
    state = loader.state_dict()
    for _ in range(2):
        loader.close()
        assert (pool.n_passes, pool.n_in_use, new_threads(before)) == (0, 0, [])
        with pytest.raises(ClosedError):
            next(items)
    assert loader.state_dict() == state
    assert all_ids(loader) == epochs[1]
    loader.close()


@pytest.mark.usefixtures("batches_one_by_one")
def test_close_leaves_the_pool_to_others(epochs):
    store = small_store()
    pool = tdi.ChunkPool(10**6)
    with make_loader(store, pool=pool) as other:
        items = in_the_middle(other)
        with make_loader(store, pool=pool) as loader:
            in_the_middle(loader)
            assert pool.n_passes == 2
        assert pool.n_passes == 1
        assert [ids(batch) for batch in items] == epochs[0][2:]


def test_close_after_a_load_keeps_the_loaded_state(epochs):
    with make_loader() as loader:
        in_the_middle(loader)
        state = loader.state_dict()
    loader.load_state_dict(state)
    loader.close()
    assert all_ids(loader) == epochs[0][2:]
    loader.close()


@each_root
def test_with_ends_a_loader_over_a_store_that_never_answers(root):
    store = NeverAnswers(small_store(), only("t2m/c/2/0/0"))
    pool = tdi.ChunkPool(10**6)
    with tdi.InSituLoader(
        ROOTS[root](make_gather(store, pool, block_chunks=1, shuffle=False))
    ) as loader:
        loader.peek()
    assert pool.n_passes == 0


@each_root
def test_a_loader_that_goes_ends_what_it_started(root):
    store = NeverAnswers(small_store(), only("t2m/c/2/0/0"))
    pool = tdi.ChunkPool(10**6)
    before = set(threading.enumerate())
    loader = tdi.InSituLoader(ROOTS[root](make_gather(store, pool, block_chunks=1, shuffle=False)))
    next(iter(loader))
    gone = weakref.ref(loader)
    del loader
    assert gone() is None
    assert (pool.n_passes, pool.n_in_use) == (0, 0)
    for thread in threading.enumerate():
        if thread.name.startswith("insitu-decode"):
            thread.join(JOIN_S)
    assert new_threads(before) == []


@each_root
@pytest.mark.parametrize("end", ["at its end", "after an error", "interrupted"])
def test_a_loader_is_collected_however_its_iteration_ended(root, end):
    """An error holds, through its traceback, whoever it went through."""
    pool = tdi.ChunkPool(10**6)
    transforms = [FailsAt(2)] if end == "after an error" else []
    loader = tdi.InSituLoader(ROOTS[root](make_gather(pool=pool, transforms=transforms)))
    items = iter(loader)
    next(items)
    if end == "interrupted":
        loader.chain.interrupt()
    with contextlib.suppress(LookupError, ClosedError):
        list(items)
    gone = weakref.ref(loader)
    # The transform remembers what it raised.
    del loader, items, transforms
    gc.collect()
    assert gone() is None
    eventually(lambda: (pool.n_passes, pool.n_in_use) == (0, 0))


@each_root
def test_an_iterator_keeps_its_loader(root, epochs):
    items = iter(tdi.InSituLoader(ROOTS[root](make_gather())))
    gc.collect()
    assert [ids(batch) for batch in items] == epochs[0]


@pytest.mark.usefixtures("batches_one_by_one")
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_fifty_breaks_leave_nothing(prefetch_factor, tmp_path):
    store = tdi.open_store(small_store(path=tmp_path).root)
    pool = tdi.ChunkPool(10**6)
    threads, descriptors = set(threading.enumerate()), open_descriptors().keys()
    with make_loader(store, pool=pool, prefetch_factor=prefetch_factor) as loader:
        in_the_middle(loader, 1)
        n_threads = len(new_threads(threads))
        for epoch in range(1, 51):
            for batch in loader:
                assert values(batch) == ids(batch)
                break
            assert loader.epoch == epoch
        # A decode thread may have been started meanwhile, for what was read ahead.
        assert len(new_threads(threads)) <= n_threads + 1
        assert pool.n_passes == 1
    assert (pool.n_passes, pool.n_in_use, new_threads(threads)) == (0, 0, [])
    assert open_descriptors().keys() == descriptors


def test_local_files_leave_no_descriptor(tmp_path):
    before = open_descriptors().keys()
    store = tdi.open_store(small_store(path=tmp_path).root)
    with make_loader(store) as loader:
        for _ in range(3):
            in_the_middle(loader)
        assert sorted(flat(all_ids(loader))) == list(range(N))
    assert open_descriptors().keys() == before


# One process for all of them: it takes seconds to import torch.
EXITS = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
import torchdata.nodes
import torchdata_insitu as tdi
from tests.fake_stores import NeverAnswers, only
from tests.small_loaders import make_gather, make_loader, small_store

def stuck():
    return NeverAnswers(small_store(), only("t2m/c/2/0/0"))

loaders = [
    make_loader(),
    make_loader(prefetch_factor=0),
    make_loader(stuck(), block_chunks=1, shuffle=False),
    make_loader(stuck(), block_chunks=1, shuffle=False, prefetch_factor=0),
]
gather = make_gather(stuck(), block_chunks=1, shuffle=False)
loaders.append(tdi.InSituLoader(torchdata.nodes.Prefetcher(gather, 2)))
iterators = [iter(loader) for loader in loaders]
batches = [next(items) for items in iterators]
child = os.fork()
if child == 0:
    for items in iterators:
        try:
            next(items)
        except tdi.errors.ClosedError as error:
            assert "spawn" in str(error)
        else:
            sys.exit("a forked child went on")
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), len(batches))
"""


def test_an_interpreter_that_exits_in_the_middle_says_nothing():
    done = subprocess.run(
        [sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stderr, done.stdout, done.returncode) == ("", "7 5\n", 0)


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_forked_child_is_told_to_spawn(prefetch_factor, epochs):
    with make_loader(prefetch_factor=prefetch_factor) as loader:
        items = in_the_middle(loader)
        state = loader.state_dict()

        def use_in_child():
            for use in (items.__next__, loader.peek, iter(loader).__next__):
                with pytest.raises(ClosedError, match="'spawn'"):
                    use()
            loader.close()
            loader.state_dict()
            len(loader)

        assert in_forked_child(use_in_child) == ""
        assert loader.state_dict() == state
        assert [ids(batch) for batch in items] == epochs[0][2:]


def test_an_unused_loader_cannot_be_used_in_a_forked_child_either():
    loader = make_loader()

    def use_in_child():
        with pytest.raises(ClosedError, match="make loader and pool in the child"):
            next(iter(loader))
        assert len(all_ids(make_loader())) == 6

    assert in_forked_child(use_in_child) == ""


def test_zarr_reads_on_while_a_loader_waits_and_after_it_is_closed():
    store = small_store()
    stuck = NeverAnswers(store, only("t2m/c/2/0/0"))
    with make_loader(stuck, block_chunks=1, shuffle=False) as loader:
        loader.peek()
        assert zarr.open_array(store, path="t2m")[5, 0, 0] == 30
    assert zarr.open_array(store, path="t2m")[5, 0, 0] == 30


def test_closing_gives_the_memory_of_its_own_pool_back_and_leaves_a_shared_one_alone():
    shared = tdi.ChunkPool(10**7)
    own = make_loader()
    for loader in (own, make_loader(pool=shared)):
        batches = all_ids(loader)
        loader.close()
        assert all_ids(loader) != batches
        loader.close()
    assert own.chain.pool_node.pool.charged_bytes == 0
    assert (shared.n_in_use, shared.n_resident) == (0, 6)
