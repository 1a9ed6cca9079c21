"""Arrays that other programs wrote: where they are, and what Zarr says is in them."""

import contextlib
import fnmatch
import functools
import itertools
import json
import math
import os
import posixpath
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from zarr.core.sync import sync
from zarr.storage import LocalStore, ZipStore

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FOLDERS = {
    "foreign-writers": 13,
    "conformance-thirdparty": 380,
    "s3-olci-xcube": 8,
    "idr-6001240-ngff05": 5,
    "ome-tubhiswt-5d": 6,
}
"""Arrays in each folder, the same array in a folder and in a zip file being two."""

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")


@dataclass(frozen=True)
class ForeignArray:
    """One array of a store that another program wrote."""

    store: Path
    """The outermost folder with metadata, or a zip file."""
    path: str
    """Inside the store, empty where the store is one array."""

    @property
    def name(self):
        return self.path or "data"

    @functools.cached_property
    def id(self):
        return posixpath.join(self.store.relative_to(DATA).as_posix(), self.path).rstrip("/")

    @functools.cached_property
    def document(self):
        """`zarr.json` or `.zarray`, the former where there are both."""
        return next(found for name in _DOCUMENTS[:2] if (found := self._json(name)) is not None)

    @functools.cached_property
    def attributes(self):
        if self.document["zarr_format"] == 3:
            return self.document.get("attributes", {})
        return self._json(".zattrs") or {}

    @property
    def shape(self):
        return tuple(self.document["shape"])

    @property
    def dimension_names(self):
        return self.document.get("dimension_names") or self.attributes.get("_ARRAY_DIMENSIONS")

    @property
    def sharding(self):
        """The settings of the sharding codec, None for an array without shards."""
        codec = (self.document.get("codecs") or [{}])[0]
        return codec["configuration"] if codec.get("name") == "sharding_indexed" else None

    @property
    def encoding(self):
        """What chunks are encoded and stored by, but for levels and sizes; as text."""
        fields = ("compressor", "filters", "order", "codecs")
        keys = ("zarr_format", "dimension_separator", "chunk_key_encoding")
        found = {name: self.document.get(name) for name in (*fields, *keys)}
        found["byte_order"] = str(self.document.get("dtype"))[0]
        return json.dumps(_without_sizes(found), sort_keys=True)

    def siblings(self):
        """Names of the other arrays of its group."""
        group, _, name = self.path.rpartition("/")
        paths = (array.path.rpartition("/") for array in _arrays_of(self.store))
        return [other for other_group, _, other in paths if other_group == group and other != name]

    def is_below_groups(self):
        """Whether a walk from the root of the store through groups comes to the array."""
        above = [""] if self.path else []
        for word in self.path.split("/")[:-1]:
            above.append(posixpath.join(above[-1], word))
        documents = ("zarr.json", ".zgroup")
        keys = _files(self.store).keys
        return all(any(posixpath.join(path, name) in keys for name in documents) for path in above)

    @functools.cache  # noqa: B019 - a few hundred arrays, as long as the tests run
    def n_absent(self):
        """Stored chunks that no file and no shard holds."""
        array = open_array(self)
        outer = array.shards or array.chunks
        grid = [range(math.ceil(n / step)) for n, step in zip(self.shape, outer, strict=True)]
        n_absent = 0
        for place in itertools.product(*grid):
            key = posixpath.join(self.path, array.metadata.encode_chunk_key(place))
            shard = _files(self.store).read(key)
            if array.shards is None:
                n_absent += shard is None
            else:
                n_absent += self._n_absent_in(shard, place, array.shards, array.chunks)
        return n_absent

    def _n_absent_in(self, shard, place, outer, inner):
        """Inner chunks that reach into the array, and that a shard does not hold."""
        counts = [n // step for n, step in zip(outer, inner, strict=True)]
        used = np.ones(counts, bool)
        for axis, (n, at, step, size) in enumerate(
            zip(self.shape, place, outer, inner, strict=True)
        ):
            starts = at * step + size * np.arange(counts[axis])
            used &= np.expand_dims(starts < n, [i for i in range(len(counts)) if i != axis])
        if shard is None:
            return int(used.sum())
        n_bytes = 16 * math.prod(counts)
        if any(codec["name"] == "crc32c" for codec in self.sharding["index_codecs"]):
            n_bytes += 4
        at_start = self.sharding.get("index_location") == "start"
        index = np.frombuffer(
            shard[:n_bytes] if at_start else shard[-n_bytes:], "<u8", used.size * 2
        )
        is_absent = (index.reshape(*counts, 2) == 2**64 - 1).all(-1)
        return int((used & is_absent).sum())

    def _json(self, name):
        text = _files(self.store).read(posixpath.join(self.path, name))
        return None if text is None else json.loads(text)


def _without_sizes(settings):
    if isinstance(settings, dict):
        sizes = {"level", "clevel", "blocksize", "typesize", "chunk_shape", "preset"}
        return {key: _without_sizes(settings[key]) for key in settings.keys() - sizes}
    return [_without_sizes(each) for each in settings] if isinstance(settings, list) else settings


@functools.cache
def foreign_arrays(folder=None):
    """Every array below one of the folders, or below all of them, in a fixed order."""
    if folder is None:
        return [array for each in FOLDERS for array in foreign_arrays(each)]
    return [array for store in foreign_stores(folder) for array in _arrays_of(store)]


@functools.cache
def _arrays_of(store):
    found = []
    keys = _files(store).keys
    for key in sorted(keys):
        path, _, name = key.rpartition("/")
        array = ForeignArray(store, path)
        if name == ".zarray" and posixpath.join(path, "zarr.json") not in keys:
            found.append(array)
        if name == "zarr.json" and array.document.get("node_type") == "array":
            found.append(array)
    return found


@functools.cache
def foreign_stores(folder):
    """The outermost folders with metadata, and the zip files; sorted."""
    stores = set()
    for path in sorted((DATA / folder).rglob("*")):
        if path.suffix == ".zip":
            stores.add(path)
        elif path.name in _DOCUMENTS and not stores.intersection(path.parent.parents):
            stores.add(path.parent)
    outermost = [store for store in stores if not stores.intersection(store.parents)]
    return sorted(outermost)


@functools.cache
def matching(pattern):
    """Arrays whose id a pattern of the shell matches."""
    return [array for array in foreign_arrays() if fnmatch.fnmatchcase(array.id, pattern)]


def foreign(id_):
    """The array of that id."""
    (array,) = (array for array in foreign_arrays() if array.id == id_)
    return array


@functools.cache
def zarr_store(path):
    """One store for all who ask; a zip file is open until `zip_files_open` ends."""
    if path.suffix == ".zip":
        return sync(ZipStore.open(path, mode="r"))
    return LocalStore(path, read_only=True)


@contextlib.contextmanager
def zip_files_open():
    """Open every zip file, which takes longer than most arrays take to be read."""
    zips = [path for folder in FOLDERS for path in foreign_stores(folder) if path.suffix == ".zip"]
    opened = [zarr_store(path) for path in zips]
    yield
    zarr_store.cache_clear()
    open_array.cache_clear()
    for store in opened:
        store.close()


@functools.lru_cache(maxsize=8)
def open_array(array):
    """The array as plain Zarr opens it."""
    # Some arrays have metadata of both formats.
    options = {"mode": "r", "zarr_format": array.document["zarr_format"]}
    return zarr.open_array(zarr_store(array.store), path=array.path, **options)


@functools.lru_cache(maxsize=4)
def zarr_values(array):
    """All values as plain Zarr reads them, in C order and native bytes; time as its number."""
    values = np.ascontiguousarray(open_array(array)[...])
    if not values.dtype.isnative:
        values = values.byteswap().view(values.dtype.newbyteorder("="))
    return values.view("i8") if values.dtype.kind in "mM" else values


class _Files:
    """The files of a folder or of a zip file."""

    def __init__(self, place):
        self._place = place
        self._unzipped = {}
        if place.suffix == ".zip":
            with zipfile.ZipFile(place) as archive:
                self._unzipped = {name: archive.read(name) for name in archive.namelist()}
            self.keys = frozenset(self._unzipped)
        else:
            self.keys = frozenset(
                os.path.join(folder, name)[len(str(place)) + 1 :]  # noqa: PTH118 - many, and fast
                for folder, _, names in os.walk(place)
                for name in names
            )

    def read(self, key):
        if key not in self.keys:
            return None
        return self._unzipped[key] if self._unzipped else (self._place / key).read_bytes()


_files = functools.cache(_Files)
