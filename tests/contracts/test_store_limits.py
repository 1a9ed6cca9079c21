"""One limit for each store: shared by passes, refused where they differ, and cheap to raise."""

import gc
import resource
import threading

import pytest
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY
from tests.contracts.refusals import refused
from tests.fake_stores import NeverAnswers, Raises, is_chunk, only
from tests.small_loaders import eventually
from torchdata_insitu.errors import ClosedError, PlanError, ReadError
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.testing import FaultServer, FaultStore, LatencyStore, make_store

N, CHUNK = 60, 2
CHUNK_BYTES = CHUNK * 3 * 4


def small_store():
    return make_store({"t": (N, 3)}, chunks=(CHUNK, 3))


def load(store, **options):
    options = {"batch_size": 4, "block_chunks": 2, "budget_bytes": PLENTY, **options}
    return tdi.build_loader(store, tdi.open_arrays(store, "t"), **options)


def test_live_passes_with_different_limits_are_refused():
    store = small_store()
    with load(store, max_inflight=8) as train, load(store, max_inflight=16) as val:
        batches = iter(train)
        next(batches)
        with refused(PlanError, "'loader'", "max_inflight 16", "with 8", "memory://", "close"):
            next(iter(val))
        assert val.chain.pool_node.pool.n_passes == 0
        next(batches)
        train.close()
        assert sum(len(batch["t"]) for batch in val) == N


@pytest.mark.parametrize("end", ["close", "last batch", "error", "del", "del in a cycle"])
def test_a_pass_that_is_over_is_in_nobodys_way(end):
    inner = small_store()
    store = Raises(inner, lambda: PermissionError("403"), only("t/c/20/0"))
    old = load(store if end == "error" else inner, max_inflight=8, shuffle=False)
    batches = iter(old)
    next(batches)
    if end == "close":
        old.close()
    elif end == "last batch":
        for _ in batches:
            pass
    elif end == "error":
        with pytest.raises(ReadError):
            list(batches)
    else:
        if end == "del in a cycle":
            cycle = [old]
            cycle.append(cycle)
            del cycle
        del old, batches
        gc.collect()
    with load(inner if end != "error" else store, max_inflight=16, on_missing="fill") as new:
        next(iter(new))
    if "del" not in end:
        old.close()


def test_passes_that_are_not_live_may_differ():
    store = small_store()
    loaders = [load(store, max_inflight=n) for n in (4, 8)]
    for loader in loaders:
        iter(loader)
    for _ in range(2):
        for loader in loaders:
            assert sum(len(batch["t"]) for batch in loader) == N
    for loader in loaders:
        loader.close()


def test_loaders_over_other_stores_may_differ():
    with load(small_store(), max_inflight=4) as one, load(small_store(), max_inflight=8) as other:
        next(iter(one))
        next(iter(other))


def asking(batches):
    """A thread that asks for a batch which does not come before the loader is closed."""

    def ask():
        with pytest.raises(ClosedError):
            next(batches)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_two_loaders_of_a_store_have_as_many_requests_as_one():
    store = NeverAnswers(small_store())
    with load(store, max_inflight=5) as one, load(store, max_inflight=5) as other:
        threads = [asking(iter(one)), asking(iter(other))]
        eventually(lambda: store.n_waiting == 5)
        one.close()
        # What one does not read any more, the other does.
        eventually(lambda: store.n_waiting == 5)
        other.close()
        for thread in threads:
            thread.join()
        assert store.most_waiting == 5
    eventually(lambda: limiter_of(store).n_inflight == 0)


def test_the_limit_of_files_lowers_max_inflight_with_one_warning(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    store = NeverAnswers(small_store(), only())
    with pytest.warns(UserWarning, match="lowered from 500 to 16") as said:
        loader = load(store, max_inflight=500)
    assert len(said) == 1
    with loader:
        assert sum(len(batch["t"]) for batch in loader) == N


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_limit_that_is_none_is_refused(value):
    with refused(PlanError, "max_inflight", value):
        load(small_store(), max_inflight=value)


def test_more_requests_cost_no_more_residency():
    """The budget is full either way."""
    budget, found = 8 * CHUNK_BYTES, []
    for max_inflight in (1, 64):
        store = LatencyStore(small_store(), latency_s=1e-4)
        options = {"budget_bytes": budget, "prefetch_factor": 0, "max_inflight": max_inflight}
        # A chunk as small as these is larger in the store than decoded.
        most_bytes = max(
            CHUNK_BYTES, *(sync(store.getsize(f"t/c/{i}/0")) for i in range(N // CHUNK))
        )
        with load(store, **options) as loader:
            pool, held = loader.chain.pool_node.pool, []
            for _ in loader:
                held.append((pool.charged_bytes, pool.n_resident))
                assert limiter_of(store).n_bytes <= max_inflight * most_bytes * 2
        found.append((max(held), len(held)))
        assert store.most_inflight <= max_inflight
    assert found[0] == found[1]
    assert found[0][0][0] <= budget


@pytest.mark.parametrize("max_inflight", [1, 4, 64])
def test_bytes_in_flight_are_those_of_the_requests_in_flight(max_inflight):
    store = NeverAnswers(small_store())
    limiter = limiter_of(store)
    with load(store, max_inflight=max_inflight) as loader:
        thread = asking(iter(loader))
        n_waiting = min(max_inflight, N // CHUNK)
        eventually(lambda: store.n_waiting == n_waiting)
        assert limiter.n_inflight == n_waiting
        assert limiter.n_bytes == n_waiting * CHUNK_BYTES
        loader.close()
        thread.join()
    eventually(lambda: (limiter.n_inflight, limiter.n_bytes) == (0, 0))


def test_retries_are_counted_and_are_no_reads():
    store = FaultStore(small_store(), "raise", match="t/c/3/0", times=2)
    retry = tdi.RetryPolicy(first_delay_s=1e-3)
    with load(store, retry=retry) as loader:
        planned = loader.plan.reads()
        assert sum(len(batch["t"]) for batch in loader) == N
        stats = loader.stats()
    assert stats.reads == planned
    assert stats.retries == {"t": 2}


def test_a_chunk_that_cannot_be_read_leaves_nothing_behind():
    server_store = small_store()
    with FaultServer(server_store) as server:
        store = tdi.open_store(server.url, retry_config={"max_retries": 0})
        server.fail("t/c/5/0", status=503)
        retry = tdi.RetryPolicy(attempts=2, first_delay_s=1e-3)
        with load(store, retry=retry, shuffle=False, block_chunks=1) as loader:
            seen = []
            with refused(ReadError, "after 2 attempts", "'t'", "t/c/5/0", "503"):
                for batch in loader:
                    seen += batch["sample_index"].tolist()
            server.heal()
            for batch in loader:
                seen += batch["sample_index"].tolist()
            assert seen == list(range(N))


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_missing_chunks_may_be_errors(prefetch_factor):
    store = FaultStore(small_store(), "missing", match="t/c/3/0")
    options = {"prefetch_factor": prefetch_factor, "shuffle": False, "block_chunks": 1}
    with load(store, on_missing="raise", **options) as loader:
        with refused(ReadError, "'t'", "'t/c/3/0'", "(3, 0)", "missing"):
            list(loader)
        assert not loader.stats().missing


def test_all_chunks_may_be_missing_where_that_is_said():
    store = FaultStore(small_store(), "missing", match=is_chunk)
    with load(store, on_missing="fill") as loader:
        assert all((batch["t"] == 0).all() for batch in loader)
        assert loader.stats().missing == {"t": N // CHUNK}
    with load(store) as loader, refused(ReadError, "'t'", "on_missing='fill'"):
        next(iter(loader))


def test_a_sparse_store_is_legal():
    present = {f"t/c/{run}/0" for run in range(0, 400, 50)}
    inner = make_store({"t": (400, 3)}, chunks=(1, 3))
    store = FaultStore(inner, "missing", match=lambda key: is_chunk(key) and key not in present)
    with load(store) as loader:
        n_filled = sum(int((batch["t"][:, 1] == 0).sum()) for batch in loader)
        assert loader.stats().missing == {"t": 392}
    assert n_filled == 392


def test_a_chunk_filled_for_one_pass_is_none_for_one_that_refuses_to():
    store = FaultStore(small_store(), "missing", match="t/c/3/0")
    pool = tdi.ChunkPool(PLENTY)
    views = tdi.open_arrays(store, "t")
    options = {"batch_size": 4, "block_chunks": 30, "pool": pool, "prefetch_factor": 0}
    with (
        tdi.build_loader(store, views, on_missing="fill", **options) as fills,
        tdi.build_loader(store, views, on_missing="raise", **options) as refuses,
    ):
        batches = iter(fills)
        next(batches)
        with refused(ReadError, "'t/c/3/0'"):
            list(refuses)


def test_an_unknown_policy_for_missing_chunks_is_refused():
    with refused(PlanError, "on_missing", "'zero'", "auto", "fill", "raise"):
        load(small_store(), on_missing="zero")
