"""What was measured, as tables in Markdown that are aligned to be read as they are."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.ratios import FIGURES, Repeat, Spread, geometric_mean, pair_ratios, worst

_NONE = "-"

type Results = Mapping[str, Sequence[Repeat]]
"""The repeats of each layout. Beside seconds, a repeat states `delivered_bytes` and `share`."""


def spreads_of(results: Results) -> dict[str, dict[str, Spread]]:
    """By figure, then by layout; without layouts that lack an engine of the figure."""
    found: dict[str, dict[str, Spread]] = {}
    for figure in FIGURES:
        for layout, repeats in results.items():
            if ratios := pair_ratios(figure, repeats):
                found.setdefault(figure.title, {})[layout] = Spread.of(ratios)
    return found


def ratio_table(results: Results) -> str:
    """Median and extremes of each figure for each layout, then over all layouts."""
    spreads = spreads_of(results)
    titles = list(spreads)
    rows = [["layout", *titles]]
    for layout in results:
        cells = (spreads[title].get(layout) for title in titles)
        rows.append([layout, *(_NONE if cell is None else str(cell) for cell in cells)])
    means = [geometric_mean([s.median for s in spreads[title].values()]) for title in titles]
    rows.append(["**geometric mean**", *(f"**{mean:.2f}**" for mean in means)])
    lows = [(worst(spreads[title]), spreads[title]) for title in titles]
    rows.append(["**worst**", *(f"**{each[at].median:.2f} ({at})**" for at, each in lows)])
    return _aligned(rows)


def speed_table(results: Results, engines: Sequence[str]) -> str:
    """GB of values a second, for information: medians, which say nothing about other machines."""
    rows = [["GB/s", *engines]]
    for layout, repeats in results.items():
        rows.append([layout, *(_speed(repeats, engine) for engine in engines)])
    return _aligned(rows)


def first_batch_table(results: Results, engines: Sequence[str]) -> str:
    """Milliseconds to open the store, and from there to the first batch: medians."""
    rows = [["open + first batch, ms", *engines]]
    for layout, repeats in results.items():
        rows.append([layout, *(_waits(repeats, engine) for engine in engines)])
    return _aligned(rows)


def _speed(repeats: Sequence[Repeat], engine: str) -> str:
    seconds = _all(repeats, engine, "epoch_s")
    if not seconds:
        return _NONE
    n_bytes = _all(repeats, engine, "delivered_bytes")[0]
    # An epoch that was cut is marked: its time is that of a part, gone on at the same rate.
    mark = "~" if min(_all(repeats, engine, "share")) < 1 else ""
    return f"{mark}{n_bytes / 1e9 / statistics.median(seconds):.2f}"


def _waits(repeats: Sequence[Repeat], engine: str) -> str:
    firsts = _all(repeats, engine, "first_batch_s")
    if not firsts:
        return _NONE
    set_ups = _all(repeats, engine, "set_up_s")
    return f"{1e3 * statistics.median(set_ups):.0f} + {1e3 * statistics.median(firsts):.0f}"


def _all(repeats: Sequence[Repeat], engine: str, name: str) -> list[float]:
    values = (repeat.get(engine, {}).get(name) for repeat in repeats)
    return [value for value in values if value is not None]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)
