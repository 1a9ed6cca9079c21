"""Errors and second iterators through nodes of others, and copies in other processes."""

import multiprocessing.resource_tracker

import pytest
import torch.utils.data

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY
from tests.contracts.stalled_loaders import (
    CHUNK,
    FEW_ROOTS,
    ROOTS,
    VALUES,
    AsDataset,
    batches_from,
    pretend_accelerator,
    quick_first,
    rest,
    stalled,
)
from tests.contracts.watchdog import promptly
from tests.small_loaders import FailsAt, in_forked_child, make_loader, values
from torchdata_insitu.errors import ClosedError, ReadError
from torchdata_insitu.testing import FaultStore, make_store

each_root = quick_first("root", ROOTS, lambda root: root in FEW_ROOTS or "Parallel" not in root)
few_roots_first = quick_first("root", ROOTS, FEW_ROOTS.__contains__)
with_accelerator = pytest.mark.usefixtures("accelerator")
FAILING = 5


@pytest.fixture
def accelerator(monkeypatch):
    pretend_accelerator(monkeypatch)


def loader_over(store, root, *, transforms=(), pool=None):
    pool = pool or tdi.ChunkPool(PLENTY)
    views = {"x": tdi.open_arrays(store)["t"]}
    planner = tdi.ChunkPlanner(views, batch_size=CHUNK, shuffle=False, block_chunks=2)
    fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
    gather = tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool), batch_transforms=transforms)
    return tdi.InSituLoader(ROOTS[root](gather))


def check_error_stays(loader, kind, text, n_before):
    """The same one at every `next`; a new iterator begins where it came up."""
    items, taken = iter(loader), []
    with promptly(), pytest.raises(kind, match=text) as raised:
        taken.extend(rest([batch])[0] for batch in items)
    assert taken == batches_from(0)[: len(taken)]
    assert len(taken) <= n_before
    state = loader.state_dict()
    assert state["position"] == len(taken) * CHUNK
    for _ in range(3):
        with pytest.raises(kind) as again:
            next(items)
        assert again.value is raised.value
    assert loader.state_dict() == state
    with promptly():
        assert taken + rest(loader) == batches_from(0)
        assert rest(loader) == batches_from(0)


@with_accelerator
@each_root
def test_a_read_that_fails_once_loses_nothing(root):
    inner = make_store({"t": VALUES}, chunks=(CHUNK, 2))
    key = f"t/c/{FAILING}/0"
    store = FaultStore(inner, PermissionError("not yours"), match=[key], times=1)
    pool = tdi.ChunkPool(PLENTY)
    with loader_over(store, root, pool=pool) as loader:
        check_error_stays(loader, ReadError, key, FAILING)
    assert (pool.n_passes, pool.n_in_use) == (0, 0)


@with_accelerator
@few_roots_first
def test_a_transform_that_fails_once_loses_nothing(root):
    store = make_store({"t": VALUES}, chunks=(CHUNK, 2))
    fails = FailsAt(FAILING + 1, LookupError("no such thing"))
    with loader_over(store, root, transforms=[fails]) as loader:
        check_error_stays(loader, LookupError, "no such thing", FAILING)


@with_accelerator
@few_roots_first
def test_of_two_iterators_the_older_one_is_closed_also_over_a_stalled_store(root):
    with promptly(30), stalled("Zarr's loop", None, 3) as made, made.loader(root) as loader:
        older = iter(loader)
        assert rest([next(older)]) == batches_from(0)[:1]
        newer = iter(loader)
        with pytest.raises(ClosedError, match="newest"):
            next(older)
        assert rest([next(newer)]) == batches_from(0)[:1]
        assert loader.epoch == 1
        with pytest.raises(ClosedError):
            next(older)
        made.release()
        assert rest(newer) == batches_from(1)


# Other processes


def test_a_forked_child_over_a_stalled_store_is_refused_and_the_parent_goes_on():
    with stalled("Zarr's loop", None, 3) as made, made.loader("Prefetcher") as loader:
        items = iter(loader)
        taken = rest([next(items)])

        def use_in_child():
            for use in (items.__next__, loader.peek, iter(loader).__next__):
                with pytest.raises(ClosedError, match="spawn"):
                    use()
            loader.close()

        with promptly():
            assert in_forked_child(use_in_child) == ""
        made.release()
        assert taken + rest(items) == batches_from(0)


@pytest.fixture(scope="module")
def resource_tracker():
    """Lives as long as the process once a process was spawned."""
    multiprocessing.resource_tracker.ensure_running()


@pytest.mark.slow
@pytest.mark.parametrize("is_used", [False, True])
def test_workers_that_are_spawned_go_on_where_the_loader_stands(is_used, resource_tracker):
    with make_loader(shuffle=False) as loader:
        if is_used:
            next(iter(loader))
        batches = torch.utils.data.DataLoader(
            AsDataset(loader), batch_size=None, num_workers=1, multiprocessing_context="spawn"
        )
        assert list(map(values, batches)) == batches_of_22()[is_used:]


def batches_of_22():
    return [list(range(22))[n : n + 4] for n in range(0, 22, 4)]


def test_torch_loader_of_a_loader_is_refused_by_torch():
    with make_loader() as loader, pytest.raises(TypeError, match="not subscriptable"):
        next(iter(torch.utils.data.DataLoader(loader)))
