"""Profiles of epochs: what is measured, in which order."""

import argparse
import contextlib
from pathlib import Path

from benchmarks.layouts import LAYOUTS, make_layout
from benchmarks.stages.epochs import STORES, Case, Epochs
from benchmarks.stages.fresh_arrays import FreshArrays
from benchmarks.stages.hand_over_clock import HandOverClock
from benchmarks.stages.stage_clock import StageClock
from benchmarks.stages.tables import (
    fresh_table,
    hand_over_table,
    heading,
    sample_table,
    stage_table,
    usage_table,
)
from benchmarks.stages.thread_samples import ThreadSamples
from benchmarks.stages.thread_usage import ThreadUsage


def main() -> None:
    """Profile the layouts asked for."""
    parser = argparse.ArgumentParser(description="Show where the time of an epoch goes.")
    parser.add_argument("--layouts", nargs="+", choices=sorted(LAYOUTS), default=["wb2", "raw8"])
    parser.add_argument("--store", choices=STORES, default="local", help="how it is read")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    parser.add_argument("--sampler", action="store_true", help="look what threads are at instead")
    parser.add_argument("--warm", action="store_true", help="everything is resident")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for layout in arguments.layouts:
        path = make_layout(layout, arguments.folder)
        case = Case(layout, path, arguments.store, arguments.warm)
        (sample if arguments.sampler else profile)(case, arguments.repeats)


def profile(case: Case, repeats: int) -> None:
    """Epochs of every kind in turns, and the tables."""
    usage, clock, hand_overs, fresh = ThreadUsage(), StageClock(), HandOverClock(), FreshArrays()
    with contextlib.ExitStack() as loaders:
        plain, timed, counted = (
            loaders.enter_context(Epochs(case, patches))
            for patches in (usage.patches, clock.patches, hand_overs.patches)
        )
        usage.by_kind.clear()
        clock.clear()
        hand_overs.clear()
        for _ in range(repeats):
            plain.repeat(usage.measured())
            timed.repeat(clock.collector())
            counted.repeat()
        n_made = plain.n_buffers_made
        with fresh.measured():
            plain.run()
        heading(str(case), plain, {"stages timed": timed, "hand-overs counted": counted})
        for patches in (usage.patches, clock.patches, hand_overs.patches):
            for where in patches.missing:
                print(f"  NOT MEASURED, for there is no {where}")
        usage_table(usage, plain)
        stage_table(clock, timed)
        hand_over_table(hand_overs, counted)
        fresh_table(fresh, plain.n_buffers_made - n_made)


def sample(case: Case, repeats: int) -> None:
    """What threads were found at."""
    samples = ThreadSamples()
    with Epochs(case) as epochs:
        for _ in range(repeats):
            epochs.repeat(samples.taken())
        sample_table(str(case), samples, epochs)
