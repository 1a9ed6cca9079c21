"""Waking and ending a loader that waits for a store, whatever stands between the two."""

import pytest

from tests.contracts.stalled_loaders import (
    FEW_ROOTS,
    FIRST_STALLED,
    OUR_ROOTS,
    ROOTS,
    Asking,
    StalledStore,
    batches_from,
    pretend_accelerator,
    quick_first,
    rest,
    stalled,
)
from tests.contracts.watchdog import promptly
from torchdata_insitu.errors import ClosedError

FEW_CASES = [(kind, root) for kind in StalledStore.KINDS for root in FEW_ROOTS]
CASES = [*FEW_CASES, *(("Zarr's loop", root) for root in ROOTS if root not in FEW_ROOTS)]


def is_quick(case):
    kind, root = case
    return root in (FEW_ROOTS if kind == "Zarr's loop" else OUR_ROOTS)


def but_files(cases):
    """A read of a file that hangs in the system cannot be cancelled; closing waits for it."""
    return [case for case in cases if case[0] != "files"]


@pytest.fixture
def stuck(kind, tmp_path, monkeypatch):
    pretend_accelerator(monkeypatch)
    with stalled(kind, tmp_path) as made:
        yield made


def waiting(loader):
    """A thread that has taken all there is and waits for one more."""
    asking = Asking(iter(loader))
    asking.wait_for(FIRST_STALLED)
    return asking


@quick_first("kind, root", CASES, is_quick)
def test_an_interrupt_wakes_a_next_that_waits_and_nothing_is_lost(stuck, root):
    with promptly(30), stuck.loader(root) as loader:
        asking = waiting(loader)
        with promptly(5):
            loader.chain.interrupt()
            asking.join()
        assert type(asking.error) is ClosedError
        assert loader.position == FIRST_STALLED * 4
        with pytest.raises(ClosedError):
            loader.peek()
        stuck.release()
        assert asking.taken + rest(loader) == batches_from(0)
        assert rest(loader) == batches_from(0)
    assert (stuck.pool.n_passes, stuck.pool.n_in_use) == (0, 0)


@quick_first("kind, root", but_files(CASES), is_quick)
def test_close_wakes_a_next_that_waits_and_the_state_goes_on(stuck, root):
    with promptly(30):
        loader = stuck.loader(root)
        asking = waiting(loader)
        for _ in range(2):
            loader.close()
        asking.join()
        assert type(asking.error) is ClosedError
        assert stuck.pool.n_passes == 0
        state = loader.state_dict()
        stuck.release()
        loader.load_state_dict(state)
        assert asking.taken + rest(loader) == batches_from(0)
        loader.close()
    assert (stuck.pool.n_passes, stuck.pool.n_in_use) == (0, 0)


@quick_first("kind, root", but_files(FEW_CASES), is_quick)
def test_a_new_iterator_does_not_wait_for_what_the_old_one_waited_for(stuck, root):
    """Also without an `interrupt`: `iter` after `load_state_dict` begins anew by itself."""
    with promptly(30), stuck.loader(root) as loader:
        items = iter(loader)
        before = loader.state_dict()
        for _ in range(FIRST_STALLED - 1):
            next(items)
        loader.load_state_dict(before)
        again = iter(loader)
        assert rest(next(again) for _ in range(FIRST_STALLED)) == batches_from(0)[:FIRST_STALLED]
        with pytest.raises(ClosedError):
            next(items)
