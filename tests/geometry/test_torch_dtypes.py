import numpy as np
import pytest
import torch

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.torch_dtypes import holds, torch_dtype

NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("code", NUMBERS)
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
