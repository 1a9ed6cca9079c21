import numpy as np
import pytest
import torch

from tests.each_case import each_case
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.torch_dtypes import HELD, holds, slot_dtype, torch_dtype

NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@each_case("code", NUMBERS)
def test_a_held_dtype_is_the_one_torch_takes_from_numpy(code):
    dtype = np.dtype(code)
    assert holds(dtype)
    assert torch_dtype(dtype) == torch.from_numpy(np.zeros(1, dtype)).dtype


@pytest.mark.parametrize("code", [">f4", ">i2", "M8[s]", "m8[s]", "U3", "S3", "O", "f4,i2", "g"])
def test_what_torch_refuses_is_not_held(code):
    dtype = np.dtype(code)
    with pytest.raises((TypeError, ValueError)):
        torch.from_numpy(np.zeros(1, dtype))
    assert not holds(dtype)
    with pytest.raises(GeometryError, match="no tensor holds"):
        torch_dtype(dtype)


@pytest.mark.parametrize(
    "given",
    ["float32", "f4", ">f4", "<f4", "torch.float32", np.float32, np.dtype(">f4"), torch.float32],
    ids=repr,
)
def test_a_dtype_may_be_named_in_many_ways_and_is_native(given):
    assert slot_dtype(given) == np.dtype("f4")
    assert slot_dtype(given).isnative


@each_case("dtype", sorted(HELD, key=str))
def test_every_held_dtype_can_be_asked_for_as_torch_writes_it(dtype):
    assert slot_dtype(torch_dtype(dtype)) == slot_dtype(str(torch_dtype(dtype))) == dtype


@pytest.mark.parametrize(
    "given, fact",
    [
        ("flot32", "names no dtype"),
        ("bfloat16", "names no dtype"),
        (torch.bfloat16, "names no dtype"),
        (3, "names no dtype"),
        ("M8[ns]", "no tensor holds"),
        ("U4", "no tensor holds"),
        ("O", "no tensor holds"),
        ("g", "no tensor holds"),
        ("f4,i4", "no tensor holds"),
    ],
)
def test_what_is_no_dtype_of_a_tensor_is_refused_with_those_that_are(given, fact):
    with pytest.raises(GeometryError, match=fact) as caught:
        slot_dtype(given)
    assert repr(given) in str(caught.value)
    assert "float32" in str(caught.value)
