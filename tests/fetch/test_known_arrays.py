import copy

import pytest

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.fetch.known_arrays import KnownArrays
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.geometry.metadata import read_arrays
from torchdata_insitu.testing import make_store


@pytest.fixture
def arrays():
    store = make_store({"t": (8, 2), "u": (6, 3)}, chunks={"t": (4, 2), "u": (2, 3)})
    return read_arrays(store)


def test_each_array_has_what_was_made_for_it(arrays):
    known = KnownArrays(list(arrays.values()), ThreadBuffers())
    assert [each.array for each in known] == [arrays["t"], arrays["u"]]
    for array in arrays.values():
        one = known.of(array)
        assert one is known.of(array)
        assert one.array is array
        (request,) = one.table.requests(1)
        assert request.key == f"{array.name}/c/1/0"
        assert request.shape == array.stored_chunk_shape


def test_an_array_that_is_given_twice_is_one(arrays):
    known = KnownArrays([arrays["t"], arrays["t"]], ThreadBuffers())
    assert len(list(known)) == 1


def test_another_array_is_refused_with_the_names_of_those_that_are_known(arrays):
    known = KnownArrays([arrays["t"]], ThreadBuffers())
    with pytest.raises(GeometryError) as raised:
        known.of(arrays["u"])
    assert str(raised.value) == "array 'u' is none of those this fetcher was made for: ['t']"


def test_an_equal_array_of_another_reading_is_refused(arrays):
    """As counts are kept for each, it is not the same one."""
    known = KnownArrays([arrays["t"]], ThreadBuffers())
    other = copy.copy(arrays["t"])
    assert other == arrays["t"]
    with pytest.raises(GeometryError, match=r"array 't' is none of those .*: \['t'\]"):
        known.of(other)


def test_without_arrays_every_one_is_refused(arrays):
    with pytest.raises(GeometryError, match=r"array 't' is none of those .*: \[\]"):
        KnownArrays([], ThreadBuffers()).of(arrays["t"])
