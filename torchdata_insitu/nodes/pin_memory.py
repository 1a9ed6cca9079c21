"""Page-locks batches, so that the device can copy them while the host goes on."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torchdata.nodes import BaseNode

from torchdata_insitu.nodes.prefetcher import SOURCE_KEY, check_source_state, source_state

__all__ = ["PinMemory"]


class PinMemory(BaseNode["dict[str, Tensor]"]):
    """Batches in page-locked memory.

    Tensors in main memory that are not page-locked yet are copied into memory that is, inside
    dictionaries, lists and tuples too; everything else passes as it is. After a `GatherNode` with
    `pin_memory=True` nothing is left to copy but what batch transforms made.

    Without an accelerator batches pass through, with one warning, so that the same code runs on a
    laptop; torchdata's node of that name cannot be built there.

    Args:
        source: a node of batches.

    State:
        `{"source": ...}`, the state of the source.

    Threads:
        None of its own.

    Example:
        >>> import torch, warnings
        >>> import torchdata_insitu as tdi
        >>> from torchdata.nodes import IterableWrapper
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     next(tdi.PinMemory(IterableWrapper([{"x": torch.ones(2)}])))
        {'x': tensor([1., 1.])}
    """

    def __init__(self, source: BaseNode[dict[str, Tensor]]) -> None:
        """Stand on a node of batches; the accelerator is looked for at the first batch."""
        super().__init__()
        self.source = source
        self._pins: bool | None = None

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `StateError` unless `reset` could stand at a state."""
        check_source_state(state, self)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Hand the state of the source on."""
        super().reset(initial_state)
        self.source.reset(source_state(initial_state, self))

    def next(self) -> dict[str, Tensor]:
        """The next batch, page-locked where there is an accelerator."""
        batch: dict[str, Tensor] = next(self.source)
        if self._pins is None:
            self._pins = torch.accelerator.is_available()
            if not self._pins:
                msg = "PinMemory found no accelerator: batches stay in pageable memory"
                warnings.warn(msg, stacklevel=2)
        if not self._pins:
            return batch
        return {name: _page_locked(value) for name, value in batch.items()}

    def get_state(self) -> dict[str, Any]:
        """The state of the source."""
        return {SOURCE_KEY: self.source.state_dict()}


def _page_locked(value: Any) -> Any:
    if isinstance(value, Tensor):
        can_be = value.device.type == "cpu" and value.layout is torch.strided
        return value.pin_memory() if can_be and not value.is_pinned() else value
    if isinstance(value, dict):
        return {key: _page_locked(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_page_locked, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_page_locked, value))
    return value
