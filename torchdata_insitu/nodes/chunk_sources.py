"""Which store an array is read from, and what a resident chunk of it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.store_like import Store
from torchdata_insitu.fetch.stores import store_id
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape
from torchdata_insitu.redaction import without_secrets_in


def check_stores(given: object) -> None:
    """Refuse what is neither a Zarr store nor a mapping of labels to them.

    Raises:
        PlanError: something else; a path or URL is shown without credentials.
    """
    stores = given.items() if isinstance(given, Mapping) else [(None, given)]
    for label, store in stores:
        if isinstance(store, Store):
            continue
        what = "store" if label is None else f"store {label!r}"
        kind = type(store).__name__
        if not isinstance(store, str | os.PathLike):
            shown = (
                f"of type {kind}"
                if type(store).__module__.startswith("obstore")
                else (f"{store!r} of type {kind}")
            )
            raise PlanError(f"{what} is {shown}: give a Zarr store, such as open_store returns")
        text = without_secrets_in(str(store))
        msg = (
            f"{what} is {text!r} of type {kind}, and a node takes a Zarr store: give "
            f"open_store({text!r})"
        )
        raise PlanError(msg)


def check_pool(given: object) -> None:
    """Refuse what is no pool.

    Raises:
        PlanError: something else.
    """
    if not isinstance(given, ChunkPool):
        msg = f"pool is {given!r} of type {type(given).__name__}: give a ChunkPool"
        raise PlanError(msg)


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
    decode = f"{array.metadata}|{array.sample_axis}|{array.decoding!r}"
    if on_missing == "raise":
        # Not satisfied by a chunk that another pass has filled.
        decode += "|raise"
    digest = hashlib.blake2b(decode.encode(), digest_size=8).hexdigest()
    return ChunkSource(store_id(store), array.path, digest)


def slot_shape(array: ArrayGeometry, name: str) -> SlotShape:
    """The memory of one chunk of an array, which messages call by `name`."""
    return SlotShape(
        name=name,
        rows=array.rows_per_chunk,
        field_shape=array.field_shape,
        dtype=array.dtype.str,
        item_bytes=array.dtype.itemsize,
        n_chunks=array.n_chunks,
        n_stored=array.stored_per_chunk,
    )
