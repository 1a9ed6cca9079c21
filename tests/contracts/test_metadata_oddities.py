"""Metadata that are out of date, of two formats, or lie where nobody expects them."""

import asyncio
import logging

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import counted
from tests.contracts.documents import amend, document_of, files_of, key_of, put, read_all
from tests.contracts.places import LISTED, PLACES, placed, web_server
from torchdata_insitu.testing import CountingStore, make_store

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")
DIMS = ("time", "x")
FORMATS = [2, 3]


def stale(zarr_format):
    """A store of which much has changed since its metadata were consolidated."""
    names = ("grown", "scaled", "gone", "T", "t", "deep/down")
    store = make_store(
        {name: counted((6, 2), first=100 * i + 1) for i, name in enumerate(names)},
        chunks=(2, 2),
        zarr_format=zarr_format,
        dims=DIMS,
        fill_value=None if zarr_format == 2 else 0,
    )
    zarr.consolidate_metadata(store, zarr_format=zarr_format)
    zarr.open_array(store, path="grown").append(counted((4, 2), first=901))
    zarr.open_array(store, path="scaled").attrs["scale_factor"] = 0.5
    sync(store.delete_dir("gone"))
    # Copied as it is, for Zarr would write consolidated metadata anew.
    new = make_store(
        {"new": counted((6, 2), first=5000)}, chunks=(2, 2), zarr_format=zarr_format, dims=DIMS
    )
    store._store_dict.update(
        {key: value for key, value in new._store_dict.items() if key.startswith("new/")}
    )
    return store


def check_values(there, arrays, plain):
    for name, array in arrays.items():
        values, n_missing = read_all(there, array)
        stored = zarr.open_array(plain, path=name, mode="r")[...]
        np.testing.assert_array_equal(values, stored * (0.5 if name == "scaled" else 1.0))
        assert n_missing == 0


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("place", LISTED)
def test_where_keys_are_listed_stale_metadata_do_not_matter(place, zarr_format, tmp_path):
    plain = stale(zarr_format)
    with placed(place, files_of(plain), tmp_path) as there:
        arrays = tdi.open_arrays(there)
        assert list(arrays) == ["T", "deep/down", "grown", "new", "scaled", "t"]
        assert arrays["grown"].n_samples == 10
        check_values(there, arrays, plain)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_where_they_are_not_listed_they_give_names_and_nothing_else(zarr_format, tmp_path, caplog):
    plain = stale(zarr_format)
    with placed("http", files_of(plain), tmp_path) as there:
        with caplog.at_level(logging.INFO, "torchdata_insitu"):
            arrays = tdi.open_arrays(there)
        assert list(arrays) == ["T", "deep/down", "grown", "scaled", "t"]
        assert "left out 'gone': 'gone' is in the consolidated metadata, but has no" in caplog.text
        assert arrays["grown"].n_samples == 10
        check_values(there, {**arrays, **tdi.open_arrays(there, "new")}, plain)


def test_a_server_that_does_not_know_what_listing_is_lists_nothing(tmp_path):
    """Its answer looks like an error that may pass, and is none that the arrays have."""
    plain = stale(3)
    with placed("folder", files_of(plain), tmp_path), web_server(tmp_path, 501) as url:
        there = tdi.open_store(url)
        assert list(tdi.open_arrays(there)) == ["T", "deep/down", "grown", "scaled", "t"]
        check_values(there, tdi.open_arrays(there, ["t", "scaled"]), plain)


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("place", ["memory", "http"])
def test_an_array_that_is_listed_and_gone_is_an_error_by_name(place, zarr_format, tmp_path):
    fact = {
        "memory": "no array 'gone' in the store; it has ",
        "http": "'gone' is in the consolidated metadata, but has no metadata document of its own",
    }
    with (
        placed(place, files_of(stale(zarr_format)), tmp_path) as there,
        pytest.raises(tdi.errors.GeometryError, match=fact[place]),
    ):
        tdi.open_arrays(there, ["T", "gone"])


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_an_array_whose_chunks_alone_are_gone_is_an_error_and_never_fill_values(
    zarr_format, tmp_path
):
    """As an interrupted deletion leaves it."""
    plain = stale(zarr_format)
    for key in list(plain._store_dict):
        if key.startswith("T/") and key != key_of("T", zarr_format):
            sync(plain.delete(key))
    with placed("folder", files_of(plain), tmp_path) as there:
        array = tdi.open_arrays(there, "T")["T"]
        with pytest.raises(tdi.errors.ReadError, match="array 'T' has metadata but no chunk"):
            read_all(there, array)


def test_consolidated_metadata_that_nobody_must_understand():
    store = stale(3)
    root = document_of(store, "zarr.json")
    root["consolidated_metadata"]["must_understand"] = False
    put(store, "zarr.json", root)
    assert "grown" in tdi.open_arrays(store)


BROKEN = [
    [],
    3,
    "x",
    {},
    {"metadata": None},
    {"metadata": [1]},
    {"kind": "x", "metadata": {"a": 1}},
]


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("content", BROKEN)
def test_consolidated_metadata_that_are_broken_do_no_harm(zarr_format, content, tmp_path):
    store = make_store({"t": (6, 2)}, zarr_format=zarr_format)
    if zarr_format == 2:
        put(store, ".zmetadata", content)
    else:
        amend(store, "zarr.json", consolidated_metadata=content)
    assert list(tdi.open_arrays(store)) == ["t"]
    with placed("http", files_of(store), tmp_path) as there:
        assert list(tdi.open_arrays(there, "t")) == ["t"]
        with pytest.raises(tdi.errors.InSituError) as caught:
            tdi.open_arrays(there)
    facts = ("name the arrays", "'.zmetadata'", "'a' is in the consolidated metadata")
    assert any(fact in str(caught.value) for fact in facts)


@pytest.mark.parametrize("place", LISTED)
@pytest.mark.parametrize("outer", FORMATS)
def test_groups_hold_arrays_and_groups_of_the_other_format(place, outer, tmp_path):
    inner = 5 - outer
    files = files_of(make_store({"a": counted((6, 2))}, zarr_format=outer))
    other = make_store({"b": counted((6, 2), first=50), "g/c": (6, 2)}, zarr_format=inner)
    below = make_store({"d": (6, 2)}, zarr_format=outer)
    roots = (".zgroup", ".zattrs", "zarr.json")
    files |= {key: value for key, value in files_of(other).items() if key not in roots}
    files |= {f"g/{key}": value for key, value in files_of(below).items() if key not in roots}
    with placed(place, files, tmp_path) as there:
        arrays = tdi.open_arrays(there)
        assert {name: array.zarr_format for name, array in arrays.items()} == {
            "a": outer,
            "b": inner,
            "g/c": inner,
            "g/d": outer,
        }
        np.testing.assert_array_equal(read_all(there, arrays["a"])[0], counted((6, 2)))
        np.testing.assert_array_equal(read_all(there, arrays["b"])[0], counted((6, 2), first=50))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_an_array_is_opened_by_its_path_wherever_it_lies(place, zarr_format, tmp_path):
    """Below folders that are no groups, below another array, and without any root."""
    values = counted((6, 2), first=7)
    single = zarr.storage.MemoryStore()
    fill = {"fill_value": None if zarr_format == 2 else 0}
    array = zarr.create_array(
        single, shape=(6, 2), chunks=(2, 2), dtype="f4", zarr_format=zarr_format, **fill
    )
    array[...] = values
    files = files_of(single)
    paths = ("implicit/folders/t", "outer", "outer/inner/t")
    spread = {f"{path}/{key}": content for path in paths for key, content in files.items()}
    with placed(place, spread, tmp_path) as there:
        arrays = tdi.open_arrays(there, paths)
        assert list(arrays) == list(paths)
        for opened in arrays.values():
            found, n_missing = read_all(there, opened)
            np.testing.assert_array_equal(found, values)
            assert n_missing == 0


@pytest.mark.parametrize("place", LISTED)
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_files_and_folders_that_are_not_of_zarr_do_no_harm(place, zarr_format, tmp_path):
    files = files_of(make_store({"t": (6, 2), "g/u": (6, 2)}, zarr_format=zarr_format))
    strays = (
        *("README.md", ".DS_Store", "g/.nczgroup", "g/notes/one.txt", ".git/HEAD", "t/.DS_Store"),
        *("t/notes.txt", "g/._u", "__pycache__/x.pyc", "Thumbs.db", "t.tmp", "g/zarr.json.bak"),
    )
    files |= dict.fromkeys(strays, b"not of zarr")
    with placed(place, files, tmp_path) as there:
        arrays = tdi.open_arrays(there)
        assert list(arrays) == ["g/u", "t"]
        for array in arrays.values():
            assert read_all(there, array)[1] == 0


class Answers(CountingStore):
    """Counts reads that are under way; some keys are refused."""

    def __init__(self, store, refused=()):
        super().__init__(store)
        self.n_inflight = self.most_inflight = 0
        self._refused = refused

    async def get(self, key, prototype, byte_range=None):
        self.n_inflight += 1
        self.most_inflight = max(self.most_inflight, self.n_inflight)
        # Others get their turn, as of any store that is far away.
        await asyncio.sleep(0)
        self.n_inflight -= 1
        if key in self._refused:
            raise ConnectionError("the line is dead")
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_what_a_store_does_not_give_for_the_moment_drops_no_array(zarr_format):
    """Else ranks of one job would draw from different arrays."""
    store = Answers(
        make_store({"a": (6, 2), "b": (6, 2)}, zarr_format=zarr_format),
        refused=[key_of("b", zarr_format)],
    )
    with pytest.raises(
        tdi.errors.ReadError, match=r"'b/.*the line is dead.*name the arrays to open"
    ):
        tdi.open_arrays(store)
    assert list(tdi.open_arrays(store, "a")) == ["a"]


@pytest.mark.parametrize("zarr_format, n_documents", [(2, 3), (3, 1)])
def test_metadata_of_many_arrays_are_read_at_once_but_not_all_at_the_same_time(
    zarr_format, n_documents
):
    n_arrays = 300
    plain = make_store({"0": (6, 2)}, zarr_format=zarr_format)
    document = document_of(plain, key_of("0", zarr_format))
    for number in range(1, n_arrays):
        put(plain, key_of(str(number), zarr_format), document)
    store = Answers(plain)
    assert len(tdi.open_arrays(store)) == n_arrays
    assert 32 <= store.most_inflight <= 64
    assert sum(store.gets.values()) == n_arrays * n_documents + 4
