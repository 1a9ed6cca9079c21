"""Faults of a network and of what serves it, numbered as in the list of cases from the field."""

import contextlib
import threading

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.refusals import refused
from tests.contracts.watchdog import promptly
from tests.contracts.zarr_oracle import ZarrOracle, check_batches
from tests.small_loaders import eventually
from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.testing import FaultServer, is_chunk, make_store

ATTEMPTS = 3
QUICK = tdi.RetryPolicy(attempts=ATTEMPTS, first_delay_s=0.001, longest_delay_s=0.01)
KEY = "t2m/c/2/0"
BROKEN = 2
ALL = 5


@pytest.fixture(scope="module")
def plain():
    return make_store({"t2m": counted((20, 3))}, chunks=(4, 3), fill_value=-9.0)


@pytest.fixture
def served(plain):
    with FaultServer(plain) as server:
        yield server


@pytest.fixture(params=["http", "s3"])
def server(request, served):
    """A server, and in `store` how it is opened; obstore itself tries nothing again."""
    options = {"retry_config": {"max_retries": 0}}
    if request.param == "http":
        served.store = tdi.open_store(served.url, **options)
    else:
        # The server takes the bucket for a folder.
        served.files = {f"bucket/{key}": content for key, content in served.files.items()}
        place = {"endpoint": served.url, "region": "us-east-1", "skip_signature": True}
        served.store = tdi.open_store("s3://bucket", **place, **options)
    return served


def is_key(path):
    return path.removeprefix("bucket/") == KEY


def any_chunk(path):
    return is_chunk(path)


def asked(server, match=is_key):
    return [n for path, n in server.requests.items() if match(path)]


def load(server, store=None, **options):
    store = server.store if store is None else store
    options = {"batch_size": 4, "budget_bytes": PLENTY, "retry": QUICK, **options}
    return tdi.build_loader(store, tdi.open_arrays(store, "t2m"), **options)


def check_epoch(server, plain, *, n_retries=None, **options):
    """One epoch with plain Zarr's values; the planned reads, further tries are told apart."""
    with load(server, **options) as loader:
        check_batches(loader, ZarrOracle(plain, {"t2m": 0}))
        stats = loader.stats()
        assert stats.reads == loader.plan.reads() == {"t2m": ALL}
        assert not any(stats.missing.values())
    if n_retries is not None:
        assert sum(stats.retries.values()) == n_retries


BUSY = [503, 429, 500, 408]


@pytest.mark.parametrize("status", BUSY)
def test_t31_busy_once(server, plain, status):
    server.fail(any_chunk, status=status, headers={"Retry-After": "0"}, times=1)
    check_epoch(server, plain, n_retries=ALL)
    assert asked(server, is_chunk) == [2] * ALL


@pytest.mark.parametrize("status", BUSY)
def test_t31_busy_for_ever(server, status):
    server.fail(is_key, status=status)
    with load(server, shuffle=False) as loader:
        with refused(ReadError, "'t2m'", KEY, "(2, 0)", status, f"{ATTEMPTS} attempts"):
            list(loader)
        assert asked(server) == [ATTEMPTS]
        server.heal()
        assert len(list(loader)) == 3


def test_t31_busy_for_less_than_obstore_tries_by_itself(served, plain):
    served.store = tdi.open_store(served.url, retry_config={"max_retries": 2})
    served.fail(is_key, status=503, times=2)
    check_epoch(served, plain, n_retries=0)
    assert asked(served) == [3]


def test_t32_missing_chunk_is_the_fill_value_and_counted(server, plain):
    server.fail(is_key, status=404)
    expected = np.array(zarr.open_array(plain, path="t2m", mode="r")[...])
    expected[8:12] = -9
    for options in ({}, {"on_missing": "fill"}):
        with load(server, shuffle=False, **options) as loader:
            found = np.concatenate([batch["t2m"].numpy() for batch in loader])
            stats = loader.stats()
        np.testing.assert_array_equal(found, expected)
        assert (stats.missing, sum(stats.retries.values())) == ({"t2m": 1}, 0)


def test_t32_missing_chunk_can_be_an_error(server):
    server.fail(is_key, status=404)
    with load(server, on_missing="raise") as loader, refused(ReadError, "'t2m'", KEY, "on_missing"):
        list(loader)
    assert asked(server) == [1]


def test_t32_every_chunk_missing_is_an_error(server):
    server.fail(any_chunk, status=404)
    with load(server) as loader, refused(ReadError, "'t2m'", "t2m/c/", "path"):
        list(loader)


@pytest.mark.parametrize("status", [401, 403, 410])
def test_t33_refused_chunk_is_explained_and_not_asked_for_again(server, status):
    server.fail(is_key, status=status)
    advice = {401: "check credentials", 403: "may not be listed", 410: "can be reached"}
    with load(server) as loader:
        with refused(ReadError, "'t2m'", KEY, status, advice[status]):
            list(loader)
        assert sum(loader.stats().retries.values()) == 0
    assert asked(server) == [1]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("etags", [True, False])
def test_t34_body_that_is_cut_once(server, plain, etags, ranges):
    server.etags, server.ranges = etags, ranges
    server.fail(any_chunk, cut_after=5, times=1)
    check_epoch(server, plain)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("etags", [True, False])
def test_t34_body_that_is_always_cut(server, etags, ranges):
    server.etags, server.ranges = etags, ranges
    server.fail(is_key, cut_after=5)
    with load(server) as loader, refused(ReadError, "'t2m'", KEY, f"{ATTEMPTS} attempts"):
        list(loader)


FOREIGN = {
    "short object": {"body": b"short"},
    "empty object": {"body": b""},
    "login page": {"body": b"<html>log in</html>", "headers": {"Content-Type": "text/html"}},
    "length too small": {"content_length": 4},
}


@pytest.mark.parametrize("case", FOREIGN)
def test_t35_object_that_is_another_is_read_again_once_and_not_kept(server, plain, case):
    server.fail(is_key, **FOREIGN[case])
    with load(server) as loader:
        with refused(DecodeError, "'t2m'", KEY, "(2, 0)", "bytes"):
            list(loader)
        assert asked(server) == [BROKEN]
        server.heal()
        check_batches(loader_of_new_epoch(loader), ZarrOracle(plain, {"t2m": 0}))


def loader_of_new_epoch(loader):
    """The loader at the start of an epoch; after an error it stands at the batch that failed."""
    list(loader)
    return loader


@pytest.mark.parametrize("case", FOREIGN)
def test_t35_object_that_is_another_once(server, plain, case):
    server.fail(is_key, times=1, **FOREIGN[case])
    check_epoch(server, plain, n_retries=1)


def test_t35_length_too_large_is_a_body_that_is_cut(server, plain):
    server.fail(is_key, content_length=10_000, times=1)
    check_epoch(server, plain)
    server.heal()
    server.fail(is_key, content_length=10_000)
    with load(server) as loader, refused(ReadError, "'t2m'", KEY, f"{ATTEMPTS} attempts"):
        list(loader)


@contextlib.contextmanager
def in_thread(function):
    done = []
    thread = threading.Thread(target=lambda: done.append(function()))
    thread.start()
    yield done
    thread.join(30)
    assert not thread.is_alive()


def test_t37_server_that_restarts_within_the_budget():
    patient = tdi.RetryPolicy(attempts=100_000, first_delay_s=0.001, longest_delay_s=0.01)
    long = make_store({"t2m": counted((200, 3))}, chunks=(4, 3))
    # A budget of four chunks: most of the epoch is still to be read when the server goes.
    options = {"shuffle": False, "block_chunks": 1, "budget_bytes": 200, "retry": patient}
    with promptly(30), FaultServer(long) as server:
        store = tdi.open_store(server.url, retry_config={"max_retries": 0})
        with load(server, store, **options) as loader:
            batches = iter(loader)
            found = [next(batches)["t2m"].numpy()]
            server.down()
            with in_thread(lambda: [batch["t2m"].numpy() for batch in batches]) as done:
                eventually(lambda: sum(loader.stats().retries.values()) >= 5)
                server.up()
            found += done[0]
            assert loader.stats().reads == {"t2m": 50}
    np.testing.assert_array_equal(np.concatenate(found), counted((200, 3)))


def test_t37_connections_that_are_reset(server, plain):
    server.fail(any_chunk, reset=True, times=2)
    check_epoch(server, plain)


def test_t37_server_that_stays_down_is_named(server):
    with load(server) as loader:
        server.down()
        host = server.url.removeprefix("http://")
        with (
            promptly(30),
            refused(ReadError, "'t2m'", host, f"{ATTEMPTS} attempts", "check the host"),
        ):
            list(loader)


def test_answer_that_stalls_is_given_up_and_asked_for_again(served, plain):
    served.store = tdi.open_store(
        served.url, client_options={"read_timeout": "100 ms"}, retry_config={"max_retries": 0}
    )
    served.fail(is_key, stall=True, times=1)
    with promptly(30):
        check_epoch(served, plain, n_retries=1)
