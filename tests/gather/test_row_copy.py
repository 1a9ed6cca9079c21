import tracemalloc

import numpy as np
import pytest

from torchdata_insitu.gather.row_copy import RowCopy


def numbered(n_rows, field=(2, 3), dtype="f4", add=0):
    rows = np.arange(n_rows, dtype=dtype).reshape(-1, *[1] * len(field)) + add
    return np.ascontiguousarray(np.broadcast_to(rows, (n_rows, *field)).astype(dtype))


def test_windows_and_stacks_come_out_in_the_order_asked():
    region = numbered(10)
    rows = np.array([[[4, 9], [1, 0]], [[7, 7], [2, 3]], [[5, 6], [8, 1]]])
    out = np.empty((3, 2, 2, 2, 3), "f4")
    RowCopy().copy([region, region], rows, out)
    assert (out == rows[..., None, None]).all()


def test_arrays_of_several_regions_are_copied_into_place():
    regions = [numbered(10), numbered(4, add=100)]
    rows = np.array([[[4, 3], [1, 0]], [[7, 2], [2, 3]]])
    out = np.empty((2, 2, 2, 2, 3), "f4")
    RowCopy().copy(regions, rows, out)
    assert (out[:, :, 0] == rows[:, :, 0, None, None]).all()
    assert (out[:, :, 1] == rows[:, :, 1, None, None] + 100).all()


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f8", "c8"])
def test_every_kind_of_value_is_copied_as_it_is(dtype):
    region = np.arange(6).astype(dtype)
    out = np.empty((4, 1, 1), dtype)
    RowCopy().copy([region], np.array([5, 0, 3, 3]).reshape(4, 1, 1), out)
    assert out.ravel().tolist() == region[[5, 0, 3, 3]].tolist()


@pytest.mark.parametrize("n_regions", [1, 2])
def test_no_fresh_array_of_the_size_of_a_batch(n_regions):
    regions = [numbered(64, field=(64, 64)) for _ in range(n_regions)]
    rows = np.zeros((32, 1, n_regions), np.int64)
    out = np.empty((32, 1, n_regions, 64, 64), "f4")
    copy = RowCopy()
    copy.copy(regions, rows, out)
    tracemalloc.start()
    copy.copy(regions, rows, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < out.nbytes / 20
