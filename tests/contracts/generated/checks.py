"""One case: its store through a loader, against the values that were written."""

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import torchdata_insitu as tdi
from tests.contracts.generated.cases import Case
from tests.contracts.generated.stores import (
    WrittenArray,
    WrittenStore,
    all_of_zarr,
    no_advice,
    write_store,
)
from torchdata_insitu.testing.chunk_keys import is_chunk

_PLENTY = 10**7


class CaseError(AssertionError):
    """Something is not as it was written or planned."""


@dataclasses.dataclass(frozen=True)
class ExpectedView:
    """What comes under one name of a batch."""

    arrays: list[WrittenArray]
    offsets: tuple[int, ...] = (0,)
    stacked: bool = False
    windowed: bool = False

    def batch(self, anchors: np.ndarray) -> np.ndarray:
        """`(B, [offsets], [arrays], *field)`."""
        fields = [np.moveaxis(a.expected, a.layout.sample_axis, 0) for a in self.arrays]
        steps = []
        for offset in self.offsets:
            rows = [field[anchors + offset] for field in fields]
            steps.append(np.stack(rows, axis=1) if self.stacked else rows[0])
        return np.stack(steps, axis=1) if self.windowed else steps[0]


@dataclasses.dataclass
class Pass:
    """What came from one rank in one epoch, and what was read for it."""

    anchors: list[int]
    """Every row of every batch."""
    valid: list[bool]
    """Whether a row is a sample of its own, and not a copy that fills up a batch."""
    planned: dict[str, int]
    """Reads by array, as the plan says."""
    reads: dict[str, int]
    missing: dict[str, int]
    gets: Counter[str] | None
    """Reads by key, where the store counts."""


def run_case(case: Case, folder: Path, written: WrittenStore | None = None) -> bool:
    """Write the store of a case and check all that a loader makes of it.

    Args:
        case: The case.
        folder: Where stores that are files are written.
        written: The store, if it was written.

    Returns:
        Whether every array was read as often as planned; else something was read less often, since
        it was still resident.

    Raises:
        CaseError: Something is not as it was written or planned.
        Exception: Whatever the library raises.
    """
    if written is None:
        written = write_store(case)
        check_zarr(written)
    with no_advice(), written.opened(case.store, folder) as store:
        views, expected = _views(case, store, written)
        passes = [
            _pass(store, views, expected, _options(case, written, rank), case)
            for rank in range(case.ranks)
        ]
    _check_samples(case, passes, written, expected)
    for one in passes:
        for array in written.arrays:
            _check_reads(case, one, array, written, expected)
    return all(one.reads == one.planned for one in passes)


def _pass(
    store: Any,
    views: dict[str, Any],
    expected: dict[str, ExpectedView],
    options: dict[str, Any],
    case: Case,
) -> Pass:
    if case.budget == "floor":
        with tdi.build_loader(store, views, **options) as loader:
            options["budget_bytes"] = loader.floor_bytes
    if case.store == "counting":
        store.reset()
    with tdi.build_loader(store, views, **options) as loader:
        lanes = loader.cursor.lanes
        planned = loader.plan.reads(options["rank"], world_size=case.ranks, lanes=lanes)
        n_batches, n_reads = len(loader), loader.expected_reads
        batches = list(loader)
        _check_equal(len(batches), n_batches, "batches, by len(loader)")
        _check_equal(sum(planned.values()), n_reads, "planned reads, by expected_reads")
        units = {"M8[ns]": "ns", "m8[10s]": "10s"}
        wanted = {"x": units[case.dtype]} if case.dtype in units else {}
        _check_equal(dict(loader.units), wanted, "units")
        stats = loader.stats()
        _check_equal(stats.retries, dict.fromkeys(stats.retries, 0), "retries")
    anchors, valid = [], []
    for number, batch in enumerate(batches):
        here = batch["sample_index"].numpy()
        for name, view in expected.items():
            what = f"{name!r} of batch {number} at {here}"
            _check_bits(batch[name].numpy(), view.batch(here), what)
        anchors += here.tolist()
        valid += batch["valid"].tolist() if "valid" in batch else [True] * len(here)
    gets = Counter(store.gets) if case.store == "counting" else None
    return Pass(anchors, valid, dict(planned), dict(stats.reads), dict(stats.missing), gets)


def check_zarr(written: WrittenStore) -> None:
    """That Zarr reads what was written: else the reference itself is in doubt."""
    store = written.in_memory()
    for array in written.arrays:
        with all_of_zarr():
            values = np.asarray(zarr.open_array(store, path=array.layout.path, mode="r")[...])
        native = values.astype(values.dtype.newbyteorder("="), order="C")
        _check_bits(native.view(array.expected.dtype), array.expected, f"Zarr's {array.name!r}")


def _views(
    case: Case, store: Any, written: WrittenStore
) -> tuple[dict[str, Any], dict[str, ExpectedView]]:
    rng = case.rng("opening")
    names = [array.name for array in written.arrays]
    axis = written.arrays[0].layout.sample_axis
    given = axis - case.ndim if case.sample_axis == "negative" else axis
    opened = tdi.open_arrays(store, rng.choice([None, names]), sample_axis=given)
    if sorted(opened) != sorted(names):
        raise CaseError(f"open_arrays finds {sorted(opened)} instead of {sorted(names)}")
    first, *others = (opened[name] for name in names)
    match case.view:
        case "plain":
            return {"x": first}, {"x": ExpectedView(written.arrays)}
        case "window":
            offsets = (-2, 0, 1, 1)
            view = ExpectedView(written.arrays, offsets, windowed=True)
            return {"x": first.window(*offsets)}, {"x": view}
        case "shift":
            return {"x": first.shift(2)}, {"x": ExpectedView(written.arrays, (2,))}
        case "stack":
            stacked = ExpectedView(written.arrays, stacked=True)
            return {"x": tdi.stack(first, *others)}, {"x": stacked}
        case _:
            one, two = written.arrays
            views = {"x": first, "y": others[0].window(0)}
            return views, {"x": ExpectedView([one]), "y": ExpectedView([two], windowed=True)}


def _options(case: Case, written: WrittenStore, rank: int) -> dict[str, Any]:
    rng = case.rng("options")
    nothing_stored = any(len(array.missing) == len(array.keys) for array in written.arrays)
    return {
        "batch_size": case.batch_size,
        "block_chunks": case.block_chunks,
        "shuffle": case.shuffle,
        "seed": rng.randrange(100),
        "tail": case.tail,
        "rank": rank,
        "world_size": case.ranks,
        "lanes": 3 if case.lanes == "three" else None,
        "budget_bytes": _PLENTY,
        "prefetch_factor": rng.choice([0, 2]),
        "on_missing": "fill" if nothing_stored else "auto",
    }


def _check_samples(
    case: Case, passes: list[Pass], written: WrittenStore, expected: dict[str, ExpectedView]
) -> None:
    """Every sample that can be drawn came once, over all ranks, but for what the tail leaves."""
    found = [
        anchor
        for one in passes
        for anchor, is_valid in zip(one.anchors, one.valid, strict=True)
        if is_valid
    ]
    possible = _possible(written, expected)
    if len(set(found)) != len(found) or not set(found) <= set(possible):
        raise CaseError(f"samples {sorted(found)} came, of {possible}")
    _check_equal(len(found), _n_delivered(case, len(possible)), f"samples of {possible}")


def _possible(written: WrittenStore, expected: dict[str, ExpectedView]) -> range:
    offsets = [offset for view in expected.values() for offset in view.offsets]
    n_samples = written.arrays[0].layout.n_samples
    return range(max(0, -min(offsets)), n_samples - max(0, *offsets))


def _n_delivered(case: Case, n_draws: int) -> int:
    """Samples that come, from the description of the tails."""
    per_step = case.batch_size * case.ranks
    full, rest = divmod(n_draws, per_step)
    match case.tail:
        case "drop":
            return full * per_step
        case "short":
            return full * per_step + (rest if rest >= case.ranks else 0)
        case _:
            return n_draws


def _check_reads(
    case: Case,
    one: Pass,
    array: WrittenArray,
    written: WrittenStore,
    expected: dict[str, ExpectedView],
) -> None:
    """Stored chunks are read as planned, and less often only where they are still resident."""
    name, axis = array.name, array.layout.sample_axis
    runs = {
        array.layout.run_of(anchor + offset)
        for view in expected.values()
        if array in view.arrays
        for anchor in one.anchors
        for offset in view.offsets
    }
    needed = {coordinates for coordinates in array.keys if coordinates[axis] in runs}
    n_reads, n_missing = one.reads.get(name, 0), one.missing.get(name, 0)
    # Of one array and in one lane no two blocks need one chunk.
    if case.view == "plain" and case.lanes == "by rank" and case.tail in {"pad", "exact"}:
        _check_equal(one.planned[name], len(needed), f"planned reads of {name!r}")
    # Where the plan reads nothing twice, both bounds are one.
    if not len(needed) <= n_reads <= one.planned[name]:
        raise CaseError(
            f"{n_reads} reads of {name!r}: {len(needed)} stored chunks are needed, and plan.reads "
            f"says {one.planned[name]}"
        )
    if not len(needed & array.missing) <= n_missing <= n_reads - len(needed - array.missing):
        raise CaseError(
            f"{n_missing} of {n_reads} reads of {name!r} were of missing chunks: of {len(needed)} "
            f"that are needed, {len(needed & array.missing)} are missing"
        )
    # One rank that leaves nothing over, and keeps what it read, reads what it needs.
    keeps_all = case.budget == "plenty"
    is_exact = keeps_all and case.ranks == 1 and case.tail != "drop"
    if is_exact:
        _check_equal(n_reads, len(needed), f"reads of {name!r}")
    if one.gets is None:
        return
    own_keys = set(array.keys.values())
    gets = {key: n for key, n in one.gets.items() if key in own_keys}
    others = {key for key in one.gets if is_chunk(key)}
    for other in written.arrays:
        others -= set(other.keys.values())
    _check_equal(others, set(), "keys that were read and are none of a chunk")
    if not array.layout.is_sharded:
        what = f"reads of {name!r} that the store counts"
        _check_equal(sum(gets.values()), n_reads, what)
        if keeps_all:
            _check_equal(max(gets.values(), default=1), 1, f"{what}, of one key")
        if is_exact:
            _check_equal(set(gets), {array.keys[c] for c in needed}, what)


def _check_equal(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CaseError(f"{what}: {found} instead of {wanted}")


def _check_bits(values: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal dtype, shape and bytes."""
    kinds = (values.dtype, values.shape), (expected.dtype, expected.shape)
    if kinds[0] != kinds[1]:
        raise CaseError(f"{what} is of dtype and shape {kinds[0]} instead of {kinds[1]}")
    if math.prod(expected.shape) == 0:
        raise CaseError(f"{what} is empty")
    got, wanted = (np.ascontiguousarray(v).view(f"V{v.itemsize}") for v in (values, expected))
    differs = np.argwhere(got != wanted)
    if len(differs):
        place = tuple(differs[0].tolist())
        raise CaseError(
            f"{what} differs at {len(differs)} of {expected.size} places, first at {place}: "
            f"{values[place]!r} ({got[place].tobytes().hex()}) instead of {expected[place]!r} "
            f"({wanted[place].tobytes().hex()})"
        )
