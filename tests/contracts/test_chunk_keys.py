"""Keys of chunks as every writer spells them, stated in the metadata or not."""

import itertools

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import counted
from tests.contracts.documents import amend, document_of, files_of, key_of, put, read_all
from tests.contracts.places import LISTED, PLACES, placed
from torchdata_insitu.testing import CountingStore, FaultServer, make_store

# Minutes in all; what they share with other suites runs in those.
pytestmark = pytest.mark.slow

ENCODINGS = {
    "format 2, dots": (2, "v2", "."),
    "format 2, slashes": (2, "v2", "/"),
    "format 3, v2 dots": (3, "v2", "."),
    "format 3, v2 slashes": (3, "v2", "/"),
    "format 3, dots": (3, "default", "."),
    "format 3, slashes": (3, "default", "/"),
}
# Of one, two and three axes; where fields have one chunk, and where they have several.
SHAPES = {
    "one axis": ((5,), (2,)),
    "one chunk a field": ((5, 2), (2, 2)),
    "several": ((5, 3, 4), (2, 2, 3)),
}


def written(encoding, name="t", shape="several"):
    zarr_format, kind, separator = encoding
    array_shape, chunks = SHAPES[shape]
    return make_store(
        {name: counted(array_shape)},
        chunks=chunks,
        zarr_format=zarr_format,
        chunk_key_encoding={"name": kind, "separator": separator},
    )


def unstated(value=..., *, shape="several", stored="/", **options):
    """A store of format 2 whose metadata do not state the separator of its chunk keys."""
    store = written((2, "v2", stored), shape=shape, **options)
    amend(store, "t/.zarray", dimension_separator=value)
    return store


def healthy_beside(store):
    """Another array, of which nothing is wrong, with its own metadata and chunks."""
    for key, buffer in written((2, "v2", "."), name="well")._store_dict.items():
        sync(store.set(key, buffer))
    return store


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_reads_as_zarr_reads_it(encoding, shape):
    store = written(ENCODINGS[encoding], shape=shape)
    expected = zarr.open_array(store, path="t", mode="r")[...]
    values, n_missing = read_all(store, tdi.open_arrays(store)["t"])
    np.testing.assert_array_equal(values, expected, strict=True)
    assert n_missing == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_reads_from_every_place(encoding, place, tmp_path):
    store = written(ENCODINGS[encoding])
    expected = zarr.open_array(store, path="t", mode="r")[...]
    with placed(place, files_of(store), tmp_path) as there:
        values, n_missing = read_all(there, tdi.open_arrays(there, "t")["t"])
    np.testing.assert_array_equal(values, expected, strict=True)
    assert n_missing == 0


@pytest.mark.parametrize("value", [..., None], ids=["left out", "null"])
@pytest.mark.parametrize("stored", [".", "/"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", PLACES)
def test_a_separator_that_is_not_stated_is_the_one_of_the_keys(
    place, shape, stored, value, tmp_path
):
    """Zarr takes it for a dot and reads fill values."""
    store = unstated(value, shape=shape, stored=stored)
    expected = counted(SHAPES[shape][0])
    with placed(place, files_of(store), tmp_path) as there:
        values, n_missing = read_all(there, tdi.open_arrays(there, "t")["t"])
    np.testing.assert_array_equal(values, expected, strict=True)
    assert n_missing == 0


def test_it_is_found_for_a_root_array_and_below_groups():
    for name in (None, "runs/ens/t"):
        store = zarr.storage.MemoryStore()
        settings = {"name": "v2", "separator": "/"}
        array = zarr.create_array(
            store,
            name=name,
            shape=(5, 3, 4),
            chunks=(2, 2, 3),
            dtype="f4",
            zarr_format=2,
            chunk_key_encoding=settings,
        )
        array[...] = counted((5, 3, 4))
        amend(store, key_of(name or "", 2), dimension_separator=...)
        (opened,) = tdi.open_arrays(store).values()
        np.testing.assert_array_equal(read_all(store, opened)[0], counted((5, 3, 4)))


def test_the_others_of_its_store_are_read_as_they_say():
    store = healthy_beside(unstated())
    arrays = tdi.open_arrays(store)
    assert list(arrays) == ["t", "well"]
    for array in arrays.values():
        values, n_missing = read_all(store, array)
        np.testing.assert_array_equal(values, counted((5, 3, 4)))
        assert n_missing == 0


def test_a_stated_separator_and_format_3_cost_no_question():
    for encoding in ENCODINGS.values():
        store = AskedStore(written(encoding))
        tdi.open_arrays(store)
        assert store.asked == []


def test_a_separator_that_is_not_stated_costs_one_question_where_it_is_a_dot():
    store = AskedStore(healthy_beside(unstated(stored=".")))
    tdi.open_arrays(store)
    assert store.asked == ["t/0.0.0"]
    store = AskedStore(healthy_beside(unstated(stored="/")))
    tdi.open_arrays(store)
    assert store.asked == ["t/0.0.0", "t/0/0/0"]


class AskedStore(CountingStore):
    """Tells which keys it was asked about."""

    def __init__(self, store):
        super().__init__(store)
        self.asked = []

    async def exists(self, key):
        self.asked.append(key)
        return await super().exists(key)


class GivesNoAnswer(CountingStore):
    """Keys can be read and not asked about, as of a web server without HEAD."""

    async def exists(self, key):
        raise PermissionError(f"HEAD {key} is not allowed")


def test_a_store_that_gives_no_answer_is_opened_as_its_metadata_say():
    store = GivesNoAnswer(unstated(stored="."))
    values, n_missing = read_all(store, tdi.open_arrays(store)["t"])
    np.testing.assert_array_equal(values, counted((5, 3, 4)))
    assert n_missing == 0


@pytest.mark.parametrize("place", LISTED)
@pytest.mark.parametrize("shape", ["one chunk a field", "several"])
def test_keys_that_are_not_found_out_at_opening_are_an_error_at_the_first_batch(
    place, shape, tmp_path
):
    """The first chunk is missing, so that nothing is certain; another array is well."""
    store = healthy_beside(unstated(shape=shape))
    sync(store.delete_dir("t/0"))
    with placed(place, files_of(store), tmp_path) as there:
        array = tdi.open_arrays(there, "t")["t"]
        with pytest.raises(tdi.errors.GeometryError, match=r"array 't' .*'\d(/\d)+'.*'0(\.0)+'"):
            read_all(there, array)


def test_over_http_they_are_an_error_too_though_another_array_has_chunks(tmp_path):
    store = healthy_beside(unstated())
    sync(store.delete_dir("t/0"))
    with placed("http", files_of(store), tmp_path) as there:
        arrays = tdi.open_arrays(there, ["t", "well"])
        loader = tdi.build_loader(there, arrays, batch_size=5, budget_bytes=10**6)
        with loader, pytest.raises(tdi.errors.GeometryError, match="array 't' are stored under"):
            list(loader)


@pytest.mark.parametrize(
    "stored, stated", [(a, b) for a, b in itertools.permutations(ENCODINGS, 2) if a[7] == b[7]]
)
@pytest.mark.parametrize("place", ["folder", "http"])
def test_a_wrong_statement_is_an_error_and_never_fill_values(place, stored, stated, tmp_path):
    zarr_format, kind, separator = ENCODINGS[stated]
    store = written(ENCODINGS[stored])
    key = key_of("t", zarr_format)
    document = document_of(store, key)
    if zarr_format == 2:
        document["dimension_separator"] = separator
    else:
        settings = {"name": kind, "configuration": {"separator": separator}}
        document["chunk_key_encoding"] = settings
    put(store, key, document)
    with placed(place, files_of(store), tmp_path) as there:
        array = tdi.open_arrays(there, "t")["t"]
        with pytest.raises(tdi.errors.GeometryError, match="array 't' are stored under keys such"):
            read_all(there, array)


def test_a_healthy_array_over_http_costs_no_further_question():
    """What is stored is looked for only where chunks are missing."""
    store = written(ENCODINGS["format 2, dots"])
    with FaultServer(store) as server:
        there = tdi.open_store(server.url)
        read_all(there, tdi.open_arrays(there, "t")["t"])
        assert {served.method for served in server.log} == {"GET"}
