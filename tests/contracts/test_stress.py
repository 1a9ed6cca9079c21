"""Live loaders on threads of their own, in a pool with room for the sum of their floors.

Everything that can happen to a loader happens to each of them at random: breaks, resumes, closings,
interrupts from another thread, stores that are slow and whose reads fail. They read in every way
there is: on Zarr's loop, files on decode threads and on reader threads, a server through obstore.
Whatever happens, values are those of the store, no sample of an epoch is lost or comes twice, and
nothing is left in the end. The pool checks its invariants at every step.
"""

import contextlib
import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import pytest

import torchdata_insitu as tdi
from tests.conftest import new_threads, open_descriptors
from tests.contracts.chains import counted, floor_of, our_threads
from tests.contracts.watchdog import promptly
from tests.small_loaders import eventually
from torchdata_insitu.errors import ClosedError, FetchError
from torchdata_insitu.fetch import read_waits
from torchdata_insitu.testing import FaultServer, FaultStore, LatencyStore, is_chunk, make_store

N_SAMPLES = 300
VALUES = {"t": counted((N_SAMPLES, 3)), "u": counted((N_SAMPLES, 2, 2), "int16")}
ROUND_S = 0.5
QUICK_BACKOFF = {
    "init_backoff": timedelta(milliseconds=1),
    "max_backoff": timedelta(milliseconds=10),
    "base": 2.0,
}
# How stores are read; "slow files" go over to reader threads in the middle of an epoch.
WAYS = ("loop", "files", "slow files", "server")


@pytest.fixture(autouse=True)
def debugging(monkeypatch):
    monkeypatch.setenv("TORCHDATA_INSITU_DEBUG", "1")


@pytest.mark.parametrize("n_loaders", [2, 4])
def test_live_loaders_at_the_sum_of_their_floors(n_loaders, tmp_path):
    stress(n_loaders, tmp_path, seconds=2.5, seed=n_loaders)


@pytest.mark.slow
@pytest.mark.parametrize("n_loaders", [2, 4])
def test_live_loaders_at_the_sum_of_their_floors_for_a_minute(n_loaders, tmp_path):
    stress(n_loaders, tmp_path, seconds=60, seed=100 + n_loaders)


@pytest.mark.parametrize("n_loaders", [1, 2, 4])
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_forecast_of_24_steps_at_the_floor(n_loaders, prefetch_factor):
    """800 samples in chunks of 8, views at 0 and +24: a block needs chunks of two places."""
    values = counted((800, 3))
    store = make_store({"t": values}, chunks=(8, 3))
    t = tdi.open_arrays(store)["t"]
    views = {"x": t, "y": t.shift(24)}
    options = {"block_chunks": 2, "batch_size": 16, "prefetch_factor": prefetch_factor}
    pool = tdi.ChunkPool(n_loaders * floor_of(store, views, **options)[0])
    loaders = [
        tdi.build_loader(store, views, pool=pool, seed=seed, **options) for seed in range(n_loaders)
    ]
    seen = [[] for _ in loaders]
    with promptly(60):
        for batches in zip(*loaders, strict=True):
            for batch, ids in zip(batches, seen, strict=True):
                anchors = batch["sample_index"].numpy()
                np.testing.assert_array_equal(batch["x"].numpy(), values[anchors])
                np.testing.assert_array_equal(batch["y"].numpy(), values[anchors + 24])
                ids.extend(anchors.tolist())
        for loader in loaders:
            loader.close()
    assert all(sorted(ids) == list(range(776)) for ids in seen)
    assert nothing_is_left(pool)


def stress(n_loaders, folder, seconds, seed):
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    n_rounds = n_batches = n_hits = n_evicted = n_epochs = 0
    ways = itertools.cycle(WAYS)
    threads, n_descriptors = set(threading.enumerate()), len(open_descriptors())
    # A deadlock is a dump of all stacks and not a run that never ends.
    with promptly(seconds + 60):
        # On a busy machine no epoch ends within a round: then rounds get longer until one does.
        round_s = ROUND_S
        while time.monotonic() < end or not n_epochs:
            round_s = ROUND_S if time.monotonic() < end else 2 * round_s
            with contextlib.ExitStack() as ending:
                stores = [
                    faulty_store(rng, next(ways), folder / f"{n_rounds}-{number}", ending)
                    for number in range(rng.randint(1, 2))
                ]
                crowd = Crowd(n_loaders, rng.getrandbits(64), stores)
                crowd.run(round_s)
            n_batches += sum(member.n_batches for member in crowd.members)
            n_epochs += sum(member.n_epochs for member in crowd.members)
            n_hits += crowd.pool.n_hits
            n_evicted += crowd.pool.n_evicted
            n_rounds += 1
            del crowd, stores
            # Connections of obstore end with its store, on threads of its own.
            eventually(lambda: len(open_descriptors()) <= n_descriptors)
            eventually(lambda: not new_threads(threads))
    assert min(n_rounds, n_epochs, n_batches, n_hits, n_evicted) > 0


@dataclass
class Member:
    """A loader, what its batches must hold, and which samples of its epoch came."""

    loader: tdi.InSituLoader
    offsets: list[int]
    anchors: range
    came: list[int] = field(default_factory=list)
    n_batches: int = 0
    n_epochs: int = 0

    def check(self, batch):
        anchors = batch["sample_index"].numpy()
        places = anchors[:, None] + self.offsets
        np.testing.assert_array_equal(batch["x"].numpy(), VALUES["t"][places])
        np.testing.assert_array_equal(batch["y"].numpy(), VALUES["u"][anchors])
        self.came += anchors.tolist()
        self.n_batches += 1

    def end_epoch(self):
        assert sorted(self.came) == list(self.anchors)
        self.came = []
        self.n_epochs += 1


class Crowd:
    """Loaders of random sizes over one store or two, each on a thread, and what disturbs them."""

    def __init__(self, n_loaders, seed, stores):
        rng = random.Random(seed)
        self.seed = seed
        self.failures: list[BaseException] = []
        made = []
        for number in range(n_loaders):
            offsets = [rng.randint(-9, 9) for _ in range(rng.randint(1, 2))]
            options = {
                "batch_size": rng.choice([1, 5, 16, 40]),
                "block_chunks": rng.choice([1, 1, 2, 5]),
                "lanes": rng.choice([1, 1, 2]),
                "shuffle": rng.random() < 0.7,
                "prefetch_factor": rng.choice([0, 1, 2]),
                "max_inflight": 4,
                "retry": tdi.RetryPolicy(
                    attempts=rng.choice([1, 3]), first_delay_s=0.001, longest_delay_s=0.01
                ),
                "seed": number,
                "tail": "short",
            }
            store = rng.choice(stores)
            arrays = tdi.open_arrays(store, ["t", "u"])
            views = {"x": arrays["t"].window(*offsets), "y": arrays["u"]}
            made.append((store, views, offsets, options))
        floors = [floor_of(store, views, **options)[0] for store, views, _, options in made]
        self.pool = tdi.ChunkPool(sum(floors))
        self.members = [
            Member(
                tdi.build_loader(store, views, pool=self.pool, **options),
                offsets,
                range(max(0, -min(offsets)), N_SAMPLES - max(0, *offsets)),
            )
            for store, views, offsets, options in made
        ]

    def run(self, seconds):
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self.live, args=(member, number, end), name=f"member-{number}")
            for number, member in enumerate(self.members)
        ]
        disturber = threading.Thread(target=self.disturb, args=(end,), name="disturber")
        for thread in [*threads, disturber]:
            thread.start()
        for thread in [*threads, disturber]:
            thread.join()
        for member in self.members:
            member.loader.close()
        if self.failures:
            raise AssertionError(f"crowd {self.seed} failed") from self.failures[0]
        assert nothing_is_left(self.pool)

    def live(self, member, number, end):
        rng = random.Random(f"{self.seed}/{number}")
        try:
            while time.monotonic() < end and not self.failures:
                self.epoch(member, rng, end)
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failures.append(failure)

    def epoch(self, member, rng, end):
        """What is left of an epoch, or a part of it; whatever comes next goes on from there."""
        loader = member.loader
        most = rng.choice([1, 3, 1000, 1000])
        n_batches = 0
        try:
            for batch in loader:
                member.check(batch)
                assert self.pool.charged_bytes <= self.pool.budget_bytes
                n_batches += 1
                if n_batches >= most or time.monotonic() > end:
                    break
        except (ClosedError, FetchError):
            # The next iteration goes on at the batch that did not come.
            return
        if len(member.came) == len(member.anchors):
            member.end_epoch()
            return
        # An iteration that was left would go on to the next epoch.
        state = loader.state_dict()
        if rng.random() < 0.3:
            loader.close()
        loader.load_state_dict(state)

    def disturb(self, end):
        rng = random.Random(f"{self.seed}/disturber")
        pause = threading.Event()
        while time.monotonic() < end and not self.failures:
            pause.wait(rng.uniform(0, 0.05))
            member = rng.choice(self.members)
            member.loader.chain.interrupt()


def faulty_store(rng, way, folder, ending):
    """A store that is slow, or whose reads fail once a key, or neither."""
    chunks = {"t": (rng.randint(1, 9), rng.randint(1, 3)), "u": (rng.randint(1, 9), 2, 1)}
    codec = rng.choice(["none", "zstd", "gzip", "crc32c"])
    if way in {"files", "slow files"}:
        make_store(VALUES, chunks=chunks, codec=codec, path=folder)
        # Every wait is longer than this: reads are slow as soon as enough of them were measured.
        slow_s = -1.0 if way == "slow files" else 1000.0
        ending.enter_context(pytest.MonkeyPatch.context()).setattr(read_waits, "_SLOW_S", slow_s)
        return tdi.open_store(folder)
    store = make_store(VALUES, chunks=chunks, codec=codec)
    if way == "server":
        return served(rng, store, ending)
    if rng.random() < 0.6:
        store = LatencyStore(store, (0.0005, 1.0), seed=rng.getrandbits(32))
    if rng.random() < 0.6:
        struck = rng.random()
        store = FaultStore(
            store,
            # Without codec and checksum nothing tells other bytes from the right ones.
            rng.choice(["raise", "cut", "garbage" if codec != "none" else "cut", PermissionError]),
            match=lambda key: is_struck(key, struck),
            times=1,
        )
    return store


def served(rng, store, ending):
    """The store behind a server, of whose answers for some keys the first is no good."""
    server = ending.enter_context(FaultServer(store, latency_s=rng.choice([0.0, 0.0005])))
    for fault in ({"status": 503}, {"cut_after": 5}, {"reset": True}, {"latency_s": 0.02}):
        struck = rng.random()
        server.fail(lambda key, struck=struck: is_struck(key, struck), times=1, **fault)
    retry = {"max_retries": rng.choice([0, 1]), "backoff": QUICK_BACKOFF}
    return tdi.open_store(server.url, retry_config=retry)


def is_struck(key, struck):
    return is_chunk(key) and random.Random(f"{struck}{key}").random() < 0.2


def nothing_is_left(pool):
    assert (pool.n_passes, pool.n_in_use) == (0, 0)
    # A read that blocks is waited for no longer than a moment.
    eventually(lambda: not our_threads())
    pool.return_memory()
    assert (pool.n_resident, pool.charged_bytes) == (0, 0)
    return True
