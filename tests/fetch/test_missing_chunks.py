"""Missing chunks of a wrong path are an error, those of sparse data are not."""

import asyncio
import json
import re
import signal
import tempfile
import threading

import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

from tests.each_case import each_case
from tests.fake_stores import Lacks, NeverAnswers, RefusesListing, is_chunk
from tests.fetch.loads import WAIT_S, Loads, fetching, one_array
from tests.small_loaders import eventually
from torchdata_insitu.errors import GeometryError, PlanError, ReadError
from torchdata_insitu.fetch.chunk_fetcher import Cancelled, ChunkFetcher
from torchdata_insitu.testing import CountingStore, make_store


class CountsListing(WrapperStore):
    n_listed = 0

    async def list_prefix(self, prefix):
        async for key in self._store.list_prefix(prefix):
            self.n_listed += 1
            yield key


class CannotList(WrapperStore):
    supports_listing = False


class ListsForEver(WrapperStore):
    is_listing = False
    n_cancelled = 0

    async def list_prefix(self, prefix):
        self.is_listing = True
        del prefix
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        yield ""


def check(store, name=None):
    array = one_array(store, name=name)
    with fetching(store, array) as fetcher:
        fetcher.check_missing(array)


@pytest.fixture(params=["memory", "folder"])
def empty(request, tmp_path):
    """An array whose chunks are nowhere."""
    path = None if request.param == "memory" else tmp_path / "store"
    store = make_store({"group/t": (4, 4), "u": (4, 4)}, chunks=(2, 2), path=path)
    for row in "01":
        for column in "01":
            sync(store.delete(f"group/t/c/{row}/{column}"))
    return store


def test_array_without_any_chunk_is_a_wrong_path(empty):
    with pytest.raises(ReadError) as caught:
        check(empty, "group/t")
    for fact in ("'group/t'", "'group/t/'", "'group/t/c/0/0'", "check the path"):
        assert fact in str(caught.value)


def test_metadata_documents_are_no_chunks(tmp_path):
    store = make_store({"t": (4, 4)}, chunks=(2, 2), zarr_format=2, path=tmp_path)
    for file in (tmp_path / "t").glob("?.?"):
        file.unlink()
    (tmp_path / "t" / ".DS_Store").touch()
    assert (tmp_path / "t" / ".zarray").exists()
    with pytest.raises(ReadError, match="no chunk below 't/'"):
        check(store)


def test_sparse_array_is_accepted(empty):
    zarr.open_array(empty, path="group/t", mode="r+")[3, 3] = 1
    check(empty, "group/t")


ENCODINGS = [
    (2, "v2", "."),
    (2, "v2", "/"),
    (3, "v2", "."),
    (3, "v2", "/"),
    (3, "default", "."),
    (3, "default", "/"),
]


def restate(store, encoding):
    """Metadata of array "t" that state another encoding than its chunks have."""
    zarr_format, name, separator = encoding
    key = "t/.zarray" if zarr_format == 2 else "t/zarr.json"
    document = json.loads(sync(store.get(key, default_buffer_prototype())).to_bytes())
    if zarr_format == 2:
        document["dimension_separator"] = separator
    else:
        settings = {"name": name, "configuration": {"separator": separator}}
        document["chunk_key_encoding"] = settings
    sync(store.set(key, cpu.Buffer.from_bytes(json.dumps(document).encode())))


def store_of(encoding, path=None, shape=(4, 2), **options):
    zarr_format, name, separator = encoding
    return make_store(
        {"t": shape, "u": (4, 2)},
        chunks={"t": (2, *shape[1:]), "u": (2, 2)},
        zarr_format=zarr_format,
        path=path,
        chunk_key_encoding={"name": name, "separator": separator},
        **options,
    )


@pytest.mark.parametrize("listing", ["folder", "memory", "refused", "unsupported"])
@each_case(
    "stored, stated", [(a, b) for a in ENCODINGS for b in ENCODINGS if a[0] == b[0] and a != b]
)
def test_keys_of_another_shape_are_named(tmp_path, stored, stated, listing):
    """Whether keys can be listed or not, and though another array is well."""
    store = store_of(stored, tempfile.mkdtemp(dir=tmp_path) if listing == "folder" else None)
    restate(store, stated)
    assert (zarr.open_array(store, path="t")[...] == 0).all()
    wrap = {"refused": RefusesListing, "unsupported": CannotList}.get(listing, lambda store: store)
    store = wrap(store)
    t, u = one_array(store, name="t"), one_array(store, name="u")
    with fetching(store, t, u) as fetcher:
        loads = Loads(u)
        fetcher.submit(loads.loads)
        assert not loads.wait().errors
        with pytest.raises(GeometryError) as caught:
            fetcher.check_missing(t)
    for zarr_format, name, separator in (stored, stated):
        start = f"c{separator}" if (zarr_format, name) == (3, "default") else ""
        shape = f"'{start}[01]{re.escape(separator)}0'"
        assert re.search(shape, str(caught.value)), shape


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_equal_keys_of_other_separators_are_right(shape):
    """With the sample axis alone there is nothing to separate."""
    store = RefusesListing(store_of((2, "v2", "/"), shape=shape))
    restate(store, (2, "v2", "." if shape == (4,) else "/"))
    array = one_array(store, name="t")
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        np.testing.assert_array_equal(loads.wait().values, np.arange(np.prod(shape)).reshape(shape))
        assert fetcher.n_missing == {"t": 0}


def test_a_sparse_array_with_other_keys_is_found_out_without_listing():
    """Its first chunk is missing as well, so that only a later one shows how keys are spelled."""
    store = store_of((3, "default", "/"), shape=(9, 2))
    restate(store, (3, "default", "."))
    for key in ("t/c/0/0", "t/c/1/0", "t/c/2/0", "t/c/3/0"):
        sync(store.delete(key))
    store = RefusesListing(store)
    array = one_array(store, name="t")
    with (
        fetching(store, array) as fetcher,
        pytest.raises(GeometryError, match=r"'c/4/0'.*'c\.0\.0'"),
    ):
        fetcher.check_missing(array)


@pytest.mark.parametrize("in_memory", [True, False])
def test_keys_that_another_encoding_has_left_behind_do_no_harm(tmp_path, in_memory):
    store = store_of((3, "default", "/"), None if in_memory else tmp_path, shape=(40, 2))
    for number in range(19):
        sync(store.set(f"t/{number}.0", cpu.Buffer.from_bytes(b"left behind")))
        sync(store.delete(f"t/c/{number}/0"))
    check(store, "t")


def test_listing_stops_at_the_first_chunk():
    store = CountsListing(make_store({"t": (200, 2)}, chunks=(1, 2)))
    array = one_array(store)
    with fetching(store, array) as fetcher:
        store.n_listed = 0
        fetcher.check_missing(array)
    assert store.n_listed <= 2


@pytest.mark.parametrize("refuses", [RefusesListing, CannotList])
def test_store_that_cannot_be_listed_is_not_believed(refuses):
    metadata = make_store({"t": (4, 4), "u": (4, 4)}, chunks=(2, 2))
    store = refuses(Lacks(metadata, lambda key: is_chunk(key) and key.startswith("t/")))
    t, u = one_array(store, name="t"), one_array(store, name="u")
    with fetching(store, t, u) as fetcher:
        with pytest.raises(ReadError, match="cannot be listed"):
            fetcher.check_missing(t)
        loads = Loads(u)
        fetcher.submit(loads.loads)
        loads.wait()
        fetcher.check_missing(t)


def test_hit_of_the_array_itself_is_no_hit_of_another():
    store = RefusesListing(make_store({"t": (4, 4)}, chunks=(2, 2)))
    array = one_array(store)
    with fetching(store, array) as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        loads.wait()
        with pytest.raises(ReadError):
            fetcher.check_missing(array)


def test_root_array_is_looked_for_in_the_whole_store():
    store = MemoryStore()
    zarr.create_array(store, shape=(4, 4), chunks=(2, 2), dtype="f4")
    with pytest.raises(ReadError, match="no chunk below ''"):
        check(store)
    zarr.open_array(store, mode="r+")[...] = np.ones((4, 4))
    check(store)


def test_listing_that_never_ends_is_left_by_close():
    store = ListsForEver(NeverAnswers(make_store({"t": (4, 4)}, chunks=(2, 2))))
    array = one_array(store, name="t")
    fetcher = ChunkFetcher(store, [array])
    raised = []

    def checks():
        try:
            fetcher.check_missing(array)
        except Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=checks)
    thread.start()
    while not store.is_listing:
        sync(asyncio.sleep(0))
    fetcher.close()
    thread.join(WAIT_S)
    assert len(raised) == 1
    while not store.n_cancelled:
        sync(asyncio.sleep(0))


def test_interrupted_listing_leaves_no_task_behind():
    store = ListsForEver(make_store({"t": (4, 4)}, chunks=(2, 2)))
    array = one_array(store, name="t")

    def interrupts():
        while not store.is_listing:
            sync(asyncio.sleep(0))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupts)
    with fetching(store, array) as fetcher:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            fetcher.check_missing(array)
        thread.join(WAIT_S)
        eventually(lambda: store.n_cancelled == 1)


def test_filling_whatever_is_missing_asks_for_no_listing():
    store = CountsListing(Lacks(make_store({"t": (4, 4)}, chunks=(2, 2))))
    array = one_array(store)
    with fetching(store, array, on_missing="fill") as fetcher:
        store.n_listed = 0
        loads = Loads(array)
        fetcher.submit(loads.loads)
        assert (loads.wait().values == 0).all()
        fetcher.check_missing(array)
        assert fetcher.n_missing == {"t": 4}
    assert store.n_listed == 0


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_missing_chunk_is_an_error_where_it_must_not_be(kind, tmp_path):
    store = make_store({"t": (4, 4)}, chunks=(2, 4), path=tmp_path if kind == "folder" else None)
    array = one_array(store)
    sync(store.delete("t/c/1/0"))
    counted = CountingStore(store) if kind == "memory" else store
    with fetching(counted, array, on_missing="raise") as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        error = loads.wait().errors[1]
        assert list(loads.errors) == [1]
        assert fetcher.n_missing == {"t": 0}
        assert fetcher.counts_of(array).n_retries == 0
    assert isinstance(error, ReadError)
    for fact in ("'t'", "'t/c/1/0'", "(1, 0)", "missing", "on_missing"):
        assert fact in str(error)
    if kind == "memory":
        assert counted.gets["t/c/1/0"] == 1


def test_an_unknown_policy_is_refused():
    store = make_store({"t": (4, 4)}, chunks=(2, 4))
    with pytest.raises(PlanError, match="on_missing is 'zeros': choose one of auto, fill, raise"):
        ChunkFetcher(store, [one_array(store)], on_missing="zeros")
