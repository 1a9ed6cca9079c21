"""The stores that are measured: two arrays of smooth float32 fields with noise, like ERA5's."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, ZstdCodec

_SAMPLES_AT_ONCE = 256
_NOISE_STEPS = 8
_ZSTD = ZstdCodec(level=3)
_LZ4 = BloscCodec(cname="lz4", shuffle="shuffle")


@dataclass(frozen=True)
class Layout:
    """Shape, chunks and codec of both arrays of a store, and how they are read."""

    shape: tuple[int, int, int]
    """Samples and field."""
    chunks: tuple[int, int, int]
    """Shape of a stored chunk."""
    codec: BytesBytesCodec | None
    """Compression; None for plain bytes."""
    shards: tuple[int, int, int] | None = None
    """Shape of a shard; None where each stored chunk has a key of its own."""
    offsets: tuple[int, ...] = (0,)
    """What a draw reads of each array, from its anchor."""
    store: str | None = None
    """The layout whose store is read; None for one of its own."""


LAYOUTS = {
    "c1": Layout((512, 181, 360), (1, 181, 360), _ZSTD),
    "c8": Layout((1024, 181, 360), (8, 181, 360), _ZSTD),
    "c32": Layout((1024, 181, 360), (32, 181, 360), _ZSTD),
    "c32t": Layout((1024, 181, 360), (32, 61, 120), _ZSTD),
    "c8b": Layout((1024, 181, 360), (8, 181, 360), _LZ4),
    "raw8": Layout((1024, 181, 360), (8, 181, 360), None),
    "wb2": Layout((8192, 64, 32), (40, 64, 32), _LZ4),
    "arco": Layout((128, 721, 1440), (1, 721, 1440), _LZ4),
    "sh": Layout((1024, 181, 360), (1, 181, 360), _ZSTD, shards=(64, 181, 360)),
    "win": Layout((1024, 181, 360), (8, 181, 360), _ZSTD, offsets=(0, 4, 24), store="c8"),
}


def make_layout(name: str, folder: Path) -> Path:
    """Write the store of a layout below a folder, unless it is there.

    Args:
        name: One of `LAYOUTS`.
        folder: Where stores are kept between runs.

    Returns:
        The path of the store.
    """
    layout = LAYOUTS[name]
    return write_store(layout, folder / f"{layout.store or name}.zarr")


def make_small_layout(name: str, folder: Path) -> Path:
    """The same with as few samples as two stored chunks or shards have, to warm up on."""
    layout = LAYOUTS[name]
    n_samples = 2 * (layout.shards or layout.chunks)[0] + max(layout.offsets)
    small = replace(layout, shape=(n_samples, *layout.shape[1:]))
    return write_store(small, folder / f"{name}-small.zarr")


def write_store(layout: Layout, path: Path) -> Path:
    """Write the store of a layout to a path, unless it is there; returns the path."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    group = zarr.create_group(unfinished, overwrite=True)
    rng = np.random.default_rng(0)
    for array_name in ("a", "b"):
        array = group.create_array(
            array_name,
            shape=layout.shape,
            chunks=layout.chunks,
            shards=layout.shards,
            dtype="float32",
            compressors=None if layout.codec is None else [layout.codec],
        )
        base = np.cumsum(rng.standard_normal(layout.shape[1:]), axis=0)
        for start in range(0, layout.shape[0], _SAMPLES_AT_ONCE):
            stop = min(start + _SAMPLES_AT_ONCE, layout.shape[0])
            noise = rng.standard_normal((stop - start, *layout.shape[1:]))
            # Rounded, since packed archives have few distinct values and compress accordingly.
            rounded = np.round(noise * _NOISE_STEPS) / _NOISE_STEPS
            array[start:stop] = (base + 0.1 * rounded).astype("float32")
    unfinished.rename(path)
    return path
