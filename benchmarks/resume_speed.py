"""Measure the first batch of a resume against that of a cold start, and what saving costs.

Usage: `python -m benchmarks.resume_speed --layouts c8 --repeats 5`. Each first batch is of a loader
in a process of its own, of its first pass, timed as `benchmarks/one_epoch.py` times it: a cold
start, and resumes at shares of the epoch, in turns. The clock runs from the loading of the state
on. Then an epoch in which the state is saved after every batch: its share of the epoch is the time
that `state_dict()` took.

An epoch begins with small blocks, and a resume mostly in a whole one, of which a batch needs nearly
every chunk. So both are also compared for each stored chunk that their first batch cannot do
without.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines.ours import Ours
from benchmarks.fresh_process import ForkServer
from benchmarks.layouts import LAYOUTS
from benchmarks.one_epoch import read_files, task_of, touch_memory
from benchmarks.ratios import Spread

_IMPORTED_FIRST = ("benchmarks.engines.ours", "benchmarks.one_epoch")


@dataclass(frozen=True)
class FirstBatch:
    """How a pass began."""

    seconds: float
    """From `load_state_dict` to the first batch."""
    needed: int
    """Stored chunks that the batch cannot do without."""
    reads: int
    """Stored chunks read until then, those read ahead included."""


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=["c8"])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5, 0.9, 0.99])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    arguments = parser.parse_args()
    server = ForkServer(_IMPORTED_FIRST)
    print(
        "layout resumed at   first batch ms     resumed/cold (min-max)   needs   reads   "
        "for each that it needs"
    )
    for layout in arguments.layouts:
        shares = [0.0, *arguments.shares]
        found = [
            [server.call(time_first_batch, layout, arguments.folder, share) for share in shares]
            for _ in range(arguments.repeats)
        ]
        for number, share in enumerate(shares):
            print(f"{layout:<6} {100 * share:>9.0f}% {summary(found, number)}", flush=True)
    print("\nlayout   states   state_dict us   share of the epoch")
    for layout in arguments.layouts:
        epoch_s, saves_s = server.call(time_saves, layout, arguments.folder)
        print(
            f"{layout:<6} {len(saves_s):>8} {1e6 * Spread.of(saves_s).median:>15.0f} "
            f"{100 * sum(saves_s) / epoch_s:>18.2f} %"
        )


def summary(found: Sequence[Sequence[FirstBatch]], number: int) -> str:
    """One line: the share of that number against the cold start of the same repeat."""
    mine = [repeat[number] for repeat in found]
    cold = [repeat[0] for repeat in found]
    pairs = list(zip(mine, cold, strict=True))
    ratios = Spread.of([a.seconds / b.seconds for a, b in pairs])
    for_each = Spread.of([a.seconds / a.needed * b.needed / b.seconds for a, b in pairs])
    return (
        f"{1e3 * Spread.of([a.seconds for a in mine]).median:>16.1f} {ratios!s:>26} "
        f"{mine[0].needed:>7} {Spread.of([a.reads for a in mine]).median:>7.0f} {for_each!s:>24}"
    )


def time_first_batch(layout: str, folder: Path, share: float) -> FirstBatch:
    """The first batch of a loader that was put to a share of its epoch by a state."""
    task = task_of(layout, folder)
    read_files(task.path)
    touch_memory(task)
    with closing(Ours(task)) as before:
        before.loader.skip(int(share * len(before.loader)))
        state = before.loader.state_dict()
        planner = before.loader.chain.planner
        needed = sum(planner.reads_from(before.loader.cursor, 1).values())
    with closing(Ours(task)) as engine:
        start = time.perf_counter()
        engine.loader.load_state_dict(state)
        next(iter(engine.loader))
        return FirstBatch(time.perf_counter() - start, needed, engine.reads)


def time_saves(layout: str, folder: Path) -> tuple[float, list[float]]:
    """Seconds of an epoch whose state is saved after every batch, and of each of the saves."""
    task = task_of(layout, folder)
    read_files(task.path)
    touch_memory(task)
    saves_s = []
    with closing(Ours(task)) as engine:
        start = time.perf_counter()
        for batch in engine.loader:
            del batch
            before = time.perf_counter()
            engine.loader.state_dict()
            saves_s.append(time.perf_counter() - before)
        return time.perf_counter() - start, saves_s


if __name__ == "__main__":
    main()
