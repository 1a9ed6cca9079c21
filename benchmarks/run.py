"""Measure cold and warm epochs against the bare decode and against other loaders.

Usage: `python -m benchmarks.run --layouts c8 wb2 --repeats 5`, or `make bench` for all of it.
Every engine's first epoch is compared with plain Zarr indexing before anything is timed. Then, for
each layout and repeat, the engines come one after the other, each in a process of its own that
times its first epoch: `benchmarks/one_epoch.py` says what is timed. A ratio is the median of the
ratios of the repeats, and its spread the smallest and the largest of them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bench_table import first_batch_table, ratio_table, speed_table, spreads_of
from benchmarks.engines import ENGINES
from benchmarks.fresh_process import ForkServer
from benchmarks.layouts import LAYOUTS, make_layout, make_small_layout
from benchmarks.machine import about_this_machine, caption_of
from benchmarks.one_epoch import MAX_SECONDS, check_layout, time_layout

type Repeats = list[dict[str, dict[str, Any]]]
"""In each repeat, the fields of `EpochTimes` by engine."""
type Measured = dict[str, Repeats]
"""By layout."""

_ABOUT_RATIOS = """\
Speeds over speeds, above 1 is faster: median (least-most) of the repeats. `again` is a second
epoch, as cold as the first, in memory that the process has already."""
_ABOUT_CUTS = """\
~: the epoch was cut; the rest is reckoned at the rate of the batches after the first."""
_BEGIN_S = time.monotonic()
_IMPORTED_FIRST = (
    "benchmarks.engines.ours",
    "benchmarks.engines.ceiling",
    "benchmarks.engines.into",
    "benchmarks.engines.memcpy",
    "benchmarks.engines.dataloader",
    "benchmarks.engines.insitubatch",
    "benchmarks.one_epoch",
)


def main() -> None:
    """Check, measure, print tables, and write JSON and a plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=MAX_SECONDS,
        help="cut epochs of engines that read sample by sample; the rest is reckoned, marked by ~",
    )
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"), help="of the stores")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="of JSON and plot")
    arguments = parser.parse_args()
    make_stores(arguments.layouts, arguments.folder)
    server = ForkServer(_IMPORTED_FIRST)
    checked = check(server, arguments) if arguments.check else {}
    results: Measured = {}
    for layout in arguments.layouts:
        results[layout] = measure(server, layout, arguments)
        # After each, for what ends a long run early should not take all of it.
        write(results, checked, arguments)
    print(report(results, arguments.engines), flush=True)
    tell(f"wrote {arguments.out}/bench.json and bench.png")


def make_stores(layouts: Sequence[str], folder: Path) -> None:
    """Make what is not there, and wait until it is on disk."""
    for layout in layouts:
        tell(f"{layout}: finding or making its store")
        make_layout(layout, folder)
        make_small_layout(layout, folder)
    os.sync()


def check(server: ForkServer, arguments: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Compare the first epoch of each engine with what is stored, by layout."""
    shares = {}
    # Workers are forked from a process in which no other library runs threads.
    engines = sorted(arguments.engines, key=lambda name: not name.startswith("dataloader"))
    for layout in arguments.layouts:
        shares[layout] = server.call(
            check_layout, engines, layout, arguments.folder, arguments.max_seconds
        )
        told = (f"{name} {_percent(share)}" for name, share in shares[layout].items())
        tell(f"{layout}: right values, each once: {', '.join(told)}")
    return shares


def measure(server: ForkServer, layout: str, arguments: argparse.Namespace) -> Repeats:
    """All repeats of a layout; without what an engine cannot do."""
    engines: list[str] = arguments.engines
    repeats: Repeats = []
    for number in range(arguments.repeats):
        repeats.append({})
        # Each time another engine comes first.
        for engine in engines[number % len(engines) :] + engines[: number % len(engines)]:
            found = server.call(
                time_layout, engine, layout, arguments.folder, arguments.max_seconds
            )
            said = "cannot" if found is None else f"{found.epoch_s:.3f} s"
            tell(f"{layout} {number + 1}/{arguments.repeats} {engine} {said}")
            if found is not None:
                repeats[-1][engine] = asdict(found)
    return repeats


def report(results: Measured, engines: Sequence[str]) -> str:
    """The tables."""
    return "\n\n".join(
        [
            ratio_table(results),
            _ABOUT_RATIOS,
            speed_table(results, engines),
            first_batch_table(results, engines),
            _ABOUT_CUTS,
        ]
    )


def write(
    results: Measured,
    checked: dict[str, dict[str, float | None]],
    arguments: argparse.Namespace,
) -> None:
    """Write `bench.json` and `bench.png`."""
    # Here, because every process that measures imports this module.
    from benchmarks.bench_plot import plot  # noqa: PLC0415

    arguments.out.mkdir(parents=True, exist_ok=True)
    about = about_this_machine()
    figures = {
        title: {layout: asdict(spread) for layout, spread in spreads.items()}
        for title, spreads in spreads_of(results).items()
    }
    document = {
        "command": "python -m benchmarks.run " + " ".join(sys.argv[1:]),
        "machine": about,
        "figures": figures,
        "checked_share": checked,
        "repeats": results,
    }
    (arguments.out / "bench.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    plot(results, caption_of(about), arguments.out / "bench.png")


def tell(text: str) -> None:
    """Say how far it is, apart from the tables, and after how many seconds."""
    print(f"{time.monotonic() - _BEGIN_S:5.0f} s  {text}", file=sys.stderr, flush=True)


def _percent(share: float | None) -> str:
    return "cannot" if share is None else f"{100 * share:.0f} %"


if __name__ == "__main__":
    main()
