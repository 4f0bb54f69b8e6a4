"""Draw an experiment's figures as SVG or PNG. Matplotlib, an optional extra, is only imported here."""

from __future__ import annotations

import importlib.util
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline import atomic
from penstock.pipeline.experiments.config import ExperimentConfig, FigureSpec
from penstock.pipeline.experiments.results import matching, wide_summary, write_frame

#: Colours that remain apart for colour-blind readers (Okabe, Ito 2008), and markers that remain apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "osD^vPX*"
MAX_TICKS = 8
#: Columns of the results with the provenance of a number.
PROVENANCE = ("configuration", "inputs", "people", "versions")
#: What a manifest says where nothing can be drawn.
NOT_DRAWN = "matplotlib is not installed; pip install 'penstock[plot]' and run this again: finished trials are kept"


def installed() -> bool:
    """Return whether Matplotlib is available."""
    return importlib.util.find_spec("matplotlib") is not None


def write_figures(
    config: ExperimentConfig, results: pl.DataFrame, summary: pl.DataFrame, folder: Path
) -> list[dict[str, Any]]:
    """Draw every figure, write its data to ``figures/`` as CSV, and return the files and titles.

    The data of a box plot are the values of each seed, those of other figures means with intervals.
    """
    written = []
    for figure in config.figures:
        rows, means = matching(results, figure.where), matching(summary, figure.where)
        shown = wide_summary(means, figure.measures)
        if figure.type == "box":
            shown = rows.filter(pl.col("measure") == figure.y)
        data = f"figures/{Path(figure.file).stem}.csv"
        write_frame(shown.drop("mean", "low", "high", *PROVENANCE, strict=False), folder / data)
        if installed():
            _draw(figure, config, shown, means, folder / "figures" / figure.file)
            title = f"{config.label(figure.y)} by {config.label(figure.x)}"
            written.append({"file": f"figures/{figure.file}", "title": title, "data": data})
    return written


def _draw(figure: FigureSpec, config: ExperimentConfig, data: pl.DataFrame, summary: pl.DataFrame, path: Path) -> None:
    """Draw one figure and write it atomically."""
    import matplotlib

    # Text stays text, and the same results give the same file.
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "penstock"}
    style |= {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3}
    with matplotlib.rc_context(style):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Picture

        picture = Picture(figsize=(8 if figure.by else 6.5, 4.3), layout="constrained")
        FigureCanvasAgg(picture)
        axes = picture.add_subplot()
        (_box if figure.type == "box" else _means)(axes, figure, config, data)
        if figure.by is not None:
            # Beside the axes: a legend inside hides points.
            axes.figure.legend(*axes.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside right upper")
        axes.set_xlabel(_axis_label(figure.x, config, summary))
        axes.set_ylabel(_axis_label(figure.y, config, summary))
        if figure.log_x:
            _logarithmic(axes.xaxis)
            if figure.type == "line" and summary[figure.x].n_unique() <= MAX_TICKS:
                axes.set_xticks(summary[figure.x].unique().to_list())  # what was run, rather than round numbers
        if figure.log_y:
            _logarithmic(axes.yaxis)
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with atomic.replacing(path) as temporary:
            picture.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)


def _logarithmic(axis: Any) -> None:
    """Make an axis logarithmic with the plain tick labels 1, 2, 5, 10, …"""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _axis_label(name: str, config: ExperimentConfig, summary: pl.DataFrame) -> str:
    units = summary.filter(pl.col("measure") == name)["unit"].unique().to_list()
    unit = f" ({units[0]})" if units and units[0] and name not in config.labels else ""
    return config.label(name) + unit


def _groups(
    figure: FigureSpec, config: ExperimentConfig, frame: pl.DataFrame
) -> list[tuple[dict[str, Any], pl.DataFrame]]:
    """Return each group's label, colour, marker and rows in grid order."""
    values = [None] if figure.by is None else frame[figure.by].unique(maintain_order=True).to_list()
    groups = []
    for value, colour, marker in zip(values, cycle(COLOURS), cycle(MARKERS)):
        label, rows = None, frame
        if figure.by is not None:
            label = config.label(value) if isinstance(value, str) else f"{config.label(figure.by)} {value}"
            rows = frame.filter(pl.col(figure.by) == value)
        groups.append(({"label": label, "color": colour, "marker": marker}, rows))
    return groups


def _means(axes: Any, figure: FigureSpec, config: ExperimentConfig, data: pl.DataFrame) -> None:
    """Draw means with confidence intervals, either as a line over the varied parameter or as one point per setting.

    If the horizontal axis shows words, they keep the order of the grid.
    """

    def ends(group: pl.DataFrame, name: str) -> tuple[Any, Any]:
        """Return a metric's mean in each setting, along with the distances to both ends of its confidence interval."""
        mean, low, high = (group[f"{side} {name}"].fill_null(group[f"mean {name}"]) for side in ("mean", "low", "high"))
        return mean.to_numpy(), np.maximum([(mean - low).to_numpy(), (high - mean).to_numpy()], 0)

    line: Any = {"capsize": 3, "linewidth": 1.4}
    scatter: Any = {"capsize": 2, "linestyle": "", "elinewidth": 0.8}
    for style, group in _groups(figure, config, data):
        y, along = ends(group, figure.y)
        if figure.type == "scatter":
            x, across = ends(group, figure.x)
            axes.errorbar(x, y, along, across, markersize=5, **scatter, **style)
        else:
            x = [config.label(value) if isinstance(value, str) else value for value in group[figure.x]]
            axes.errorbar(x, y, along, markersize=5, **line, **style)


def _box(axes: Any, figure: FigureSpec, config: ExperimentConfig, data: pl.DataFrame) -> None:
    """Draw the spread across seeds as a box plot with quartiles, whiskers of 1.5 interquartile ranges and outliers."""
    places = data[figure.x].unique(maintain_order=True).to_list()
    groups = _groups(figure, config, data)
    width = 0.8 / len(groups)
    for i, (style, group) in enumerate(groups):
        values = [group.filter(pl.col(figure.x) == place)["value"].to_numpy() for place in places]
        positions = np.arange(len(places)) + (i - (len(groups) - 1) / 2) * width
        drawn: Any = {"patch_artist": True, "manage_ticks": False, "medianprops": {"color": "black"}}
        boxes = axes.boxplot(values, positions=positions, widths=width * 0.9, **drawn)
        for box in boxes["boxes"]:
            box.set(facecolor=style["color"], alpha=0.6)
        boxes["boxes"][0].set_label(style["label"])
    axes.set_xticks(np.arange(len(places)), [config.label(str(place)) for place in places])
    if len(places) > 4:
        axes.set_xticks(axes.get_xticks(), axes.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor")
