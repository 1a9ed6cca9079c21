"""Measure how long ranks plan before they can read, and what they read when their number changes.

Usage: `python -m benchmarks.plan_scale --units 10000000 --ranks 8 64 512 4096`. Nothing is read: an
epoch of ten million chunks of 40 samples is planned, over a space that knows their lengths only. A
line is of a run on so many ranks, at the start of an epoch or resumed in the middle of one that
began with another number of ranks and keeps its lanes.

Seconds, those of the clock and those of the processor, and memory are those of the last rank, in a
process of its own, until it has its first segment; the memory is all of the process, its imports
included. Reads are planned for every rank, or, where a rank meets so many lanes that it takes long,
for a few (marked by ~). `extra` is what all ranks read above one read of each chunk, at lane
borders; in mid-epoch `factor` is what they read over what the ranks before would have read. The
floor is how many chunks a rank has to have room for.

The last line is of a `ChunkPlanner` over an array of as many chunks, of which only the metadata is
there: everything that a rank does before its first read.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

import torchdata_insitu as tdi
from benchmarks.fresh_process import ForkServer
from benchmarks.memory import high_water_mark
from benchmarks.ratios import Spread
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.run_lengths import RunLengths

_DRAWS_A_UNIT = 40
_BATCH_SIZE = 32
_BLOCK_CHUNKS = 16
# Over all ranks of a line whose reads are planned, so that a line takes seconds.
_UNITS_A_LINE = 20_000_000
_LEAST_RANKS = 3


class LengthsOnly:
    """Units of equal length but for the last one, each with a chunk of its own."""

    kind = "lengths"
    n_columns = 2
    has_offsets = False
    shard_units = 1
    array_names = ("a",)
    stored_per_chunk = (1,)

    def __init__(self, n_units: int) -> None:
        self.n_units = n_units

    def unit_lengths(self) -> RunLengths:
        """See `DrawSpace`."""
        lengths = np.array([_DRAWS_A_UNIT, _DRAWS_A_UNIT // 2])
        return RunLengths(lengths, np.array([self.n_units - 1, 1]))

    def draws(self, unit: int, start: int, stop: int) -> NDArray[np.int64]:
        """See `DrawSpace`."""
        draws = np.full((stop - start, 2), unit, dtype=np.int64)
        draws[:, 1] = np.arange(start, stop)
        return draws

    def unit_chunks(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `DrawSpace`."""
        chunks = np.zeros((len(units), 3), dtype=np.int64)
        chunks[:, 1] = units
        return np.arange(len(units)), chunks

    def chunks(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `DrawSpace`."""
        return self.unit_chunks(units)[1]

    def chunks_of_draws(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `DrawSpace`."""
        first = np.unique(draws[:, 0], return_index=True)[1]
        return self.chunks(draws[np.sort(first), 0])

    def chunks_bound(self, n_units: int) -> tuple[int, ...]:
        """See `DrawSpace`."""
        return (min(n_units, self.n_units),)

    def digest(self) -> dict[str, str]:
        """See `DrawSpace`."""
        return {"arrays": "none", "offsets": "none"}


@dataclass(frozen=True)
class Run:
    """A run on so many ranks, and where in an epoch it begins."""

    n_units: int
    world_size: int
    lanes: int
    share: float
    """Of the epoch that was handed out before, to `lanes` ranks."""

    @property
    def is_resumed(self) -> bool:
        """Whether the epoch began with another number of ranks."""
        return self.world_size != self.lanes

    def cursor(self, plan: Plan) -> Cursor:
        """Where the run begins: after a batch of the ranks before."""
        n_steps = int(self.share * plan.steps(0, self.lanes))
        return Cursor(0, n_steps * _BATCH_SIZE * self.lanes, self.lanes)

    def ranks(self) -> Sequence[int]:
        """The ranks whose reads are planned: all, or some that are evenly far apart."""
        lanes_met = self.lanes // math.gcd(self.lanes, self.world_size)
        n_ranks = _UNITS_A_LINE * self.lanes // (self.n_units * lanes_met)
        n_ranks = min(self.world_size, max(_LEAST_RANKS, n_ranks))
        return np.linspace(0, self.world_size - 1, n_ranks).round().astype(int).tolist()


def main() -> None:
    """Plan in a process for each line and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=10_000_000)
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 64, 512, 4096])
    arguments = parser.parse_args()
    print(
        "       ranks       lanes      at   first s     cpu s   peak MB      steps   "
        "reads of a rank (min-max)        extra   factor   floor"
    )
    server = ForkServer(["benchmarks.memory"])
    for run in runs_of(arguments.units, arguments.ranks):
        cost, reads = server.call(measure, run)
        print(f"{line_of(run)} {cost} {reads}", flush=True)
    world_size = max(arguments.ranks)
    cost = server.call(measure_planner, arguments.units, world_size)
    print(f"{f'planner, {world_size} ranks':>32} {cost}")


def runs_of(n_units: int, world_sizes: Sequence[int]) -> Iterator[Run]:
    """From the start of an epoch; then half of it is left to fewer ranks, to more, to one less."""
    for before in world_sizes:
        yield Run(n_units, before, before, 0.0)
        for now in dict.fromkeys((3 * before // 4, before // 2, 2 * before, before - 1)):
            if now:
                yield Run(n_units, now, before, 0.5)


def line_of(run: Run) -> str:
    """What a line is of."""
    return f"{run.world_size:>12} {run.lanes:>11} {100 * run.share:>6.0f}%"


@dataclass(frozen=True)
class Cost:
    """What it took until the first segment."""

    clock_s: float
    cpu_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.clock_s:>9.2f} {self.cpu_s:>9.2f} {self.peak_bytes / 1e6:>9.0f}"


def cost_of(first_segment: Callable[[], object]) -> Cost:
    """Run what ends with the first segment."""
    clock_s, cpu_s = time.perf_counter(), time.process_time()
    first_segment()
    clock_s, cpu_s = time.perf_counter() - clock_s, time.process_time() - cpu_s
    return Cost(clock_s, cpu_s, high_water_mark())


def measure(run: Run) -> tuple[Cost, str]:
    """What the last rank needs until its first segment, and the reads of all ranks."""
    plan = Plan(LengthsOnly(run.n_units), batch_size=_BATCH_SIZE, block_chunks=_BLOCK_CHUNKS)
    cursor = run.cursor(plan)
    last = run.world_size - 1
    cost = cost_of(lambda: next(plan.segments(cursor, last, run.world_size)))
    return cost, describe_reads(run, plan, cursor)


def measure_planner(n_units: int, world_size: int) -> Cost:
    """The same of a planner over an array, with the floor and the state that a pass begins with."""
    store = MemoryStore()
    zarr.create_array(
        store, name="a", shape=(n_units * _DRAWS_A_UNIT, 1), chunks=(_DRAWS_A_UNIT, 1), dtype="f4"
    )
    arrays = tdi.open_arrays(store)

    def begin() -> None:
        planner = tdi.ChunkPlanner(
            arrays, batch_size=_BATCH_SIZE, rank=world_size - 1, world_size=world_size
        )
        planner.floor_bytes(world_size)
        planner.reset(planner.get_state())
        next(planner)

    return cost_of(begin)


def describe_reads(run: Run, plan: Plan, cursor: Cursor) -> str:
    """Steps, reads and the floor, as the rest of a line."""
    ranks = run.ranks()
    reads = reads_of(plan, cursor, ranks, run.world_size)
    is_all = len(ranks) == run.world_size
    total = sum(reads) if is_all else sum(reads) * run.world_size / len(ranks)
    extra, factor = f"{total - run.n_units:.0f}", "-"
    if run.is_resumed:
        before = reads_of(plan, cursor, range(run.lanes), run.lanes)
        extra, factor = "-", f"{total / sum(before):.2f}"
    steps = plan.steps(cursor.position, run.world_size)
    (floor,) = plan.floor_chunks(run.world_size - 1, run.world_size, run.lanes)
    spread = Spread.of(reads)
    mark = " " if is_all else "~"
    said = f"{spread.median:.0f} ({spread.least:.0f}-{spread.most:.0f})"
    return f"{steps:>10}   {mark}{said:>27} {extra:>10} {factor:>8} {floor:>7}"


def reads_of(plan: Plan, cursor: Cursor, ranks: Sequence[int], world_size: int) -> list[int]:
    """Chunks that each of the ranks reads from a cursor to the end of the epoch."""
    return [
        plan.reads(rank, world_size=world_size, lanes=cursor.lanes, position=cursor.position)["a"]
        for rank in ranks
    ]


if __name__ == "__main__":
    main()
