"""Arrays by any name that Zarr can give them, in every place: metadata and chunks."""

import unicodedata
import urllib.parse

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.chains import counted
from tests.contracts.documents import files_of, read_all
from tests.contracts.places import LISTED, PLACES, placed
from torchdata_insitu.testing import FaultServer, make_store

# Minutes in all; what they share with other suites runs in those.
pytestmark = pytest.mark.slow

COMPOSED = unicodedata.normalize("NFC", "température")
DECOMPOSED = unicodedata.normalize("NFD", "température")
NAMES = [
    *("air temperature", "two  spaces", " first", "last ", "t\u00a02m"),
    *(COMPOSED, DECOMPOSED, "\u6c17\u6e29", "\U0001f327"),
    *("50%", "%", "a%20b", "a%2Fb", "%41", "a%b", "a%25b"),
    *("a#b", "#", "a?b", "?x=1", "a+b", "a&b", "a=b", "a@b", "a:b", "a;b", "a,b", "a!b", "a$b"),
    *("~a", "a~", "a*b", "a|b", "a^b", "a`b", "a'b", 'a"b', "a<b>", "a[0]", "{a}", "(a)"),
    *(".hidden", "..a", "a..b", "a.", "-a", "_a"),
    *("c", "0", "0.0", "zarr", "data", "zarr.json.old", "x" * 200),
]


def many(zarr_format):
    """Arrays of these names in a group whose name is one of them, each with values of its own."""
    arrays = {f"50% & #/{name}": counted((4, 2), first=8 * i + 1) for i, name in enumerate(NAMES)}
    return arrays, make_store(arrays, chunks=(2, 2), zarr_format=zarr_format)


def check(store, arrays, names=None):
    opened = tdi.open_arrays(store, names)
    assert sorted(opened) == sorted(arrays)
    views = {f"view {i}": opened[name] for i, name in enumerate(arrays)}
    with tdi.build_loader(store, views, batch_size=4, shuffle=False, budget_bytes=10**7) as loader:
        (batch,) = loader
        assert not any(loader.stats().missing.values())
    for i, expected in enumerate(arrays.values()):
        np.testing.assert_array_equal(batch[f"view {i}"].numpy(), expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_names_are_keys_as_they_are(place, zarr_format, tmp_path):
    arrays, store = many(zarr_format)
    with placed(place, files_of(store), tmp_path) as there:
        check(there, arrays, list(arrays))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("place", LISTED)
def test_names_are_found_by_listing(place, zarr_format, tmp_path):
    arrays, store = many(zarr_format)
    with placed(place, files_of(store), tmp_path) as there:
        check(there, arrays)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_names_are_found_in_consolidated_metadata(zarr_format, tmp_path):
    arrays, store = many(zarr_format)
    zarr.consolidate_metadata(store, zarr_format=zarr_format)
    with placed("http", files_of(store), tmp_path) as there:
        check(there, arrays)


def test_names_over_s3(s3_server):
    arrays, store = many(3)
    below = {f"1995 #2/50%.zarr/{key}": content for key, content in files_of(store).items()}
    s3_server.upload("names", below)
    url = f"s3://names/{urllib.parse.quote('1995 #2/50%.zarr')}"
    there = tdi.open_store(url, **s3_server.options)
    check(there, arrays)
    assert list(tdi.open_arrays(there, list(arrays))) == list(arrays)


@pytest.mark.parametrize("folder", ["a b", "50%", "a%20b", "a#b", "a?b", "a+b", DECOMPOSED])
def test_the_url_of_a_store_is_escaped_once(folder):
    values = counted((4, 2))
    files = files_of(make_store({"t": values}, chunks=(2, 2)))
    with FaultServer({f"{folder}/{key}": content for key, content in files.items()}) as server:
        store = tdi.open_store(f"{server.url}/{urllib.parse.quote(folder)}")
        np.testing.assert_array_equal(read_all(store, tdi.open_arrays(store, "t")["t"])[0], values)


@pytest.mark.parametrize("folder", ["a b", "50%", "a%20b", "a#b", "a?b", COMPOSED, DECOMPOSED])
def test_a_path_is_no_url_and_a_file_url_is_escaped(folder, tmp_path):
    values = counted((4, 2))
    make_store({"t": values}, chunks=(2, 2), path=tmp_path / folder)
    for given in (tmp_path / folder, str(tmp_path / folder), (tmp_path / folder).as_uri()):
        store = tdi.open_store(given)
        np.testing.assert_array_equal(read_all(store, tdi.open_arrays(store)["t"])[0], values)


def test_names_that_look_alike_are_two_arrays():
    arrays = {COMPOSED: counted((4, 2)), DECOMPOSED: counted((4, 2), first=100)}
    check(make_store(arrays, chunks=(2, 2)), arrays)
    arrays = {name: counted((4, 2), first=10 * i) for i, name in enumerate(["T", "t", "\u03a3"])}
    check(make_store(arrays, chunks=(2, 2)), arrays)


@pytest.mark.parametrize("place", ["memory", "folder", "http"])
@pytest.mark.parametrize("stored, asked", [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
@pytest.mark.parametrize("group", ["", "group/"])
def test_a_name_of_other_code_points_is_refused_with_the_one_that_there_is(
    place, stored, asked, group, tmp_path
):
    store = make_store({group + stored: (4, 2)}, chunks=(2, 2))
    with (
        placed(place, files_of(store), tmp_path) as there,
        pytest.raises(tdi.errors.GeometryError, match="other code points") as caught,
    ):
        tdi.open_arrays(there, group + asked)
    assert f"ask for {group + stored!a}" in str(caught.value)
    assert ascii(group + asked) in str(caught.value)


def test_parts_of_a_path_may_each_be_of_another_form():
    path = f"{COMPOSED}/{DECOMPOSED}"
    store = make_store({path: (4, 2)}, chunks=(2, 2))
    with pytest.raises(tdi.errors.GeometryError, match="other code points") as caught:
        tdi.open_arrays(store, unicodedata.normalize("NFC", path))
    assert f"ask for {path!a}" in str(caught.value)


@pytest.mark.parametrize("asked", ["t", "g/T"])
def test_a_name_that_differs_by_case_is_another_one(asked):
    store = make_store({"T": (4, 2), "g/t": (4, 2)}, chunks=(2, 2))
    with pytest.raises(tdi.errors.GeometryError, match=f"no array '{asked}'") as caught:
        tdi.open_arrays(store, asked)
    assert f"it has '{asked.swapcase().replace('G', 'g')}'" in str(caught.value)


@pytest.mark.parametrize("place", ["memory", "folder", "obstore folder"])
@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "./t", "a/./t", ".."])
def test_a_path_does_not_lead_out_of_its_store(place, path, tmp_path):
    make_store({"data": (4, 2)}, path=tmp_path / "secret")
    files = files_of(make_store({"t": (4, 2)}))
    with placed(place, files, tmp_path / "store") as there:
        with pytest.raises(tdi.errors.GeometryError, match="no path inside a store"):
            tdi.open_arrays(there, path)
        with pytest.raises(tdi.errors.GeometryError, match="no path inside a store"):
            tdi.open_arrays(there, "t", sample_axis={path: 0})


def test_slashes_around_and_between_names_do_not_matter():
    store = make_store({"a/b/t": (4, 2)})
    for path in ("/a/b/t", "a/b/t/", "a//b/t", "//a/b//t//"):
        assert list(tdi.open_arrays(store, path, sample_axis={path: 1})) == ["a/b/t"]
