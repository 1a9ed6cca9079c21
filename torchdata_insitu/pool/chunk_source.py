"""What a resident chunk is: the identity under which chains share it."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    name: str
    rows: int
    field_shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    n_chunks: int
    n_stored: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, at least one so that empty fields do not divide by zero."""
        size = self.item_bytes
        for extent in self.field_shape:
            size *= extent
        return max(size, 1)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.rows * self.row_bytes
