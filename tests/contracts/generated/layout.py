"""Shapes, chunks and names of the arrays of a case."""

import itertools
import math
import random
import unicodedata
from dataclasses import dataclass

from tests.contracts.generated.cases import Case

_NAMES = {
    "plain": "t2m",
    "spaces": "air temperature  2 m",
    "NFC": unicodedata.normalize("NFC", "température/été"),
    "NFD": unicodedata.normalize("NFD", "température/été"),
    "nested": "run 1/levels/t",
    "percent": "t%20m%/50%",
    "hash": "t#1/#",
    "root": "",
}
_OTHER = "other"


@dataclass(frozen=True)
class Layout:
    """Where the values of one array lie."""

    path: str
    shape: tuple[int, ...]
    sample_axis: int
    """Not negative."""
    edges: tuple[tuple[int, ...], ...]
    """Sizes of the stored chunks along each axis; the last may reach past the array."""
    key_edges: tuple[tuple[int, ...], ...]
    """Sizes of what one key holds along each axis: stored chunks, or shards of them."""
    is_rectilinear: bool = False
    """Whether the grid of the keys is written as lists of sizes."""
    inner: tuple[int, ...] | None = None
    """Shape of what lies in a shard; None without shards."""

    @property
    def name(self) -> str:
        """What `open_arrays` calls the array."""
        return self.path or "data"

    @property
    def n_samples(self) -> int:
        return self.shape[self.sample_axis]

    @property
    def is_sharded(self) -> bool:
        """Whether a key can hold several stored chunks, of which each may be missing."""
        return self.inner is not None and self.edges != self.key_edges

    @property
    def key_chunks(self) -> tuple[int, ...] | list[list[int]]:
        """The grid of the keys, as `zarr.create_array` takes it."""
        if self.is_rectilinear:
            return [list(sizes) for sizes in self.key_edges]
        return tuple(sizes[0] for sizes in self.key_edges)

    @property
    def coordinates(self) -> list[tuple[int, ...]]:
        """Every stored chunk."""
        return list(itertools.product(*(range(len(sizes)) for sizes in self.edges)))

    def region(self, coordinates: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of the array in one stored chunk."""
        return tuple(
            slice(sum(sizes[:number]), min(sum(sizes[: number + 1]), length))
            for sizes, number, length in zip(self.edges, coordinates, self.shape, strict=True)
        )

    def key_coordinates(self, coordinates: tuple[int, ...]) -> tuple[int, ...]:
        """The key that has a stored chunk."""
        return tuple(
            _place(sum(sizes[:number]), of_keys)
            for sizes, number, of_keys in zip(self.edges, coordinates, self.key_edges, strict=True)
        )

    def run_of(self, sample: int) -> int:
        """Number along the sample axis of the stored chunks with a sample."""
        return _place(sample, self.edges[self.sample_axis])


def layouts(case: Case) -> list[Layout]:
    """The array of the case, and a second one of other chunks where its views need two."""
    rng = case.rng("layout")
    shape, axis, steps = _steps(case)
    edges = key_edges = _regular(shape, steps)
    inner = None if case.shards == "none" else steps
    if case.grid == "rectilinear":
        key_edges = tuple(_parts(*item, rng) for item in zip(shape, steps, strict=True))
        if inner is None:
            edges = key_edges
    elif inner is not None:
        key_edges = _regular(shape, _shard(case, shape, axis, steps))
    if case.around_shards != "nothing":
        # Only a whole shard can be decoded.
        edges = key_edges
    is_rectilinear = case.grid == "rectilinear"
    first = Layout(_NAMES[case.names], shape, axis, edges, key_edges, is_rectilinear, inner)
    if case.view not in {"stack", "two"}:
        return [first]
    other = [rng.randint(1, length + 1) for length in shape]
    other[axis] = rng.choice([2, 7])
    edges = _regular(shape, tuple(other))
    return [first, Layout(_OTHER, shape, axis, edges, edges)]


def _steps(case: Case) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Shape of the array, its sample axis, and shape of a stored chunk."""
    rng = case.rng("shape")
    axis = {
        "first": 0,
        "middle": case.ndim // 2,
        "last": case.ndim - 1,
        "negative": case.ndim - min(2, case.ndim),
    }[case.sample_axis]
    shape, steps = [], []
    for number in range(case.ndim):
        is_sample = number == axis
        match case.grid:
            case "divides":
                step = rng.choice([3, 4]) if is_sample else rng.choice([1, 2])
                length = 12 if is_sample else step * rng.choice([1, 2])
            case "ragged":
                step = rng.choice([4, 5]) if is_sample else rng.choice([2, 3])
                length = rng.choice([11, 13, 14]) if is_sample else step + 1
            case "larger":
                length = rng.choice([10, 13]) if is_sample else rng.choice([1, 3])
                step = length + rng.choice([1, 4])
            case "single":
                length = rng.choice([10, 11]) if is_sample else rng.choice([1, 3])
                step = 1 if is_sample else length
            case "one sample":
                length = 1 if is_sample else rng.choice([2, 5])
                step = rng.choice([1, 3]) if is_sample else rng.choice([2, 3])
            case _:
                length = rng.choice([10, 12]) if is_sample else rng.choice([2, 4])
                step = 1 if case.shards == "none" else rng.choice([1, 2])
        shape.append(length)
        steps.append(step)
    return tuple(shape), axis, tuple(steps)


def _shard(
    case: Case, shape: tuple[int, ...], axis: int, steps: tuple[int, ...]
) -> tuple[int, ...]:
    counts = [math.ceil(length / step) for length, step in zip(shape, steps, strict=True)]
    match case.shards:
        case "whole":
            times = counts
        case "double" | "nested":
            times = [2] * len(shape)
        case _:
            times = [3 if number == axis else 1 for number in range(len(shape))]
            if counts[axis] % 3 == 0:
                times[axis] = 2 if counts[axis] % 2 else 5
    return tuple(step * n for step, n in zip(steps, times, strict=True))


def _regular(shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        (step,) * math.ceil(length / step) for length, step in zip(shape, steps, strict=True)
    )


def _parts(length: int, step: int, rng: random.Random) -> tuple[int, ...]:
    """A length in parts of unequal size, each a multiple of a step."""
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(step * rng.randint(1, min(5, (length - sum(sizes)) // step)))
    return tuple(sizes)


def _place(number: int, sizes: tuple[int, ...]) -> int:
    """Which of several parts has a number."""
    return next(place for place, end in enumerate(itertools.accumulate(sizes)) if number < end)
