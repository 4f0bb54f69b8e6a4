"""Matplotlib plots of a run for notebooks: counts over time, and a map of one window."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, MissingLibrary, ParameterError
from penstock.pipeline.output.cells import CELLS, read_cells, rings_of
from penstock.pipeline.output.maps import read_outlines
from penstock.pipeline.output.utility_summary import ends
from penstock.pipeline.reporting.data import Run, ShownCounts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_RELEASED, _TRUE, _NEGATIVE, _MISSING, _OUTLINE = "#1f5fa8", "#b3541e", "#8a4fa3", "#c8ccd1", "#2b3036"


@dataclass(frozen=True, eq=False)
class Drawing:
    """A plot that notebooks display automatically. Its Matplotlib ``figure`` can be modified or saved."""

    figure: Figure

    @property
    def svg(self) -> str:
        """The plot as an SVG document whose text remains selectable."""
        from matplotlib import rc_context

        text = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "penstock"}):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()[text.getvalue().index("<svg") :]

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Save the plot to a file. The extension (svg, pdf, png, …) determines the format."""
        self.figure.savefig(path)
        return Path(path)


def draw_counts(run: Run, cell: str | None = None) -> Drawing:
    """Plot a cell's released counts with 95 % intervals, and true counts if known. The default is the busiest cell."""
    counts = _counts(run)
    if cell is not None and cell not in counts.cells:
        raise ParameterError("cell", cell, f"a cell of the run, such as {counts.cells[0]!r}")
    at = int(np.argmax(np.nansum(counts.released, axis=0))) if cell is None else counts.cells.index(cell)
    return draw_series(
        f"{run.counted.capitalize()} in {counts.cells[at]}, window by window",
        [_local(start, run.time_zone) for start in counts.windows["start"]],
        counts.released[:, at],
        counts.margin[:, at],
        None if counts.truth is None else counts.truth[:, at],
    )


def draw_series(
    title: str, times: Sequence[str], released: Array, margin: Array, truth: Array | None = None
) -> Drawing:
    """Plot one series of released counts with its 95 % interval, along with the true counts if they are known."""
    figure, axes = _axes(2.6, title)
    windows = np.arange(len(released))
    wide = 1.5 if len(released) <= 200 else 1.0
    known = ~np.isnan(margin)
    if truth is not None:
        axes.plot(windows, truth, color=_TRUE, linewidth=wide, label="true")
    if known.any():
        low, high = ends(released, margin)
        axes.fill_between(windows, low, high, where=known.tolist(), color=_RELEASED, alpha=0.18, linewidth=0)
    label = "released, with 95 % interval" if known.any() else "released"
    axes.plot(windows, released, color=_RELEASED, linewidth=wide, label=label)
    axes.set_xticks(ticks := sorted({0, len(times) // 2, len(times) - 1}), [times[i] for i in ticks])
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=max(1.0, axes.get_ylim()[1]))
    axes.grid(axis="y", color="#d5d9de")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    return Drawing(figure)


def notebook_html(title: str, lines: Iterable[str], plot: Callable[[], Drawing] | None) -> str:
    """Return a result's HTML for notebooks: a title, a few sentences, and a plot if Matplotlib is installed."""
    first, *others = map(escape, lines)
    text = "".join(f"<p>{line}</p>" for line in [f"<strong>{escape(title)}</strong>: {first}", *others])
    try:
        return text if plot is None else text + plot()._repr_html_()
    except MissingLibrary as error:
        return f"{text}<p>{escape(str(error))}</p>"


def draw_map(run: Run, window: int | None = None) -> Drawing:
    """Draw a map of a window's releases, with negative counts in another colour. The default is the busiest window."""
    counts = _counts(run)
    numbers = counts.windows["window"].to_list()
    if window is not None and window not in numbers:
        raise ParameterError("window", window, f"a window of the run, from {numbers[0]} to {numbers[-1]}")
    row = int(np.nanargmax(np.nansum(counts.released, axis=1))) if window is None else numbers.index(window)
    if (cells := read_cells(run.folder)) is None:
        path = run.folder / "public" / CELLS
        raise DataError(f"{path}: no such file: the cells of this run have no place on a map")
    places = {cell: rings_of(geometry) for cell, geometry in cells.items() if geometry is not None}
    values = dict(zip(counts.cells, counts.released[row].tolist()))
    when = _local(counts.windows["start"][row], run.time_zone)
    figure, axes = _axes(4.6, f"Released counts, window {numbers[row]} from {when}")
    _draw_cells(axes, places, [values.get(cell, math.nan) for cell in places])
    for line in read_outlines(run.folder):
        axes.plot(*np.transpose(line), color=_OUTLINE, alpha=0.6, linewidth=0.8)
    corners = np.array([corner for rings in places.values() for ring in rings for corner in ring])
    (west, south), (east, north) = corners.min(axis=0), corners.max(axis=0)
    if west < east and south < north:
        axes.set(xlim=(west, east), ylim=(south, north))
    axes.set_aspect(1 / math.cos(math.radians((south + north) / 2)))
    axes.set_axis_off()
    return Drawing(figure)


def _draw_cells(axes: Axes, places: dict[str, list[list[list[float]]]], values: list[float]) -> None:
    """Colour each cell by its value, draw cells without an area as dots, and add a colour bar."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap
    from matplotlib.path import Path as Outline

    maximum = max([1.0, *(abs(value) for value in values if math.isfinite(value))])
    colours = LinearSegmentedColormap.from_list("counts", [_NEGATIVE, "#ffffff", _RELEASED]).with_extremes(bad=_MISSING)
    # By the root, so that small counts are told from none.
    signed_root_and_square = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    norm = FuncNorm(signed_root_and_square, vmin=-maximum, vmax=maximum)
    look: dict[str, Any] = {"cmap": colours, "norm": norm, "edgecolor": "#9aa3ad", "linewidth": 0.5}
    numbers = np.ma.masked_invalid(np.array(values, np.float64))
    is_point = np.array([len(rings[0]) == 1 for rings in places.values()])
    outlines = [
        Outline.make_compound_path(*(Outline(np.array(ring, np.float64), closed=True) for ring in rings))
        for rings in places.values()
        if len(rings[0]) > 1
    ]
    areas = axes.add_collection(PathCollection(outlines, **look))
    areas.set_array(numbers[~is_point])
    if is_point.any():
        longitudes, latitudes = np.array([rings[0][0] for rings in places.values() if len(rings[0]) == 1]).T
        axes.scatter(longitudes, latitudes, c=numbers[is_point], s=36, plotnonfinite=True, **look)
    axes.autoscale_view()
    scale = axes.figure.colorbar(areas, ax=axes, shrink=0.7, label="people (grey: not shown)")
    scale.ax.set_ylim(-maximum if (numbers < 0).any() else 0.0, maximum)


def _axes(height: float, title: str) -> tuple[Figure, Axes]:
    """Return a figure with a single pair of axes. Raise `MissingLibrary` if Matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingLibrary("drawings need Matplotlib, which is not installed: pip install 'penstock[plot]'") from None
    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.tick_params(labelsize=8)
    return figure, axes


def _counts(run: Run) -> ShownCounts:
    counts = run.counts
    if counts is None:
        raise DataError(f"{run.folder}: there are no released counts to draw")
    return counts


def _local(milliseconds: int, zone: str) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")
