"""The draw space of plain samples: every draw is an anchor on the sample axis."""

import copy
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.chunk_grid import AxisChunks
from torchdata_insitu.geometry.view import View, array_offsets, as_views
from torchdata_insitu.planning.planning_grid import planning_edges
from torchdata_insitu.planning.run_lengths import RunLengths
from torchdata_insitu.planning.sample_ranges import (
    Ranges,
    as_ranges,
    clip,
    cut_on_chunks,
    first_samples,
    n_samples,
)
from torchdata_insitu.planning.split import Split

# Looked at in one go: a bound on the memory, at some 50 bytes for each.
_UNITS_AT_ONCE = 1 << 20


class AnchorSpace:
    """Anchors of a split at which every view can be read.

    An anchor is valid when each offset of each view lies inside the array. A unit is a cell of the
    planning grid, cut by the ranges of the split and by the valid anchors.

    Example:
        >>> import zarr
        >>> from torchdata_insitu.geometry.metadata import read_arrays
        >>> store = zarr.storage.MemoryStore()
        >>> _ = zarr.create_array(store, name="t2m", shape=(100, 4), chunks=(24, 4), dtype="f4")
        >>> t2m = read_arrays(store)["t2m"]
        >>> space = AnchorSpace({"x": t2m, "y": t2m.shift(6)})
        >>> space.unit_lengths().expand().tolist(), space.n_dropped_edges
        ([24, 24, 24, 22], 6)
        >>> space.chunks(np.array([0])).tolist()
        [[0, 0, 0], [0, 1, 0]]
    """

    kind = "anchor"
    n_columns = 1

    def __init__(
        self,
        views: Mapping[str, View | ArrayGeometry],
        split: Split | None = None,
        *,
        lanes: int = 1,
        budget_bytes: int | None = None,
    ) -> None:
        """Find the valid anchors.

        Args:
            views: What a batch holds.
            split: Samples to draw; None for all.
            lanes: As in `planning_edges`. Part of what decides the order: not the world size.
            budget_bytes: As in `planning_edges`. Part of what decides the order: not free memory.

        Raises:
            GeometryError: Views that cannot be drawn together.
            PlanError: A split of another axis length, no valid anchor in it, or an array of more
                chunks than a plan can list.
        """
        self.views = as_views(views)
        self.split = split
        by_array = array_offsets(self.views)
        self.arrays: tuple[ArrayGeometry, ...] = tuple(by_array)
        self.offsets: tuple[tuple[int, ...], ...] = tuple(by_array.values())
        length = self.arrays[0].n_samples
        ranges = as_ranges([(0, length)])
        if split is not None:
            if split.n_samples != length:
                msg = (
                    f"split {split.name!r} is for an axis of {split.n_samples} samples but array "
                    f"{self.arrays[0].name!r} has {length}: split these arrays, or choose arrays "
                    "of that length"
                )
                raise PlanError(msg)
            ranges = as_ranges(split.ranges)
        low = min(0, *(offset for offsets in self.offsets for offset in offsets))
        high = max(0, *(offset for offsets in self.offsets for offset in offsets))
        valid = clip(ranges, -low, length - high)
        self.n_dropped_edges = n_samples(ranges) - n_samples(valid)
        """Samples of the split that are no anchors, since a view would leave the array."""
        if len(valid) == 0:
            name = "the split" if split is None else f"split {split.name!r}"
            msg = (
                f"{name} has no valid anchor: its {n_samples(ranges)} samples from "
                f"{ranges[0, 0]} to {ranges[-1, 1]} all lie closer to an end of the {length} "
                f"samples than the offsets {low} to {high:+d} of the views reach"
            )
            raise PlanError(msg)
        self._edges = functools.partial(
            planning_edges, self.arrays, lanes=lanes, budget_bytes=budget_bytes
        )
        self._cut(valid)
        # Arrays that are chunked and read alike need the same chunks: found once for all of them.
        self._alike: dict[tuple[AxisChunks, tuple[int, ...]], list[int]] = {}
        for number, (array, offsets) in enumerate(by_array.items()):
            self._alike.setdefault((array.sample_chunks, offsets), []).append(number)

    def _cut(self, valid: Ranges) -> None:
        self._valid = valid
        self.grid = self._edges(ranges=valid)
        cells = cut_on_chunks(self.grid.edges, valid)
        self._starts, self._stops = np.ascontiguousarray(cells.T)
        self._lengths = RunLengths.encode(self._stops - self._starts)
        self._bounds: dict[int, tuple[int, ...]] = {}

    def first(self, n_draws: int) -> Self:
        """The space of the first draws in store order: what it was before the arrays grew.

        Where the last chunk was not full then, the last unit is as short as it was.
        """
        space = copy.copy(self)
        space._cut(first_samples(self._valid, n_draws))  # noqa: SLF001 - of this class
        return space

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(self._starts)

    @property
    def has_offsets(self) -> bool:
        """Whether any view reads another sample than the anchor."""
        return any(offsets != (0,) for offsets in self.offsets)

    @property
    def shard_units(self) -> int:
        """Units that lie in one shard, of the array where these are most; 1 without shards."""
        most = 1
        for array in self.arrays:
            if array.shards is not None:
                rows = min(array.shards.grid.axes[array.sample_axis].largest, array.n_samples)
                most = max(most, -(-rows // self.grid.edges.largest))
        return most

    @property
    def array_names(self) -> tuple[str, ...]:
        """Name of each array, with its store where two arrays have the same name.

        Where that does not tell them apart either, as when an array is read both decoded and as it
        is stored, they are numbered.
        """
        names = [array.name for array in self.arrays]
        full = [
            f"{array.store}:{name}" if array.store and names.count(name) > 1 else name
            for array, name in zip(self.arrays, names, strict=True)
        ]
        return tuple(
            f"{name}#{number}" if full.count(name) > 1 else name for number, name in enumerate(full)
        )

    @property
    def stored_per_chunk(self) -> tuple[int, ...]:
        """Stored chunks in one chunk of each array."""
        return tuple(array.stored_per_chunk for array in self.arrays)

    def unit_lengths(self) -> RunLengths:
        """Anchors in each unit."""
        return self._lengths

    def draws(self, unit: int, start: int, stop: int) -> NDArray[np.int64]:
        """Anchors `start ... stop - 1` of a unit, `(n, 1)`."""
        first = int(self._starts[unit])
        return np.arange(first + start, first + stop, dtype=np.int64)[:, None]

    def unit_chunks(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Chunks that each unit reads, as `DrawSpace.unit_chunks`."""
        return self._read(self._starts[units], self._stops[units])

    def chunks(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Distinct chunks that units read, `(n, 3)`, in the order of their first use."""
        return _distinct(self.unit_chunks(units)[1])

    def chunks_of_draws(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Distinct chunks that anchors read, `(n, 3)`, in the order of their first use."""
        return _distinct(self._read(draws[:, 0], draws[:, 0] + 1)[1])

    def chunks_bound(self, n_units: int) -> tuple[int, ...]:
        """Most chunks of each array that any `n_units` consecutive units read."""
        n_units = min(n_units, self.n_units)
        if n_units not in self._bounds:
            bounds = [0] * len(self.arrays)
            for (chunks, offsets), numbers in self._alike.items():
                bound = min(self._widest(chunks, offsets, n_units), chunks.n_chunks)
                if n_units > 1:
                    bound = min(bound, n_units * self.chunks_bound(1)[numbers[0]])
                for number in numbers:
                    bounds[number] = bound
            self._bounds[n_units] = tuple(bounds)
        return self._bounds[n_units]

    def digest(self) -> dict[str, str]:
        """Fingerprints of the units, the arrays and the offsets of the views."""
        numbers = {array: number for number, array in enumerate(self.arrays)}
        arrays = [
            [
                *(array.store, array.path, array.sample_axis, list(array.field_shape)),
                *(array.dtype.name, _packing(array)),
            ]
            for array in self.arrays
        ]
        views = [
            [name, [numbers[array] for array in view.arrays], list(view.offsets)]
            for name, view in self.views.items()
        ]
        gaps = self._starts.copy()
        gaps[1:] -= self._stops[:-1]
        return {
            "units": _digest([self._lengths.digest(), RunLengths.encode(gaps).digest()]),
            "arrays": _digest(arrays),
            "offsets": _digest(views),
        }

    def _widest(self, chunks: AxisChunks, offsets: tuple[int, ...], n_units: int) -> int:
        starts, stops = self._starts[: self.n_units - n_units + 1], self._stops[n_units - 1 :]
        pieces = [
            slice(first, first + _UNITS_AT_ONCE) for first in range(0, len(starts), _UNITS_AT_ONCE)
        ]
        return max(_most_read(chunks, offsets, starts[piece], stops[piece]) for piece in pieces)

    def _read(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Chunks of stretches of anchors: the stretch and `(array, sample_run, field_tile)`."""
        owners, rows = [], []
        for (chunks, offsets), numbers in self._alike.items():
            shifts = np.array(offsets, dtype=np.int64)
            first = chunks.chunk_of(starts[:, None] + shifts).ravel()
            n_runs = chunks.chunk_of(stops[:, None] + (shifts - 1)).ravel() - first + 1
            owner = np.repeat(np.arange(len(starts)), len(offsets))
            if (n_runs > 1).any():
                before = np.cumsum(n_runs) - n_runs
                owner = np.repeat(owner, n_runs)
                first = np.repeat(first - before, n_runs)
                first += np.arange(len(first))
            for number in numbers:
                row = np.zeros((len(first), 3), dtype=np.int64)
                row[:, 0] = number
                row[:, 1] = first
                owners.append(owner)
                rows.append(row)
        if len(rows) == 1:
            return owners[0], rows[0]
        owner = np.concatenate(owners)
        by_owner = np.argsort(owner, kind="stable")
        return owner[by_owner], np.concatenate(rows)[by_owner]


def _most_read(
    chunks: AxisChunks,
    offsets: tuple[int, ...],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> int:
    """Most chunks that any of these stretches of anchors reads."""
    n_read = np.zeros(len(starts), dtype=np.int64)
    covered = np.full(len(starts), -1, dtype=np.int64)
    # Offsets rise, so what one reads begins and ends no earlier than for the one before.
    for offset in offsets:
        first = np.maximum(chunks.chunk_of(starts + offset), covered + 1)
        last = chunks.chunk_of(stops + (offset - 1))
        n_read += np.maximum(last - first + 1, 0)
        covered = last
    return int(n_read.max())


def _distinct(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    n_arrays = int(chunks[:, 0].max(initial=0)) + 1
    codes = chunks[:, 1] * n_arrays + chunks[:, 0]
    first = np.unique(codes, return_index=True)[1]
    first.sort()
    return chunks[first]


def _packing(array: ArrayGeometry) -> list[Any] | None:
    cf, field, unit = array.cf, array.decoding.field, array.unit
    packing: list[Any] | None = None
    if cf is not None:
        packing = [[str(v) for v in cf.fill_values], cf.scale, cf.offset]
        if cf.is_other_sign:
            packing.append("other sign")
    # Of plain numbers the packing alone, as in the states of the first version.
    if field is None and unit is None:
        return packing
    # A moment and a duration of the same unit are the same integers.
    return [packing, field, unit and f"{array.decoding.numbers.kind}[{unit}]"]


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
