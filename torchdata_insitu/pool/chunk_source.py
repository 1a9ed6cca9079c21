"""What a resident chunk is: the identity under which chains share it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["ChunkSource", "SlotShape"]


class ChunkSource(NamedTuple):
    """Where the rows of a chunk come from and what was done to them.

    Two chains share a resident chunk only when their sources are equal in every field, so whatever
    changes a decoded value has to be part of one. A tuple, whose hash is not Python: an interrupt
    cannot come into the middle of a dictionary's work.

    Attributes:
        store_id: the `dataset_id` given to `open_store`, else a token of the store object.
        array: path of the array inside its store.
        decode: digest of everything that turns stored bytes into rows (codecs, data type, CF
            packing, sample axis).
        region: what is selected on the field axes; empty for the whole field.
        transforms: fingerprints of the chunk transforms, in order.
    """

    store_id: str
    array: str
    decode: str
    region: str = ""
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotShape:
    """The memory one chunk of a source takes.

    Attributes:
        name: name of the array, for messages.
        rows: rows of the longest chunk along the sample axis.
        field_shape: shape of one row.
        dtype: NumPy's string of the native data type, `"<f4"`.
        item_bytes: bytes of one value.
        n_chunks: chunks the source has; no arena needs more slots.
        n_stored: stored chunks that make up one chunk.
        row_bytes: bytes of one row, at least one so that empty fields do not divide by zero.
        slot_bytes: bytes of one slot.
    """

    name: str
    rows: int
    field_shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    n_chunks: int
    n_stored: int = 1
    row_bytes: int = field(init=False)
    slot_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Work the sizes out once: they are asked for with every chunk."""
        row_bytes = max(self.item_bytes * math.prod(self.field_shape), 1)
        object.__setattr__(self, "row_bytes", row_bytes)
        object.__setattr__(self, "slot_bytes", self.rows * row_bytes)
