"""One held-back forecast as maps: what came, what was expected, persistence, and the error."""

import pathlib

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from numpy.typing import NDArray

from .labels import Labels
from .scores import Forecasts

mpl.use("Agg")  # no screen is needed

Map = NDArray[np.float32]
N_ROWS = 3


def typical_forecast(forecasts: Forecasts) -> int:
    """Find the forecast of median skill: neither the best nor the worst that could be shown.

    Skill is over all channels here, each weighed by the error persistence usually makes. A forecast
    with a channel that is wholly missing is left out where another one is complete.
    """
    usual = forecasts.persistence_rmse()[:, None, None]
    model, persistence = (
        ((maps - forecasts.truth) / usual).square().nanmean((2, 3))
        for maps in (forecasts.forecast, forecasts.persistence)
    )
    is_whole = model.isfinite().all(dim=1)
    skill = 1 - model.nanmean(1) / persistence.nanmean(1)
    if is_whole.any():
        skill = skill.where(is_whole, float("nan"))
    return int((skill - skill.nanmedian()).abs().nan_to_num(float("inf")).argmin())


def draw_figure(
    path: pathlib.Path,
    forecasts: Forecasts,
    names: list[str],
    labels: Labels,
    *,
    which: int,
    lead: int,
) -> None:
    """Draw up to three channels, a row each, and write a PNG.

    Args:
        path: the file to write.
        forecasts: the held-back forecasts.
        names: names of the channels.
        labels: units, dates and coordinates.
        which: number of the forecast to draw.
        lead: how many samples ahead the forecasts are.
    """
    names = names[:N_ROWS]
    start = int(forecasts.samples[which])
    fig, grid = plt.subplots(
        len(names), 4, figsize=(16, 3.6 * len(names)), squeeze=False, layout="constrained"
    )
    for i, (name, row) in enumerate(zip(names, grid, strict=True)):
        truth, forecast, persistence = (
            maps[which, i].numpy()
            for maps in (forecasts.truth, forecasts.forecast, forecasts.persistence)
        )
        unit = labels.units.get(name.partition("[")[0], "")
        title = f"{name} [{unit}]" if unit else name
        space_unit = f" {unit}" if unit else ""
        maps = {"truth": truth, "forecast": forecast, "persistence": persistence}
        limits = (float(np.nanmin(truth)), float(np.nanmax(truth)))
        for ax, (what, values) in zip(row, maps.items(), strict=False):
            image = _map(ax, values, labels, limits, "viridis")
            error = "" if what == "truth" else f", RMSE {_rmse(values - truth):.3g}{space_unit}"
            ax.set_title(f"{what}{error}")
        fig.colorbar(image, ax=list(row[:3]), label=title, pad=0.01)
        widest = float(np.nanmax(np.abs(persistence - truth)))
        image = _map(row[3], forecast - truth, labels, (-widest, widest), "RdBu_r")
        row[3].set_title("forecast minus truth")
        fig.colorbar(image, ax=row[3], label=f"error of {title}", pad=0.02)
        row[0].set_ylabel(labels.axes[0])
        row[0].annotate(
            name,
            xy=(-0.3, 0.5),
            xycoords="axes fraction",
            fontsize="x-large",
            fontweight="bold",
            ha="right",
            va="center",
        )
    for ax in grid[-1]:
        ax.set_xlabel(labels.axes[1])
    fig.suptitle(
        f"Forecast for {labels.date(start + lead)}, made from {labels.date(start)} and before\n"
        "the one of median skill among those held back from training; "
        "errors are coloured over the range of persistence's errors"
    )
    fig.savefig(path, dpi=100)
    plt.close(fig)


def _map(
    ax: Axes, values: Map, labels: Labels, limits: tuple[float, float], colours: str
) -> QuadMesh:
    y, x = labels.coordinates
    rows = np.arange(values.shape[0]) if y is None else y
    columns = np.arange(values.shape[1]) if x is None else x
    ax.set_facecolor("lightgrey")
    if y is None:
        ax.invert_yaxis()
    low, high = limits
    return ax.pcolormesh(
        columns, rows, values, shading="nearest", vmin=low, vmax=high, cmap=colours
    )


def _rmse(error: Map) -> float:
    return float(np.sqrt(np.nanmean(np.square(error))))
