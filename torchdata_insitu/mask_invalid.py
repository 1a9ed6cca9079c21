"""Batches without the copies that fill up the last one of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["mask_invalid"]


def mask_invalid(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch without its copies and without `"valid"`.

    With `tail="exact"` and `"pad"`, all ranks get equally many batches, and a rank that has too few
    draws for the last one repeats one of them. The mask `"valid"` of shape `(B,)` says which rows
    are not copies. A batch without that mask has no copies and comes back as it is.

    Args:
        batch: tensors of shape `(B, ...)`, by name. What has no such first axis is handed on.

    Returns:
        The rows that are valid, which can be none. The tensors are those of `batch` where all are.

    Example:
        >>> import torch
        >>> batch = {"x": torch.tensor([5, 7, 7]), "valid": torch.tensor([True, True, False])}
        >>> mask_invalid(batch)
        {'x': tensor([5, 7])}
    """
    rest = dict(batch)
    valid = rest.pop("valid", None)
    if valid is None or bool(valid.all()):
        return rest
    n_rows = len(valid)
    return {
        name: value[valid]
        if isinstance(value, Tensor) and value.ndim and len(value) == n_rows
        else value
        for name, value in rest.items()
    }
