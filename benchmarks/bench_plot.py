"""What was measured, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.ratios import Figure, Repeat, Spread, pair_ratios

mpl.use("agg")

# Colours of Okabe and Ito, which people with any sight for colours can tell apart.
_LOOKS = {
    "ours": ("#0072b2", "o"),
    "ours-obstore": ("#56b4e9", "s"),
    "into": ("#999999", "^"),
    "insitubatch": ("#d55e00", "D"),
    "dataloader-0": ("#cc79a7", "v"),
    "dataloader-2": ("#009e73", "P"),
}
_WARM = {"ours-warm": ("#0072b2", "o")}
_GROUP_WIDTH = 0.6
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def plot(results: Mapping[str, Sequence[Repeat]], caption: str, path: Path) -> None:
    """Draw speeds over that of the ceiling, and warm ones over that of memcpy.

    Args:
        results: The repeats of each layout.
        caption: Where and with what it was measured.
        path: The PNG that is written.
    """
    picture = Picture(figsize=(13, 5.2), dpi=140, layout="constrained")
    cold, warm = picture.subplots(1, 2, width_ratios=(2.2, 1))
    lowest, highest = _points(cold, results, _LOOKS, "ceiling")
    cold.set_yscale("log")
    cold.set_ylim(0.85 * lowest, 1.2 * highest)
    cold.set_yticks([tick for tick in _TICKS if 0.85 * lowest <= tick <= 1.2 * highest])
    cold.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    cold.yaxis.set_minor_locator(NullLocator())
    _, highest = _points(warm, results, _WARM, "memcpy")
    warm.set_ylim(0, 1.1 * highest)
    cold.set_title("cold epoch: speed over that of reading and decoding alone", fontsize=11)
    warm.set_title("everything resident: over memcpy", fontsize=11)
    handles, names = cold.get_legend_handles_labels()
    if handles:
        picture.legend(handles, names, loc="outside upper left", ncols=len(names), frameon=False)
    picture.supxlabel(caption, fontsize=8, color="#555555")
    picture.savefig(path)


def _points(
    axes: Axes,
    results: Mapping[str, Sequence[Repeat]],
    looks: Mapping[str, tuple[str, str]],
    against: str,
) -> tuple[float, float]:
    """Draw the ratios of each engine; returns the least and the most of them."""
    layouts = list(results)
    lowest, highest = 0.9, 1.1
    for number, (engine, (colour, marker)) in enumerate(looks.items()):
        figure = Figure(engine, engine, (against,))
        found = {
            at: Spread.of(ratios)
            for at, layout in enumerate(layouts)
            if (ratios := pair_ratios(figure, results[layout]))
        }
        if not found:
            continue
        shift = ((number + 0.5) / len(looks) - 0.5) * _GROUP_WIDTH
        spreads = list(found.values())
        axes.errorbar(
            [at + shift for at in found],
            [spread.median for spread in spreads],
            yerr=(
                [spread.median - spread.least for spread in spreads],
                [spread.most - spread.median for spread in spreads],
            ),
            fmt=marker,
            color=colour,
            markersize=5.5,
            elinewidth=1.2,
            label=engine,
        )
        lowest = min(lowest, *(spread.least for spread in spreads))
        highest = max(highest, *(spread.most for spread in spreads))
    axes.axhline(1.0, color="#333333", linewidth=1)
    axes.text(len(layouts) - 0.5, 1.0, f" {against}", va="center", fontsize=8, color="#333333")
    axes.set_xticks(range(len(layouts)), layouts, fontsize=8)
    axes.set_xlim(-0.5, len(layouts) - 0.5)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for at in range(len(layouts) - 1):
        axes.axvline(at + 0.5, color="#eeeeee", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return lowest, highest
