import asyncio

import pytest

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.chunk_separator import with_separator
from torchdata_insitu.geometry.store_nodes import StoreNode

ARRAY = {"zarr_format": 2, "shape": [4, 6]}


class FakeKeys:
    """A store of these keys, of which it may give no answer."""

    def __init__(self, *keys, answers=True):
        self.asked = []
        self._keys = keys
        self._answers = answers

    async def has(self, key):
        self.asked.append(key)
        return key in self._keys if self._answers else None


def node(document=None, path="g/t", **fields):
    fields = {"attributes": {}, "is_group": False, **fields}
    return StoreNode(path, ARRAY if document is None else document, **fields)


def separator(keys, **fields):
    return asyncio.run(with_separator(keys, node(**fields))).document.get("dimension_separator")


def test_it_is_a_slash_where_the_first_chunk_lies_in_folders():
    assert separator(FakeKeys("g/t/0/0")) == "/"
    assert separator(FakeKeys("0/0"), path="") == "/"


@pytest.mark.parametrize("keys", [(), ("g/t/0.0",), ("g/t/0.0", "g/t/0/0"), ("0/0",)])
def test_metadata_stay_as_they_are_where_nothing_else_is_certain(keys):
    given = node()
    assert asyncio.run(with_separator(FakeKeys(*keys), given)) is given


def test_a_store_without_an_answer_decides_nothing():
    keys = FakeKeys("g/t/0/0", answers=False)
    assert separator(keys) is None
    assert keys.asked == ["g/t/0.0"]


@pytest.mark.parametrize(
    "document",
    [
        {**ARRAY, "dimension_separator": "."},
        {**ARRAY, "dimension_separator": "/"},
        {**ARRAY, "dimension_separator": "_"},
        {**ARRAY, "zarr_format": 3},
        {**ARRAY, "zarr_format": 1},
        {**ARRAY, "shape": [4]},
        {**ARRAY, "shape": []},
        {**ARRAY, "shape": [4, 0]},
        {**ARRAY, "shape": None},
    ],
)
def test_nothing_is_asked_where_there_is_no_choice(document):
    keys = FakeKeys("g/t/0/0")
    assert separator(keys, document=document) == document.get("dimension_separator")
    assert keys.asked == []


def test_null_is_no_separator():
    assert separator(FakeKeys(), document={**ARRAY, "dimension_separator": None}) == "."
    assert separator(FakeKeys("g/t/0/0"), document={**ARRAY, "dimension_separator": None}) == "/"
    one_axis = {"zarr_format": 2, "shape": [4], "dimension_separator": None}
    assert separator(FakeKeys("g/t/0"), document=one_axis) == "."


@pytest.mark.parametrize("fields", [{"is_group": True}, {"fault": GeometryError("broken")}])
def test_what_is_no_array_stays_as_it_is(fields):
    given = node(**fields)
    assert asyncio.run(with_separator(FakeKeys("g/t/0/0"), given)) is given
