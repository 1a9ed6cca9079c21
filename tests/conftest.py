"""What every test gets: no thread and no descriptor may be left behind."""

import gc
import os
import pathlib
import threading
import time

import hypothesis
import obstore
import pytest
import zarr.core.sync

from tests.small_loaders import all_ids, make_loader

ROOT = pathlib.Path(__file__).resolve().parent.parent
DESCRIPTORS = pathlib.Path("/proc/self/fd")
JOIN_S = 10.0

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def started_runtimes():
    """Start what lives as long as the process, so that no test is charged for it."""
    zarr.core.sync._get_loop()
    store = obstore.store.MemoryStore()
    obstore.put(store, "key", b"value")
    obstore.get(store, "key").bytes()
    # All that was imported stays: what collects garbage need not look through it again.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_leaked_threads(started_runtimes):
    """Fail a test that leaves a thread running."""
    before = set(threading.enumerate())
    yield
    if not new_threads(before):
        return
    gc.collect()
    # What was collected may be ended by a thread that starts only now, or while others are joined.
    deadline = time.monotonic() + JOIN_S
    while (left := new_threads(before)) and time.monotonic() < deadline:
        for thread in left:
            thread._started.wait(JOIN_S)
            thread.join(JOIN_S)
    if left:
        pytest.fail(f"threads left running: {sorted(thread.name for thread in left)}")


@pytest.fixture(autouse=True)
def no_leaked_descriptors(no_leaked_threads):
    """Fail a test that leaves a descriptor open, where the system can list them."""
    before = open_descriptors()
    yield
    # A thread may just be reading a file, as a traceback that is being written does.
    deadline = time.monotonic() + JOIN_S
    while (left := new_descriptors(before)) and time.monotonic() < deadline:
        gc.collect()
    if left:
        pytest.fail(f"descriptors left open: {left}")


@pytest.fixture
def batches_one_by_one(monkeypatch):
    """Small batches are not gathered several at a time, so that passes end with their last one."""
    from torchdata_insitu.nodes import gather_node

    monkeypatch.setattr(gather_node, "_BYTES_AT_ONCE", 0)


@pytest.fixture(scope="session")
def s3_server():
    """An S3 service on this machine, for as long as the tests run."""
    from tests.s3_server import S3Server  # slow to import, and few tests need it

    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data that lies beside the clone of a developer."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real data is not here: there is no folder ../shared/data beside the clone")
    return folder


def new_threads(before):
    # zarr's loop and the executor of that loop live as long as the process.
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith(("zarr_io", "asyncio_"))
    ]


def open_descriptors():
    if not DESCRIPTORS.is_dir():
        return {}
    found = {}
    for name in os.listdir(DESCRIPTORS):  # noqa: PTH208 - twice a test, and half as fast with paths
        try:
            found[name] = os.readlink(f"{DESCRIPTORS}/{name}")  # noqa: PTH115 - as above
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found


def new_descriptors(before):
    return {fd: target for fd, target in open_descriptors().items() if before.get(fd) != target}


@pytest.fixture
def loader():
    """A small loader that nobody has used."""
    with make_loader() as loader:
        yield loader


@pytest.fixture(scope="module")
def epochs():
    """The samples of the first epochs of such a loader, batch by batch, if it is left alone."""
    with make_loader() as loader:
        return [all_ids(loader) for _ in range(4)]


@pytest.fixture
def environment(monkeypatch):
    """Lets this process be a rank, as torchrun says it."""

    def set_ranks(rank, world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return set_ranks
