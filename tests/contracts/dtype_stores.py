"""Stores of every dtype, and what a loader gives of them."""

import json

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BytesCodec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY

QUIET_WRITERS = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    # Zarr compares chunks that it writes with the fill value.
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal:RuntimeWarning"),
]
WRITERS = [(2, "<"), (2, ">"), (3, "<"), (3, ">")]
STRUCT = np.dtype([("u", "f4"), ("flag", "u1"), ("t", "M8[s]"), ("name", "U2"), ("n", "i8")])
# Whole fields, which are decoded in place; tiles; stored chunks that reach past the array.
SHAPE, LAYOUTS = (11, 4, 6), {"whole": (3, 4, 6), "tiled": (4, 3, 2), "clipped": (2, 9, 7)}


def written(values, layouts, zarr_format, byte_order="<", *, store=None, **options):
    """One array for each layout of chunks, in a byte order."""
    store = MemoryStore() if store is None else store
    zarr.open_group(store, mode="a", zarr_format=zarr_format)
    if zarr_format == 2:
        values = values.astype(values.dtype.newbyteorder(byte_order))
    elif values.dtype.itemsize > 1:
        options = {
            "serializer": BytesCodec(endian="big" if byte_order == ">" else "little"),
            **options,
        }
    for name, chunks in layouts.items():
        array = zarr.create_array(
            store,
            name=name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            zarr_format=zarr_format,
            **options,
        )
        array[...] = values
    return store


def whole(loader):
    """What a loader gives of each view, by anchor."""
    found = {}
    with loader:
        for batch in loader:
            for name, tensor in batch.items():
                found.setdefault(name, []).append(tensor)
    parts = {name: torch.cat(tensors).numpy() for name, tensors in found.items()}
    order = np.argsort(parts.pop("sample_index"), kind="stable")
    return {name: values[order] for name, values in parts.items()}


def read(store, names=None, *, pool=None, **options):
    """Values of each array through a loader."""
    arrays = tdi.open_arrays(store, names, **options)
    how = {"budget_bytes": PLENTY} if pool is None else {"pool": pool}
    loader = tdi.build_loader(store, arrays, batch_size=3, block_chunks=2, **how)
    return whole(loader)


def delete(store, key):
    sync(store.delete(key))
    return store


def document(store, name):
    """The metadata document of an array, and where it lies."""
    for key in (f"{name}/zarr.json", f"{name}/.zarray"):
        found = sync(store.get(key, default_buffer_prototype()))
        if found is not None:
            return key, json.loads(found.to_bytes())
    raise LookupError(name)


def rewrite(store, name, **changes):
    """Change the metadata document of an array."""
    key, found = document(store, name)
    found |= changes
    sync(store.set(key, cpu.Buffer.from_bytes(json.dumps(found).encode())))
    return store


def assert_same_bits(got, expected):
    expected = np.ascontiguousarray(expected, expected.dtype.newbyteorder("="))
    if expected.dtype.kind in "mM":
        expected = expected.view("i8")
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def all_bits(dtype, shape=SHAPE):
    """Values of every kind of bit pattern, signalling NaN and denormals among them."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(int.from_bytes(dtype.str.encode()))
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    values = raw.view(dtype)[..., 0].copy()
    if dtype.kind in "fc":
        part = np.dtype(f"f{dtype.itemsize // (2 if dtype.kind == 'c' else 1)}")
        parts = values.view(part).reshape(-1)
        bits = parts.view(f"u{part.itemsize}")
        exponent = np.array(np.inf, part).view(bits.dtype)
        minus_zero = np.array(-0.0, part).view(bits.dtype)
        bits[:6] = [exponent | 1, exponent | 3, exponent, 1, 0, minus_zero]
    if dtype.kind in "mM":
        values.reshape(-1)[3] = np.array("NaT", dtype)
    return values


def structured(zarr_format, order="<", **options):
    """A store of structured values, and these."""
    values = np.zeros(SHAPE, STRUCT)
    for name in ("u", "n"):
        values[name] = all_bits(STRUCT[name])
    values["flag"] = np.arange(values.size).reshape(SHAPE) % 200
    values["t"] = all_bits("M8[s]")
    if zarr_format == 2 and order == ">":
        # Each field in an order of its own.
        mixed = [("u", ">f4"), ("flag", "u1"), ("t", ">M8[s]"), ("name", "<U2"), ("n", "<i8")]
        values = values.astype(mixed)
        order = "="
    fill = np.array((1.5, 7, np.datetime64(9, "s"), "ab", -4), STRUCT)[()]
    options = {"fill_value": fill, **options}
    if zarr_format == 3:
        return written(values, LAYOUTS, zarr_format, order, **options), values
    # numcodecs takes no times among the fields: the same bytes are written as integers.
    fields = [(name, values.dtype[name].str) for name in values.dtype.names]
    as_integers = [(name, text.replace("M8[s]", "i8")) for name, text in fields]
    options["fill_value"] = np.array(fill).astype(values.dtype).view(as_integers)[()]
    store = written(values.view(as_integers), LAYOUTS, 2, order, **options)
    for name in LAYOUTS:
        rewrite(store, name, dtype=fields)
    return store, values
