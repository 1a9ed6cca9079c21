"""A split and a set of splits: which samples belong to training, validation and test."""

import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, override

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.chunk_grid import AxisChunks

_FORMAT = "torchdata_insitu.splits"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Split:
    """Sorted half-open ranges of samples along one axis.

    Raises:
        PlanError: No range, or ranges that are empty, overlap, are out of order or leave the axis.

    Example:
        >>> train = Split(name="train", ranges=((0, 60), (80, 100)), n_samples=100, axis="time")
        >>> train.size
        80
    """

    name: str
    ranges: tuple[tuple[int, int], ...]
    """`(start, stop)` of samples."""
    n_samples: int
    """Length of the sample axis; the split fits every array of that length."""
    axis: str | None = None
    """Dimension name of the sample axis, None where the store has none."""
    crossing: int = 0
    """Anchors whose window shares samples with a window of another split."""
    half_used: int = 0
    """Chunks, over all arrays, of which the split uses a part: at a range border inside a chunk."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        try:
            pairs = [(operator.index(start), operator.index(stop)) for start, stop in self.ranges]
        except (TypeError, ValueError):
            msg = (
                f"ranges {self.ranges!r} of split {self.name!r}: expected (start, stop) in samples"
            )
            raise PlanError(msg) from None
        object.__setattr__(self, "ranges", tuple(pairs))
        if not self.ranges:
            msg = f"split {self.name!r} has no range: give at least one (start, stop)"
            raise PlanError(msg)
        end = 0
        for start, stop in self.ranges:
            if not 0 <= start < stop <= self.n_samples:
                msg = (
                    f"range ({start}, {stop}) of split {self.name!r} is empty or not within the "
                    f"{self.n_samples} samples of the axis"
                )
                raise PlanError(msg)
            if start < end:
                msg = (
                    f"range ({start}, {stop}) of split {self.name!r} begins before the end {end} "
                    "of the one before it: ranges are sorted and do not overlap"
                )
                raise PlanError(msg)
            end = stop

    @property
    def size(self) -> int:
        """Samples in the split."""
        return sum(stop - start for start, stop in self.ranges)


class Splits(Mapping[str, Split]):
    """Splits of one sample axis by name, as `split_by_chunk` and `split_by_range` make them.

    Example:
        >>> splits = Splits(
        ...     [Split("train", ((0, 80),), 100), Split("test", ((84, 100),), 100)], gap=4
        ... )
        >>> list(splits), splits["test"].size
        (['train', 'test'], 16)
        >>> Splits.from_json(splits.to_json()) == splits
        True
    """

    def __init__(
        self,
        splits: list[Split],
        *,
        gap: int = 0,
        edges: AxisChunks | None = None,
    ) -> None:
        """Hold splits of one axis.

        Args:
            splits: With distinct names, over the same axis, without common samples.
            gap: Samples left out between splits.
            edges: The cells they were cut on; None for exact ranges.

        Raises:
            PlanError: No split, two of one name, two axes, or common samples.
        """
        self._splits = {split.name: split for split in splits}
        self.gap = gap
        self.edges = edges
        if not splits or len(self._splits) != len(splits):
            names = [split.name for split in splits]
            msg = f"splits need distinct names, at least one: {names}"
            raise PlanError(msg)
        first = splits[0]
        for split in splits[1:]:
            if (split.n_samples, split.axis) != (first.n_samples, first.axis):
                msg = (
                    f"split {first.name!r} is over {first.n_samples} samples of axis "
                    f"{first.axis!r} but split {split.name!r} over {split.n_samples} of axis "
                    f"{split.axis!r}"
                )
                raise PlanError(msg)
        _check_disjoint(splits)

    @property
    def n_samples(self) -> int:
        """Length of the sample axis."""
        return next(iter(self._splits.values())).n_samples

    @property
    def axis(self) -> str | None:
        """Dimension name of the sample axis, None where the store has none."""
        return next(iter(self._splits.values())).axis

    @override
    def __getitem__(self, name: str) -> Split:
        if name not in self._splits:
            msg = f"there is no split {name!r}: there are {list(self._splits)}"
            raise KeyError(msg)
        return self._splits[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    @override
    def __len__(self) -> int:
        return len(self._splits)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Splits):
            return NotImplemented
        return self._state() == other._state()

    @override
    def __hash__(self) -> int:
        return hash(tuple(self._splits.values()))

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{split.name}: {split.size}" for split in self.values())
        return f"Splits({shown} of {self.n_samples} samples, gap {self.gap})"

    def _state(self) -> dict[str, Any]:
        edges: dict[str, Any] | None = None
        if self.edges is not None:
            edges = {"length": self.edges.length, "step": self.edges.step}
            if self.edges.edges is not None:
                edges["edges"] = list(self.edges.edges)
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "axis": self.axis,
            "n_samples": self.n_samples,
            "gap": self.gap,
            "edges": edges,
            "splits": {
                split.name: {
                    "ranges": [list(pair) for pair in split.ranges],
                    "crossing": split.crossing,
                    "half_used": split.half_used,
                }
                for split in self.values()
            },
        }

    def to_json(self) -> str:
        """Write the splits as JSON text."""
        return json.dumps(self._state(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read splits back.

        Raises:
            PlanError: The text is something else, incomplete, or of a newer version.
        """
        try:
            state = json.loads(text)
        except ValueError as error:
            msg = f"splits are JSON text as Splits.to_json writes it: {error}"
            raise PlanError(msg) from error
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            found = state.get("format") if isinstance(state, dict) else type(state).__name__
            msg = f"the JSON is of format {found!r}, not {_FORMAT!r}: give a file of Splits.save"
            raise PlanError(msg)
        if state.get("version") != _VERSION:
            msg = (
                f"the splits have version {state.get('version')!r}, this library reads version "
                f"{_VERSION}: install the release that wrote them, or a later one"
            )
            raise PlanError(msg)
        try:
            return cls._from_state(state)
        except PlanError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            msg = f"the splits are incomplete: {type(error).__name__} {error}"
            raise PlanError(msg) from error

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        edges = None
        if state["edges"] is not None:
            listed = state["edges"].get("edges")
            edges = AxisChunks(
                length=state["edges"]["length"],
                step=state["edges"]["step"],
                edges=None if listed is None else tuple(listed),
            )
        splits = [
            Split(
                name=name,
                ranges=tuple((start, stop) for start, stop in split["ranges"]),
                n_samples=state["n_samples"],
                axis=state["axis"],
                crossing=split["crossing"],
                half_used=split["half_used"],
            )
            for name, split in state["splits"].items()
        ]
        return cls(splits, gap=state["gap"], edges=edges)

    def save(self, path: str | Path) -> None:
        """Write the splits to a JSON file.

        Args:
            path: File to write; an existing one is replaced.
        """
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read splits from a JSON file.

        Raises:
            PlanError: The file holds something else, or a newer version.
        """
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def _check_disjoint(splits: list[Split]) -> None:
    owned = sorted((*pair, split.name) for split in splits for pair in split.ranges)
    for (start, stop, name), (next_start, next_stop, next_name) in pairwise(owned):
        if next_start < stop:
            msg = (
                f"range ({start}, {stop}) of split {name!r} overlaps range ({next_start}, "
                f"{next_stop}) of split {next_name!r}: a sample belongs to one split"
            )
            raise PlanError(msg)
