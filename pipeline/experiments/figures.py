"""Draw the figures of an experiment as SVG or PNG. Matplotlib is an optional extra that is imported only here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock.pipeline import atomic
from penstock.pipeline.experiments.config import ExperimentConfig, FigureSpec
from penstock.pipeline.experiments.results import matching, wide_summary

#: Colours that remain apart for colour-blind readers (Okabe, Ito 2008), and markers that remain apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "osD^vPX*"
MAX_TICKS = 8
#: Columns of the results with the provenance of a number.
PROVENANCE = ("configuration", "inputs", "people", "versions")


#: What a manifest says where nothing can be drawn.
NOT_DRAWN = "matplotlib is not installed; pip install 'penstock[plot]' and run this again: finished trials are kept"


def installed() -> bool:
    """Return whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def write_figures(
    config: ExperimentConfig, results: pl.DataFrame, summary: pl.DataFrame, folder: Path
) -> list[dict[str, Any]]:
    """Draw every figure, write its data to ``figures/`` as CSV, and return the files and titles."""
    written = []
    for figure in config.figures:
        rows, means = matching(results, figure.where), matching(summary, figure.where)
        data = f"figures/{Path(figure.file).stem}.csv"
        with atomic.replacing(folder / data) as temporary:
            _data(figure, rows, means).write_csv(temporary)
        if not installed():
            continue
        draw(figure, config, rows, means, folder / "figures")
        title = f"{config.label(figure.y)} by {config.label(figure.x)}"
        written.append({"file": f"figures/{figure.file}", "title": title, "data": data})
    return written


def _data(figure: FigureSpec, results: pl.DataFrame, summary: pl.DataFrame) -> pl.DataFrame:
    """Return the data of a figure: the values of each seed for a box plot, or means with intervals for other plots."""
    if figure.type == "box":
        return results.filter(pl.col("measure") == figure.y).drop("mean", "low", "high", *PROVENANCE)
    return wide_summary(summary, figure.measures)


def draw(
    figure: FigureSpec,
    config: ExperimentConfig,
    results: pl.DataFrame,
    summary: pl.DataFrame,
    folder: Path,
    annotate: Callable[[Any], None] = lambda axes: None,
) -> None:
    """Draw one figure and write it atomically. The function ``annotate`` may add to its axes."""
    import matplotlib

    # Text stays text, and the same results give the same file.
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "penstock",
        "font.size": 10,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    with matplotlib.rc_context(style):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Picture

        picture = Picture(figsize=(8 if figure.by else 6.5, 4.3), layout="constrained")
        FigureCanvasAgg(picture)
        axes = picture.add_subplot()
        _KINDS[figure.type](axes, figure, config, results, summary)
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
        annotate(axes)
        kind = figure.file.rpartition(".")[2]
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with atomic.replacing(folder / figure.file) as temporary:
            picture.savefig(temporary, format=kind, dpi=150, metadata=metadata)


def _logarithmic(axis: Any) -> None:
    """Make an axis logarithmic, with plain numbers 1, 2, 5, 10, … as labels."""
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
    """Return the label, colour and marker of each group together with its rows, in the order of the grid."""
    values = [None] if figure.by is None else frame[figure.by].unique(maintain_order=True).to_list()
    groups = []
    for value, colour, marker in zip(values, cycle(COLOURS), cycle(MARKERS)):
        label, rows = None, frame
        if figure.by is not None:
            label = config.label(value) if isinstance(value, str) else f"{config.label(figure.by)} {value}"
            rows = frame.filter(pl.col(figure.by) == value)
        groups.append(({"label": label, "color": colour, "marker": marker}, rows))
    return groups


def _means(group: pl.DataFrame, name: str) -> tuple[Any, Any]:
    """Return the mean of a measure in each setting, and the distances to the ends of its interval."""
    sides = (group[f"{side} {name}"].fill_null(group[f"mean {name}"]).to_numpy() for side in ("mean", "low", "high"))
    mean, low, high = sides
    return mean, np.maximum([mean - low, high - mean], 0)


def _line(
    axes: Any, figure: FigureSpec, config: ExperimentConfig, results: pl.DataFrame, summary: pl.DataFrame
) -> None:
    """Draw means with intervals. If the horizontal axis shows words, keep them in the order of the grid."""
    for style, group in _groups(figure, config, wide_summary(summary, (figure.y,))):
        x = [config.label(value) if isinstance(value, str) else value for value in group[figure.x]]
        y, along = _means(group, figure.y)
        axes.errorbar(x, y, along, markersize=5, capsize=3, linewidth=1.4, **style)


def _scatter(
    axes: Any, figure: FigureSpec, config: ExperimentConfig, results: pl.DataFrame, summary: pl.DataFrame
) -> None:
    """Draw one point per setting, with intervals on both axes."""
    for style, group in _groups(figure, config, wide_summary(summary, (figure.x, figure.y))):
        (x, across), (y, along) = (_means(group, name) for name in (figure.x, figure.y))
        axes.errorbar(x, y, along, across, markersize=5, linestyle="", elinewidth=0.8, capsize=2, **style)


def _box(axes: Any, figure: FigureSpec, config: ExperimentConfig, results: pl.DataFrame, summary: pl.DataFrame) -> None:
    """Draw the spread over seeds as a box plot: quartiles, whiskers of 1.5 interquartile ranges, and outliers."""
    frame = results.filter(pl.col("measure") == figure.y)
    places = frame[figure.x].unique(maintain_order=True).to_list()
    groups = _groups(figure, config, frame)
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


def draw_frontier(config: ExperimentConfig, summary: pl.DataFrame, table: pl.DataFrame, folder: Path) -> str | None:
    """Draw utility against risk for each setting, or return None if there are not two measures or matplotlib is
    missing.
    """
    choose = config.choose
    assert choose is not None
    useful, risky = [*choose.at_least], [*choose.at_most]
    pair = (useful + risky)[:2] if not (useful and risky) else [useful[0], risky[0]]
    if len(pair) < 2 or not installed():
        return None
    by = "variant" if "variant" in table.columns else None
    x, y = pair[1], pair[0]
    figure = FigureSpec(file="frontier.svg", type="scatter", x=x, y=y, by=by)

    def limits(axes: Any) -> None:
        """Draw lines at the limits, and circles around the settings that meet all of them."""
        for name, line in ((x, axes.axvline), (y, axes.axhline)):
            line((choose.at_least | choose.at_most)[name], color="black", linewidth=0.8, linestyle=":")
        for kept, size, width in (("allowed", 110, 0.8), ("best", 260, 1.6)):
            rows = table.filter(pl.col(kept))
            ring: Any = {"facecolors": "none", "edgecolors": "black", "zorder": 3}
            axes.scatter(rows[f"mean {x}"], rows[f"mean {y}"], s=size, linewidths=width, **ring)

    draw(figure, config, summary, summary, folder / "figures", limits)
    return "figures/frontier.svg"


_KINDS = {"line": _line, "scatter": _scatter, "box": _box}
