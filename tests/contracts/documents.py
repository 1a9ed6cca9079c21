"""Metadata documents of stores in memory, changed in place as other writers would have them."""

import json

import numpy as np
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import torchdata_insitu as tdi

PLENTY = 10**8


def key_of(name, zarr_format):
    """Key of the document of an array."""
    return f"{name}/{'.zarray' if zarr_format == 2 else 'zarr.json'}".lstrip("/")


def put(store, key, document):
    """Write a document: bytes as they are, text encoded, anything else as JSON."""
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    content = text.encode() if isinstance(text, str) else text
    sync(store.set(key, cpu.Buffer.from_bytes(content)))


def document_of(store, key):
    return json.loads(sync(store.get(key, default_buffer_prototype())).to_bytes())


def amend(store, key, **changes):
    """Change fields of a document; one that is set to `...` is taken out."""
    document = {**document_of(store, key), **changes}
    put(store, key, {name: value for name, value in document.items() if value is not ...})


def files_of(store):
    """Contents of a store in memory, by key."""
    return {key: buffer.to_bytes() for key, buffer in store._store_dict.items()}


def read_all(store, array, **options):
    """All samples of an array in order, and how many stored chunks were missing."""
    options = {"batch_size": 4, "budget_bytes": PLENTY, **options}
    with tdi.build_loader(store, {"x": array}, shuffle=False, **options) as loader:
        values = np.concatenate([batch["x"].numpy() for batch in loader])
        return values, loader.stats().missing.get(array.name, 0)
