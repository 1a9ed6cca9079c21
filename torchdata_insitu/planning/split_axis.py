"""What splits of one sample axis leave out, cut and let cross, given the windows of the views."""

import operator
import warnings
from collections.abc import Mapping
from typing import Literal

import numpy as np

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.chunk_grid import AxisChunks
from torchdata_insitu.geometry.view import View, array_offsets, as_views
from torchdata_insitu.planning.sample_ranges import (
    Ranges,
    as_ranges,
    clip,
    cut_on_chunks,
    n_common,
    union,
)
from torchdata_insitu.planning.split import Split, Splits
from torchdata_insitu.planning.whole_number import whole_number

type Gap = int | Literal["auto"]
type NamedRange = tuple[str, int, int]


class SplitAxis:
    """The sample axis that is split, and how far windows reach along it."""

    def __init__(self, views: Mapping[str, View | ArrayGeometry], gap: Gap) -> None:
        checked = as_views(views)
        self.arrays = list(array_offsets(checked))
        self.length = self.arrays[0].n_samples
        self.name = self.arrays[0].sample_axis_name
        low = min(view.min_offset for view in checked.values())
        high = max(view.max_offset for view in checked.values())
        self.span = high - low
        # Where an anchor must lie for every view to be inside the array.
        self.valid = max(0, -low), self.length - max(0, high)
        self.gap = self.span if gap == "auto" else whole_number('gap, unless "auto",', gap, least=0)

    def splits(
        self,
        ranges: list[NamedRange],
        names: list[str],
        *,
        edges: AxisChunks | None,
        may_lose_ranges: bool,
    ) -> Splits:
        """Leave the gap out of sorted ranges, and count what crosses and what is cut."""
        kept = _without_gap(ranges, self.gap, may_lose_ranges=may_lose_ranges)
        lost = set(names) - {name for name, _, _ in kept}
        if lost:
            msg = (
                f"the gap of {self.gap} samples leaves nothing of {', '.join(sorted(lost))}: give "
                "larger fractions, use contiguous=True, nearer offsets, or gap=0"
            )
            raise PlanError(msg)
        splits = self.as_splits(kept, names)
        crossing = sum(split.crossing for split in splits)
        if crossing:
            warnings.warn(
                f"the windows of {crossing} anchors reach into samples of another split "
                f"({', '.join(f'{split.name}: {split.crossing}' for split in splits)}): views span "
                f'{self.span + 1} samples and the gap is {self.gap}; use gap="auto"',
                stacklevel=3,
            )
        return Splits(splits, gap=self.gap, edges=edges)

    def as_splits(self, ranges: list[NamedRange], names: list[str]) -> list[Split]:
        """Splits of sorted ranges, in the order of the names."""
        own = {name: _of_split(ranges, name) for name in names}
        # Made first without counts: a split checks its ranges.
        Splits([self._split(name, pairs) for name, pairs in own.items()])
        anchors = {name: clip(as_ranges(pairs), *self.valid) for name, pairs in own.items()}
        reach = np.array([-self.span, self.span])
        splits = []
        for name, pairs in own.items():
            others = [near + reach for other, near in anchors.items() if other != name]
            near = union(np.concatenate([as_ranges([]), *others]))
            half_used = [_half_used(array.sample_chunks, as_ranges(pairs)) for array in self.arrays]
            splits.append(
                self._split(
                    name,
                    pairs,
                    crossing=n_common(anchors[name], near),
                    half_used=sum(half_used),
                )
            )
        return splits

    def _split(self, name: str, pairs: list[tuple[int, int]], **counts: int) -> Split:
        return Split(
            name=name, ranges=tuple(pairs), n_samples=self.length, axis=self.name, **counts
        )


def _of_split(ranges: list[NamedRange], name: str) -> list[tuple[int, int]]:
    return [(start, stop) for other, start, stop in ranges if other == name]


def _half_used(chunks: AxisChunks, ranges: Ranges) -> int:
    pieces = cut_on_chunks(chunks, ranges)
    numbers, places = np.unique(chunks.chunk_of(pieces[:, 0]), return_inverse=True)
    used = np.bincount(places, weights=pieces[:, 1] - pieces[:, 0])
    ends = np.minimum(chunks.starts(numbers + 1), chunks.length)
    return int((used < ends - chunks.starts(numbers)).sum())


def _without_gap(ranges: list[NamedRange], gap: int, *, may_lose_ranges: bool) -> list[NamedRange]:
    """Begin each range `gap` samples after the ranges of other splits before it."""
    if gap == 0:
        return ranges
    kept: list[NamedRange] = []
    ends: dict[str, int] = {}
    for name, start, stop in ranges:
        before, end = max(
            ((other, end) for other, end in ends.items() if other != name),
            key=operator.itemgetter(1),
            default=("", -gap),
        )
        first = max(start, end + gap)
        if first < stop:
            kept.append((name, first, stop))
            ends[name] = stop
        elif not may_lose_ranges:
            msg = (
                f"the gap of {gap} samples after split {before!r}, which ends at {end}, leaves "
                f"nothing of range ({start}, {stop}) of split {name!r}: make it longer, use nearer "
                "offsets, or gap=0"
            )
            raise PlanError(msg)
    return kept
