"""Units, dates and coordinates of a store, for the table and the figure. All of them optional."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import torchdata_insitu as tdi

SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


@dataclass(frozen=True)
class Labels:
    """What the numbers of a store are called."""

    units: dict[str, str]
    """Units by array; empty where the store names none."""
    axes: tuple[str, str]
    """Names of the two axes of a map."""
    coordinates: tuple[NDArray[Any] | None, NDArray[Any] | None]
    """Values along them, where the store has them."""
    dates: NDArray[Any] | None
    """Date of every sample, where the store has a time coordinate in days or shorter."""

    def date(self, sample: int) -> str:
        """Say when a sample was."""
        if self.dates is None:
            return f"sample {sample}"
        return str(self.dates[sample].astype("datetime64[m]")).replace("T", " ") + " UTC"


def read_labels(store: Any, arrays: dict[str, tdi.ArrayGeometry]) -> Labels:
    """Read the attributes and coordinates that a group of CF arrays has.

    Args:
        store: a Zarr store.
        arrays: arrays of it with the same dimensions.
    """
    array = next(iter(arrays.values()))
    node = zarr.open(store, mode="r")
    if isinstance(node, zarr.Array):
        return Labels({}, ("y", "x"), (None, None), None)
    attributes = {name: dict(node[a.path].attrs) for name, a in arrays.items()}
    y, x = (name or default for name, default in zip(array.dimension_names[-2:], "yx", strict=True))
    return Labels(
        units={name: str(found.get("units", "")) for name, found in attributes.items()},
        axes=(y, x),
        coordinates=(_coordinate(node, y), _coordinate(node, x)),
        dates=_dates(node, array.dimension_names[array.sample_axis]),
    )


def _coordinate(group: zarr.Group, name: str | None) -> NDArray[Any] | None:
    if not name or name not in group:
        return None
    array = group[name]
    return np.asarray(array[...]) if isinstance(array, zarr.Array) and array.ndim == 1 else None


def _dates(group: zarr.Group, name: str | None) -> NDArray[Any] | None:
    steps = _coordinate(group, name)
    if steps is None or name is None:
        return None
    words = str(group[name].attrs.get("units", "")).split(" since ")
    if len(words) != 2 or words[0] not in SECONDS:  # noqa: PLR2004, "hours since 1996-01-05"
        return None
    start = np.datetime64(words[1].strip().replace(" ", "T"), "s")
    dates: NDArray[Any] = start + (steps * SECONDS[words[0]]).astype("timedelta64[s]")
    return dates
