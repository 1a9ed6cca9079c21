import logging

import numpy as np
import pytest

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.fill_value import default_fill_value, with_fill_value


def array(**document):
    return ArrayDocument("g/t", {"zarr_format": 3, "data_type": "float32", **document}, {})


def test_null_becomes_zero_and_is_logged_with_the_array(caplog):
    given = array(fill_value=None)
    with caplog.at_level(logging.INFO, "torchdata_insitu"):
        assert with_fill_value(given).document["fill_value"] == 0.0
    assert "array 'g/t' has fill_value null: its missing chunks hold 0.0" in caplog.text
    assert given.document["fill_value"] is None


@pytest.mark.parametrize(
    "document",
    [{"fill_value": 0}, {"fill_value": "NaN"}, {}, {"zarr_format": 2, "fill_value": None}],
)
def test_anything_else_stays_as_it_is(document):
    given = array(**document)
    assert with_fill_value(given) is given


def test_a_dtype_without_tensor_is_refused_for_that_reason():
    with pytest.raises(GeometryError, match="'g/t' has dtype 'none such'"):
        with_fill_value(array(data_type="none such", fill_value=None))


@pytest.mark.parametrize(
    "dtype, value",
    [
        *(("bool", False), ("uint8", 0), ("int64", 0), ("float16", 0.0), ("complex64", [0.0, 0.0])),
        *(("M8[s]", "NaT"), ("m8[ns]", "NaT"), ([("u", "f4"), ("v", "?")], {"u": 0.0, "v": False})),
    ],
)
def test_the_default_of_every_kind(dtype, value):
    assert default_fill_value(np.dtype(dtype)) == value
