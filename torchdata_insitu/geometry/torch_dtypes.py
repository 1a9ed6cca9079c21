"""Which dtypes a tensor can hold."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from torchdata_insitu.errors import GeometryError

if TYPE_CHECKING:
    import torch

    type SlotDType = DTypeLike | torch.dtype
    """What a slot holds, as callers may name it."""

HELD = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
"""In native byte order, the only one that tensors have."""


def holds(dtype: np.dtype) -> bool:
    """Whether a tensor can hold a dtype as it is; big-endian numbers it cannot.

    Example:
        >>> holds(np.dtype("uint16")), holds(np.dtype(">f4")), holds(np.dtype("datetime64[ns]"))
        (True, False, False)
    """
    return dtype in HELD


def slot_dtype(given: "SlotDType") -> np.dtype:
    """A dtype as a caller may name it, in native byte order.

    Args:
        given: A numpy dtype or what names one, such as "float32"; a dtype of torch, or its text.

    Raises:
        GeometryError: It names no dtype, or one that no tensor holds.

    Example:
        >>> slot_dtype("float32"), slot_dtype(np.uint8), slot_dtype("torch.float16")
        (dtype('float32'), dtype('uint8'), dtype('float16'))
    """
    name: Any = str(given) if type(given).__module__.partition(".")[0] == "torch" else given
    if isinstance(name, str):
        name = name.removeprefix("torch.")
    dtype: np.dtype | None
    try:
        dtype = np.dtype(name).newbyteorder("=")
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    if dtype is None or not holds(dtype):
        what = "names no dtype of numpy" if dtype is None else "is a dtype that no tensor holds"
        raise GeometryError(
            f"dtype {given!r} {what}: give one of {', '.join(sorted(d.name for d in HELD))}"
        )
    return dtype


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
