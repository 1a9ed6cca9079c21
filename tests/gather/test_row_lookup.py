import numpy as np
import pytest

from torchdata_insitu.errors import InSituError
from torchdata_insitu.gather.row_lookup import RowLookup
from torchdata_insitu.geometry.chunk_grid import AxisChunks


def test_rows_are_those_of_the_chunk_a_sample_lies_in():
    chunks = AxisChunks.regular(20, 4)
    lookup = RowLookup("a", chunks, np.array([3, 0]), np.array([100, 40]))
    assert lookup.rows(np.array([[12, 15], [0, 3]])).tolist() == [[100, 103], [40, 43]]


def test_chunks_of_any_lengths():
    chunks = AxisChunks.rectilinear((0, 31, 59, 90))
    lookup = RowLookup("a", chunks, np.array([1, 2]), np.array([10, 500]))
    assert lookup.rows(np.array([31, 58, 59, 89])).tolist() == [10, 37, 500, 530]


@pytest.mark.parametrize("sample", [0, 7, 16])
def test_a_sample_that_is_not_resident_is_never_another_row(sample):
    lookup = RowLookup("t2m", AxisChunks.regular(20, 4), np.array([2, 3]), np.array([0, 4]))
    with pytest.raises(InSituError, match=f"'t2m' is not resident for sample {sample}"):
        lookup.rows(np.array([8, sample]))


def test_nothing_resident_is_an_error():
    lookup = RowLookup("t2m", AxisChunks.regular(20, 4), np.array([], int), np.array([], int))
    with pytest.raises(InSituError, match="no chunk of array 't2m'"):
        lookup.rows(np.array([0]))
