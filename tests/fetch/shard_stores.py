"""Stores of shards whose every byte a test can change, whatever reads them."""

import contextlib
import struct

import google_crc32c
import numpy as np
import obstore.store
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from tests.small_loaders import eventually
from torchdata_insitu.fetch import local_file_reader
from torchdata_insitu.fetch.limiter import limiter_of
from torchdata_insitu.fetch.read_waits import ReadWaits
from torchdata_insitu.fetch.stores import open_store
from torchdata_insitu.testing import CountingStore, FaultServer, make_store

PLACES = ("folder", "slow folder", "memory", "counted", "obstore", "http")
NOWHERE = 2**64 - 1


def sharded(shape, chunks, shards, *, codec="zstd", checksum=True, index="end", **options):
    """A store in memory that holds the array "t" in shards."""
    codecs = [BytesCodec()] + ([ZstdCodec(level=1)] if codec == "zstd" else [])
    sharding = ShardingCodec(
        chunk_shape=chunks,
        codecs=codecs,
        index_codecs=[BytesCodec(), Crc32cCodec()] if checksum else [BytesCodec()],
        index_location=index,
    )
    # The codec is given as it is, so that the shard is what Zarr takes for the chunk.
    return make_store(
        {"t": shape}, chunks=shards, codec="none", serializer=sharding, filters=None, **options
    )


def files_of(store):
    """Contents by key, in a mapping of its own."""
    prototype = default_buffer_prototype()

    async def contents():
        keys = [key async for key in store.list()]
        return {key: (await store.get(key, prototype)).to_bytes() for key in keys}

    return sync(contents())


class Index:
    """The index at the end of a shard, or at its beginning, to be read and changed."""

    def __init__(self, n_entries, *, checksum=True, first=False):
        self.n_entries = n_entries
        self.checksum = checksum
        self.first = first
        self.n_bytes = 16 * n_entries + 4 * checksum

    def of(self, shard):
        encoded = shard[: self.n_bytes] if self.first else shard[-self.n_bytes :]
        flat = struct.unpack(f"<{2 * self.n_entries}Q", encoded[: 16 * self.n_entries])
        return [list(flat[i : i + 2]) for i in range(0, len(flat), 2)]

    def put(self, shard, entries):
        """The shard with other entries, and the checksum that belongs to them."""
        encoded = struct.pack(f"<{2 * self.n_entries}Q", *[n for pair in entries for n in pair])
        if self.checksum:
            encoded += google_crc32c.value(encoded).to_bytes(4, "little")
        return encoded + shard[self.n_bytes :] if self.first else shard[: -self.n_bytes] + encoded

    def changed(self, shard, entry, pair):
        entries = self.of(shard)
        entries[entry] = list(pair)
        return self.put(shard, entries)

    def reversed(self, shard):
        """The same stored chunks in the other order."""
        entries = self.of(shard)
        begin = self.n_bytes if self.first else 0
        pieces, moved = [], [[NOWHERE, NOWHERE] for _ in entries]
        for number in reversed(range(self.n_entries)):
            start, size = entries[number]
            if start != NOWHERE:
                moved[number] = [begin, size]
                pieces.append(shard[start : start + size])
                begin += size
        room = bytes(self.n_bytes)
        body = b"".join(pieces)
        return self.put(room + body if self.first else body + room, moved)


class Place:
    """Where the files of a store are, and the store that is read."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.folder = folder
        self.server = None
        self.files = {}
        self.memory = obstore.store.MemoryStore() if kind == "obstore" else None
        self.zarr_memory = MemoryStore() if kind in ("memory", "counted") else None
        self.store = None

    def fill(self, source, *, ranges=True):
        """Take over the files of a store, and return the store to read them from."""
        for key, content in files_of(source).items():
            self.put(key, content)
        if self.kind == "http":
            self.server = FaultServer(self.files, ranges=ranges)
            self.server.up()
            self.store = open_store(self.server.url, retry_config={"max_retries": 0})
        elif self.kind == "obstore":
            self.store = ObjectStore(self.memory, read_only=True)
        elif self.kind == "memory":
            self.store = self.zarr_memory
        elif self.kind == "counted":
            self.store = CountingStore(self.zarr_memory)
        else:
            self.store = LocalStore(self.folder)
        return self.store

    def put(self, key, content):
        self.files[key] = content
        if self.memory is not None:
            obstore.put(self.memory, key, content)
        elif self.zarr_memory is not None:
            buffer = default_buffer_prototype().buffer.from_bytes(content)
            sync(self.zarr_memory.set(key, buffer))
        elif self.kind != "http":
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another file under the name, as a writer does that others may read beside.
            fresh = path.with_name(path.name + ".new")
            fresh.write_bytes(content)
            fresh.replace(path)

    def change(self, key, change):
        self.put(key, change(self.files[key]))

    def remove(self, key):
        del self.files[key]
        if self.memory is not None:
            obstore.delete(self.memory, key)
        elif self.zarr_memory is not None:
            sync(self.zarr_memory.delete(key))
        elif self.kind != "http":
            (self.folder / key).unlink()

    def close(self):
        if self.server is not None:
            self.server.close()


@contextlib.contextmanager
def place_of(kind, folder, monkeypatch):
    """A place; where its name says so, files answer slowly from the beginning."""
    if kind == "slow folder":
        monkeypatch.setattr(local_file_reader, "ReadWaits", _Slow)
    place = Place(kind, folder)
    try:
        yield place
    finally:
        place.close()


class _Slow(ReadWaits):
    def __init__(self):
        super().__init__()
        self.is_slow = True

    def _judge(self, waits):
        """Stay as it is."""


def check_at_rest(store):
    """Nothing of a store is under way any more; call it while its fetcher lives."""
    limiter = limiter_of(store)
    eventually(
        lambda: not (limiter._permits or limiter.n_inflight or limiter.n_bytes or limiter._n_begun)
    )
    assert not limiter._waiting


def values_of(source):
    """What Zarr reads."""
    return np.asarray(zarr.open_array(source, path="t", mode="r")[...])
