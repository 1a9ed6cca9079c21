import asyncio

import pytest

from torchdata_insitu.errors import GeometryError, ReadError
from torchdata_insitu.geometry.store_nodes import read_node, walk

GROUP_2 = {"zarr_format": 2}
GROUP_3 = {"zarr_format": 3, "node_type": "group"}
ARRAY_3 = {"zarr_format": 3, "node_type": "array", "shape": [3]}


class FakeDocuments:
    """A store of JSON documents; a value that is an exception is raised."""

    def __init__(self, documents, *, can_list=True):
        self.documents = documents
        self.can_list = can_list

    async def read(self, key):
        document = self.documents.get(key)
        if isinstance(document, Exception):
            raise document
        return document

    async def children(self, path):
        if not self.can_list:
            raise ReadError("cannot list")
        prefix = f"{path}/" if path else ""
        below = [key.removeprefix(prefix) for key in self.documents if key.startswith(prefix)]
        return [key.split("/")[0] for key in below]


def node(documents, path=""):
    return asyncio.run(read_node(FakeDocuments(documents), path))


def walked(documents, *, can_list=True):
    async def run():
        fake = FakeDocuments(documents, can_list=can_list)
        return await walk(fake, await read_node(fake, ""))

    return {found.path: found for found in asyncio.run(run())}


def test_format_3_goes_before_format_2_where_both_are_stored():
    found = node({"a/zarr.json": ARRAY_3, "a/.zarray": {"zarr_format": 2}}, "a")
    assert found.document["zarr_format"] == 3


def test_format_2_has_its_attributes_beside():
    found = node({".zarray": {"zarr_format": 2, "shape": [3]}, ".zattrs": {"units": "K"}})
    assert (found.name, found.is_group, found.attributes) == ("data", False, {"units": "K"})


def test_nothing_is_there_without_documents():
    assert node({"b/zarr.json": ARRAY_3}, "a") is None


def test_a_store_that_refuses_missing_keys_still_shows_what_it_has():
    found = node({"zarr.json": ReadError("denied"), ".zgroup": GROUP_2, ".zarray": None})
    assert found.is_group
    assert found.fault is None


def test_attributes_that_cannot_be_read_are_not_taken_for_none():
    found = node({".zarray": {"zarr_format": 2}, ".zattrs": ReadError("denied: .zattrs")})
    with pytest.raises(ReadError, match="zattrs"):
        found.array()


def test_one_broken_document_does_not_stop_the_others():
    found = walked(
        {"zarr.json": GROUP_3, "bad/zarr.json": GeometryError("not JSON"), "a/zarr.json": ARRAY_3}
    )
    assert sorted(found) == ["", "a", "bad"]
    assert found["a"].fault is None
    with pytest.raises(GeometryError, match="not JSON"):
        found["bad"].array()


def test_groups_are_entered_and_arrays_are_not():
    found = walked(
        {
            ".zgroup": GROUP_2,
            "g/.zgroup": GROUP_2,
            "g/h/.zgroup": GROUP_2,
            "g/h/a/.zarray": {"zarr_format": 2},
            "g/h/a/0/.zarray": {"zarr_format": 2},
        }
    )
    assert list(found) == ["", "g", "g/h", "g/h/a"]


@pytest.mark.parametrize("can_list", [True, False])
def test_consolidated_metadata_gives_names_where_listing_gives_none(can_list):
    class Hidden(FakeDocuments):
        async def children(self, path):
            await super().children(path)
            return []

    stale = {"zarr_format": 2, "shape": [1]}
    entries = {".zgroup": GROUP_2, "g/a/.zarray": stale, "g/a/.zattrs": {}, "gone/.zarray": stale}
    documents = {
        ".zgroup": GROUP_2,
        ".zmetadata": {"metadata": entries},
        "g/a/.zarray": {"zarr_format": 2, "shape": [10]},
    }

    async def run():
        fake = Hidden(documents, can_list=can_list)
        return await walk(fake, await read_node(fake, ""))

    root, array, gone = asyncio.run(run())
    assert (root.path, array.path) == ("", "g/a")
    assert array.document["shape"] == [10]
    with pytest.raises(GeometryError, match="'gone' is in the consolidated metadata, but has no"):
        gone.array()


def test_consolidated_metadata_of_format_3_lies_in_the_group_document():
    group = {**GROUP_3, "consolidated_metadata": {"metadata": {"a": ARRAY_3}}}
    assert list(walked({"zarr.json": group, "a/zarr.json": ARRAY_3}, can_list=False)) == ["", "a"]


def test_a_group_may_hold_nodes_of_the_other_format():
    array_2 = {"zarr_format": 2, "shape": [3]}
    assert list(walked({"zarr.json": GROUP_3, "a/.zarray": array_2, "b/zarr.json": ARRAY_3})) == [
        "",
        "a",
        "b",
    ]
    found = walked({".zgroup": GROUP_2, "g/zarr.json": GROUP_3, "g/a/.zarray": array_2})
    assert list(found) == ["", "g", "g/a"]


def test_an_array_of_both_formats_is_that_of_its_group():
    both = {"a/.zarray": {"zarr_format": 2, "shape": [2]}, "a/zarr.json": ARRAY_3}
    assert walked({"zarr.json": GROUP_3, **both})["a"].document == ARRAY_3
    assert walked({".zgroup": GROUP_2, **both})["a"].document["zarr_format"] == 2


def test_folders_without_documents_are_not_entered():
    assert list(walked({"zarr.json": GROUP_3, "implicit/a/zarr.json": ARRAY_3, "README": {}})) == [
        ""
    ]


@pytest.mark.parametrize("attributes", [[1], 3, "x", True])
def test_an_array_is_not_read_without_its_attributes(attributes):
    found = node({"zarr.json": {**ARRAY_3, "attributes": attributes}})
    with pytest.raises(GeometryError, match="'data' has attributes that are no JSON object"):
        found.array()
    assert node({"zarr.json": {**ARRAY_3, "attributes": None}}).array().attributes == {}
    assert node({"zarr.json": {**GROUP_3, "attributes": attributes}}).is_group


def test_a_store_that_neither_lists_nor_has_consolidated_metadata_says_so():
    with pytest.raises(ReadError, match="cannot list"):
        walked({"zarr.json": GROUP_3, "a/zarr.json": ARRAY_3}, can_list=False)
