"""Ways to read a store, and loaders over it that have touched all the memory they need."""

import contextlib
import pathlib

import numpy as np
import obstore.store
from zarr.storage import ObjectStore

import torchdata_insitu as tdi
from torchdata_insitu.fetch import local_file_reader
from torchdata_insitu.fetch.read_waits import ReadWaits, ThreadTime
from torchdata_insitu.testing import CountingStore, make_store

N_SAMPLES = 64
FIELD = (128, 128)
BATCH_SIZE = 8
STORED = {"files": 8, "shards": 4}  # samples in a stored chunk
SHARD = 16
STORES = {"zstd": {}, "plain": {"codec": "none"}, "shards": {"shards": (SHARD, *FIELD)}}
PATHS = ("files", "plain files", "objects", "loop", "shard files", "shard objects", "shard loop")
# Where stored chunks of a shard come with one request.
WHOLE_SHARDS = ("shard objects", "shard loop")


def make_stores(tmp_path_factory):
    """Folders and memory, with values that no codec makes smaller: a copy of stored bytes shows."""
    rng = np.random.default_rng(0)
    values = {name: rng.random((N_SAMPLES, *FIELD), np.float32) for name in "ab"}
    made = {}
    for name, options in STORES.items():
        n_samples = STORED["shards" if name == "shards" else "files"]
        path = tmp_path_factory.mktemp(name)
        for kind, place in (("folder", path), ("memory", None)):
            made[name, kind] = make_store(values, chunks=(n_samples, *FIELD), path=place, **options)
    return made


def keep_files_fast(monkeypatch):
    """However busy the machine is: slow files get threads of their own."""
    monkeypatch.setattr(
        local_file_reader, "ReadWaits", lambda: ReadWaits(lambda: ThreadTime(0.0, 0))
    )


def store_of(stores, path):
    name = "shards" if "shard" in path else "plain" if "plain" in path else "zstd"
    if "loop" in path:
        return CountingStore(stores[name, "memory"])
    folder = stores[name, "folder"]
    return objects(pathlib.Path(folder.root)) if "objects" in path else folder


def objects(folder):
    store = obstore.store.MemoryStore()
    for file in folder.rglob("*"):
        if file.is_file():
            obstore.put(store, file.relative_to(folder).as_posix(), file.read_bytes())
    return ObjectStore(store, read_only=True)


def plain_views(store):
    return tdi.open_arrays(store, ["a", "b"])


def all_views(store):
    arrays = plain_views(store)
    a, b = arrays["a"], arrays["b"]
    return {"x": tdi.stack(a, b).window(-1, 0), "y": a.shift(4), "z": b}


@contextlib.contextmanager
def warm(store, views, **options):
    """A loader after epochs in which its consumer kept more batches than it ever will again."""
    options = {"batch_size": BATCH_SIZE, "block_chunks": 2, "seed": 1, **options}
    with tdi.build_loader(store, views, **options) as loader:
        for _ in range(2):
            clear(loader)
            assert len(list(loader)) >= 6
        clear(loader)
        yield loader


def clear(loader):
    loader.chain.pool_node.pool.clear()
