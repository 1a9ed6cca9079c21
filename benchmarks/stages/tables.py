"""The tables of a profile."""

import os
import statistics

from benchmarks.stages.epochs import Epochs
from benchmarks.stages.fresh_arrays import LARGE_BYTES, FreshArrays
from benchmarks.stages.hand_over_clock import HandOverClock
from benchmarks.stages.stage_clock import StageClock
from benchmarks.stages.thread_samples import ThreadSamples
from benchmarks.stages.thread_usage import ThreadUsage

_MOST_LINES = 12


def heading(title: str, plain: Epochs, others: dict[str, Epochs]) -> None:
    """Seconds of an epoch, and what the wrapping costs."""
    plain_s = statistics.median(plain.seconds)
    costs = ", ".join(
        f"with {what} {statistics.median(epochs.seconds):.3f} s "
        f"({statistics.median(epochs.seconds) / plain_s - 1:+.0%})"
        for what, epochs in others.items()
    )
    print(
        f"== {title}: {plain.n_reads} stored chunks, {plain.n_batches} batches, "
        f"{plain.n_bytes / 1e6:.0f} MB, {len(os.sched_getaffinity(0))} cores, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(f"read from {plain.path}; timed: {', '.join(o.path for o in others.values())}")
    print(f"epoch {plain_s:.3f} s ({plain.n_bytes / plain_s / 1e9:.2f} GB/s); {costs}")


def usage_table(usage: ThreadUsage, epochs: Epochs) -> None:
    """By kind of thread."""
    print("thread, of a plain epoch   CPU ms   ready, no core ms   new memory MB   kB a batch")
    n = len(epochs.seconds)
    for kind, used in sorted(usage.by_kind.items(), key=lambda item: -item[1].cpu_s):
        new = used.new_bytes / n
        print(
            f"  {kind:<22} {1e3 * used.cpu_s / n:>8.1f} {1e3 * used.wait_s / n:>19.1f} "
            f"{new / 1e6:>15.1f} {new / epochs.n_batches / 1e3:>12.1f}"
        )


def stage_table(clock: StageClock, epochs: Epochs) -> None:
    """By kind of thread and stage."""
    print(
        "stage, of a timed epoch               calls   wall ms    CPU ms   us a call   of all CPU"
    )
    n, spent, cost_s = len(epochs.seconds), clock.spent(), clock.cost_s()
    all_cpu_s = sum(one.cpu_s for one in spent.values()) or 1.0
    for kind in sorted({kind for kind, _ in spent}):
        own = [(stage, one) for (thread, stage), one in spent.items() if thread == kind]
        for stage, one in sorted(own, key=lambda item: -item[1].cpu_s):
            print(
                f"  {kind:<16} {stage:<17} {one.n_calls / n:>7.0f} {1e3 * one.wall_s / n:>9.1f} "
                f"{1e3 * one.cpu_s / n:>9.1f} {1e6 * one.wall_s / one.n_calls:>11.1f} "
                f"{one.cpu_s / all_cpu_s:>12.1%}"
            )
    n_calls = sum(one.n_calls for one in spent.values()) / n
    print(f"  of it the clock: {n_calls:.0f} calls x {1e6 * cost_s:.1f} us, in the stage around")


def hand_over_table(hand_overs: HandOverClock, epochs: Epochs) -> None:
    """Counts and latencies."""
    print("hand-overs of an epoch                        times   a stored chunk   a batch")
    for name, total in sorted(hand_overs.counts.items()):
        n = total / len(epochs.seconds)
        print(f"  {name:<40} {n:>8.0f} {n / epochs.n_reads:>16.2f} {n / epochs.n_batches:>9.2f}")
    print(f"  chunk landed -> gather has its block: {hand_overs.chunks}")
    print(f"  last chunk of a block -> gather has it: {hand_overs.blocks}")
    print(f"  batch made -> consumer has it: {hand_overs.batches}")


def fresh_table(fresh: FreshArrays, n_made: int) -> None:
    """What was made anew."""
    print("fresh memory of an epoch")
    print(f"  batch buffers made         {n_made}")
    print(f"  traced peak above start    {fresh.peak_bytes / 1e3:,.0f} kB")
    print(f"  arrays of {LARGE_BYTES // 1000} kB and more   {sum(fresh.made.values())}")
    for where, n in fresh.made.most_common():
        print(f"    {n:>6} {where}")
    print(flush=True)


def sample_table(title: str, samples: ThreadSamples, epochs: Epochs) -> None:
    """What each kind of thread was found at."""
    print(f"== {title}: {samples.n_samples} looks in {sum(epochs.seconds):.2f} s")
    for kind, at in sorted(samples.at.items()):
        total = sum(at.values())
        print(f"{kind}, {total / samples.n_samples:.1f} threads; found at")
        for where, n in at.most_common(_MOST_LINES):
            print(f"  {n / total:>6.1%} {where}")
        print("  and inside")
        for where, n in samples.inside[kind].most_common(_MOST_LINES):
            print(f"  {n / total:>6.1%} {where}")
    print(flush=True)
