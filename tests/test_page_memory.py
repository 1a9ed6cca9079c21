"""Memory that begins on a page."""

import gc
import mmap
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from tests.each_case import each_case
from torchdata_insitu.page_memory import page_aligned

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.bool_, np.complex128])
@each_case("shape", [0, 1, PAGE, 3 * PAGE + 1, (5, 7, 513), (2, 0, PAGE), (), (PAGE,)])
def test_it_is_an_array_like_any_other(shape, dtype):
    array, plain = page_aligned(shape, dtype), np.empty(shape, dtype)

    assert (array.shape, array.dtype, array.strides) == (plain.shape, plain.dtype, plain.strides)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    if array.nbytes >= PAGE:
        assert array.ctypes.data % PAGE == 0
    array[...] = 1
    assert (array == 1).all()


def test_arrays_do_not_share_memory():
    arrays = [page_aligned((PAGE // 8, n), np.float64) for n in (1, 2, 3, 1, 2)]
    for number, array in enumerate(arrays):
        array[...] = number

    assert [np.unique(array).tolist() for array in arrays] == [[0], [1], [2], [3], [4]]


@each_case(
    "alias",
    [
        lambda array: array[1:3],
        lambda array: array[1:3][:1].reshape(-1),
        lambda array: torch.from_numpy(array[2:]),
        lambda array: torch.from_numpy(array)[1].numpy()[:2],
        memoryview,
        lambda array: torch.from_dlpack(torch.from_numpy(array[:1])),
    ],
)
def test_its_reference_count_tells_of_every_alias(alias):
    array = page_aligned((4, PAGE), np.float32)
    alone = sys.getrefcount(array)

    kept = alias(array)

    assert sys.getrefcount(array) > alone
    del kept
    assert sys.getrefcount(array) == alone


def test_an_alias_keeps_the_memory_and_the_last_one_gives_it_back():
    n_bytes = 1 << 22
    page_aligned(n_bytes)  # what is imported and kept at the first use
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        row = page_aligned((2, n_bytes // 2))[1]
        row[:] = 7
        assert tracemalloc.get_traced_memory()[0] - before >= n_bytes
        assert (row == 7).all()
        del row
        assert tracemalloc.get_traced_memory()[0] - before < n_bytes // 100
    finally:
        tracemalloc.stop()


def test_it_is_found_where_malloc_gives_it_at_any_offset(monkeypatch):
    """Whatever the block begins at, the array begins on a page and ends inside the block."""
    room = np.empty(4 * PAGE + 64, np.uint8)
    first = -room.ctypes.data % PAGE
    for offset in (0, 1, 16, 32, PAGE - 1):
        block = room[first + offset :][: 2 * PAGE]
        monkeypatch.setattr(np, "empty", lambda *_, block=block: block)
        array = page_aligned(PAGE)
        monkeypatch.undo()

        start = array.ctypes.data
        assert start % PAGE == 0
        assert block.ctypes.data <= start
        assert start + array.nbytes <= block.ctypes.data + block.nbytes
        assert not isinstance(array.base, np.ndarray)
