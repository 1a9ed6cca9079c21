"""Which dtypes a tensor can hold."""

from typing import TYPE_CHECKING

import numpy as np

from torchdata_insitu.errors import GeometryError

if TYPE_CHECKING:
    import torch

_HELD = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


def holds(dtype: np.dtype) -> bool:
    """Whether a tensor can hold a dtype as it is; big-endian numbers it cannot.

    Example:
        >>> holds(np.dtype("uint16")), holds(np.dtype(">f4")), holds(np.dtype("datetime64[ns]"))
        (True, False, False)
    """
    return dtype in _HELD


def torch_dtype(dtype: np.dtype) -> "torch.dtype":
    """The dtype of the tensor that shares memory with an array of this dtype.

    Raises:
        GeometryError: No tensor holds the dtype.

    Example:
        >>> torch_dtype(np.dtype("complex64"))
        torch.complex64
    """
    if not holds(dtype):
        raise GeometryError(
            f"no tensor holds dtype {dtype}: convert the array to a number in native byte order"
        )
    # Geometry and planning are used without torch, whose import takes seconds.
    import torch

    result = getattr(torch, dtype.name)
    if not isinstance(result, torch.dtype):
        raise GeometryError(f"torch has no dtype for {dtype}")
    return result
