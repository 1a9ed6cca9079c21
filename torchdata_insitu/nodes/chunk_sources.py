"""Which store an array is read from, and what a resident chunk of it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.store_like import Store
from torchdata_insitu.fetch.stores import store_id
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape


def store_of(store: Store | Mapping[str, Store], array: ArrayGeometry) -> Store:
    """The store that an array is read from.

    Args:
        store: one store, or one for each label.
        array: whose label it is.

    Raises:
        PlanError: no store has the label.
    """
    if not isinstance(store, Mapping):
        return store
    if array.store is None or array.store not in store:
        msg = (
            f"array {array.name!r} is of store {array.store!r}, but the stores given are "
            f"{sorted(store)}: open it with open_arrays(..., store=...) under one of these names"
        )
        raise PlanError(msg)
    return store[array.store]


def chunk_source(array: ArrayGeometry, store: Store, on_missing: str) -> ChunkSource:
    """What the chunks of an array are: passes with an equal one share them.

    Args:
        array: the array.
        store: the store it is read from.
        on_missing: what a missing chunk means to the pass.
    """
    decode = f"{array.metadata}|{array.sample_axis}|{array.cf!r}|{array.dtype.str}"
    if on_missing == "raise":
        # Not satisfied by a chunk that another pass has filled.
        decode += "|raise"
    digest = hashlib.blake2b(decode.encode(), digest_size=8).hexdigest()
    return ChunkSource(store_id(store), array.path, digest)


def slot_shape(array: ArrayGeometry) -> SlotShape:
    """The memory of one chunk of an array."""
    return SlotShape(
        name=array.name,
        rows=array.rows_per_chunk,
        field_shape=array.field_shape,
        dtype=array.dtype.str,
        item_bytes=array.dtype.itemsize,
        n_chunks=array.n_chunks,
    )
