"""The stores that are measured: two arrays of smooth float32 fields with noise, like ERA5's."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, ZstdCodec

_SAMPLES_AT_ONCE = 256
_NOISE_STEPS = 8


@dataclass(frozen=True)
class Layout:
    """Shape, chunks and codec of both arrays of a store."""

    shape: tuple[int, int, int]
    """Samples and field."""
    chunks: tuple[int, int, int]
    """Shape of a stored chunk."""
    codec: BytesBytesCodec | None
    """Compression; None for plain bytes."""


LAYOUTS = {
    "c1": Layout((512, 181, 360), (1, 181, 360), ZstdCodec(level=3)),
    "c8": Layout((1024, 181, 360), (8, 181, 360), ZstdCodec(level=3)),
    "c32t": Layout((1024, 181, 360), (32, 61, 120), ZstdCodec(level=3)),
    "c8b": Layout((1024, 181, 360), (8, 181, 360), BloscCodec(cname="lz4", shuffle="shuffle")),
    "raw8": Layout((1024, 181, 360), (8, 181, 360), None),
    "wb2": Layout((8192, 64, 32), (40, 64, 32), BloscCodec(cname="lz4", shuffle="shuffle")),
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
    path = folder / f"{name}.zarr"
    if path.exists():
        return path
    unfinished = folder / f"{name}.unfinished"
    group = zarr.create_group(unfinished, overwrite=True)
    rng = np.random.default_rng(0)
    for array_name in ("a", "b"):
        array = group.create_array(
            array_name,
            shape=layout.shape,
            chunks=layout.chunks,
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
