"""One store for one case, written by Zarr, and what its arrays hold."""

import contextlib
import json
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import zarr
from zarr.core.buffer import cpu
from zarr.errors import ZarrUserWarning
from zarr.storage import LocalStore, MemoryStore

import torchdata_insitu as tdi
from tests.contracts.generated.cases import Case
from tests.contracts.generated.codec_arguments import codec_arguments, sharded, stored_dtype
from tests.contracts.generated.layout import Layout, layouts
from tests.contracts.generated.values import fill_value, payload_json, slot_dtype, written_values
from torchdata_insitu.testing import CountingStore


@dataclass(frozen=True)
class WrittenArray:
    """One array as it was written."""

    layout: Layout
    expected: np.ndarray
    """What batches hold, in Zarr's axis order and native byte order."""
    missing: frozenset[tuple[int, ...]]
    """Stored chunks that are not there."""
    keys: dict[tuple[int, ...], str]
    """Key of each stored chunk, or of its shard."""

    @property
    def name(self) -> str:
        return self.layout.name


@dataclass(frozen=True)
class WrittenStore:
    """The keys of a case and what they mean."""

    arrays: list[WrittenArray]
    keys: dict[str, bytes]

    def in_memory(self) -> MemoryStore:
        """A store of these keys that can be written."""
        return MemoryStore({k: cpu.Buffer.from_bytes(data) for k, data in self.keys.items()})

    def to_folder(self, folder: Path) -> Path:
        """Write the keys as files below a folder."""
        for key, data in self.keys.items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    @contextlib.contextmanager
    def opened(self, kind: str, folder: Path) -> Iterator[Any]:
        """The keys as the kind of store that a case is about."""
        match kind:
            case "memory":
                yield self.in_memory()
            case "counting":
                yield CountingStore(self.in_memory())
            case "path":
                yield str(self.to_folder(folder / "store.zarr"))
            case "folder":
                yield LocalStore(self.to_folder(folder / "store.zarr"), read_only=True)
            case "obstore":
                prefix = self.to_folder(folder / "store.zarr")
                yield tdi.open_store(obstore.store.LocalStore(prefix))
            case _:
                path = folder / "store.zip"
                with zipfile.ZipFile(path, "w") as archive:
                    for key, data in self.keys.items():
                        archive.writestr(key, data)
                store = tdi.open_store(path)
                yield store
                store.close()


@contextlib.contextmanager
def all_of_zarr() -> Iterator[None]:
    """Let Zarr write and read rectilinear grids too, which it does only when told."""
    with zarr.config.set({"array.rectilinear_chunks": True}), no_advice():
        yield


@contextlib.contextmanager
def no_advice() -> Iterator[None]:
    """Without what Zarr says to whoever opens shards that have a codec around them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*disables partial reads", ZarrUserWarning)
        yield


def write_store(case: Case) -> WrittenStore:
    """Write the arrays of a case."""
    buffers: dict[str, Any] = {}
    store = MemoryStore(buffers)
    if case.names != "root":
        zarr.create_group(store, zarr_format=case.format)
    first, *others = layouts(case)
    arrays = [_write_first(case, first, store, buffers)]
    arrays += [_write_other(case, layout, store) for layout in others]
    return WrittenStore(arrays, {key: buffer.to_bytes() for key, buffer in buffers.items()})


def _write_first(
    case: Case, layout: Layout, store: MemoryStore, buffers: dict[str, Any]
) -> WrittenArray:
    dtype = np.dtype(case.dtype)
    values = written_values(case, dtype, layout.shape, "values")
    fill = fill_value(case, dtype)
    missing = _missing(case, layout)
    codecs = codec_arguments(case, dtype)
    if layout.inner is not None:
        codecs = sharded(codecs, case, layout.inner)
    family, _, separator = case.keys.rpartition(" ")
    key_family = family or ("v2" if case.format == 2 else "default")
    with all_of_zarr():
        array = zarr.create_array(
            store,
            name=layout.path or None,
            shape=layout.shape,
            dtype=stored_dtype(case, dtype),
            chunks=layout.key_chunks,
            fill_value={"null": None, "payload": 0}.get(case.fill, fill[()]),
            zarr_format=case.format,
            chunk_key_encoding={"name": key_family, "separator": separator},
            config={"write_empty_chunks": True},
            **codecs,
        )
        keys = {coordinates: _key(array, layout, coordinates) for coordinates in layout.coordinates}
        if layout.is_sharded and missing:
            for coordinates in layout.coordinates:
                if coordinates not in missing:
                    region = layout.region(coordinates)
                    array[region] = values[region]
        else:
            array[...] = values
    expected = values.copy()
    for coordinates in missing:
        expected[layout.region(coordinates)] = fill
        if not layout.is_sharded:
            del buffers[keys[coordinates]]
    if case.fill == "payload":
        _patch(buffers, layout.path, "fill_value", payload_json(dtype))
    return WrittenArray(layout, expected.view(slot_dtype(dtype)), missing, keys)


def _write_other(case: Case, layout: Layout, store: MemoryStore) -> WrittenArray:
    """A plain array: of the same dtype where it is stacked with the first."""
    dtype = np.dtype(case.dtype if case.view == "stack" else "f4")
    values = written_values(case, dtype, layout.shape, "other values")
    array = zarr.create_array(
        store,
        name=layout.path,
        shape=layout.shape,
        dtype=dtype,
        chunks=layout.key_chunks,
        zarr_format=case.format,
        config={"write_empty_chunks": True},
    )
    array[...] = values
    keys = {coordinates: _key(array, layout, coordinates) for coordinates in layout.coordinates}
    return WrittenArray(layout, values.view(slot_dtype(dtype)), frozenset(), keys)


def _missing(case: Case, layout: Layout) -> frozenset[tuple[int, ...]]:
    """Stored chunks to leave out, one at least unless the case is about none."""
    rng = case.rng("missing")
    found = layout.coordinates
    match case.missing:
        case "none":
            left_out = []
        case "some":
            left_out = rng.sample(found, max(1, len(found) // 3))
        case "first":
            left_out = [c for c in found if c[layout.sample_axis] == 0]
        case "all but one":
            left_out = rng.sample(found, max(1, len(found) - 1))
        case _:
            left_out = found
    return frozenset(left_out)


def _key(array: zarr.Array, layout: Layout, coordinates: tuple[int, ...]) -> str:
    prefix = f"{layout.path}/" if layout.path else ""
    return prefix + array.metadata.encode_chunk_key(layout.key_coordinates(coordinates))


def _patch(buffers: dict[str, Any], path: str, name: str, value: object) -> None:
    """Change one item of a document of format 3."""
    key = f"{path}/zarr.json" if path else "zarr.json"
    document = json.loads(buffers[key].to_bytes())
    document[name] = value
    buffers[key] = cpu.Buffer.from_bytes(json.dumps(document).encode())
