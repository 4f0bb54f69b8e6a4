"""Drawings of a run for a notebook: counts over time, and a map of a window, as SVG without any library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.output.maps import CELLS, read_cells, read_outlines, rings_of
from penstock.pipeline.output.worth import ends
from penstock.pipeline.reporting.data import Counts, Run

Array = NDArray[np.float64]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 260, 56, 30, 28
_RELEASED, _TRUE = "#1f5fa8", "#b3541e"


@dataclass(frozen=True)
class Drawing:
    """A drawing that notebooks show by themselves.

    Parameters
    ----------
    svg
        The drawing as text; `save` writes it.
    """

    svg: str

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the drawing to an SVG file."""
        Path(path).write_text(self.svg, encoding="utf-8")
        return Path(path)


def draw_counts(run: Run, cell: str | None = None) -> Drawing:
    """Released counts over time with the band that holds 95 %, and the true ones where they are known.

    ``cell``: name of a cell; None: the one with the largest released total. Raises `ParameterError` if there is no such
    cell.
    """
    counts = _counts(run)
    at = _cell(counts, cell)
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
    """Released counts of one cell over time with the band that holds 95 %, and the true ones.

    ``released``, ``margin``, ``truth``, of shape (n_windows,): values, half-widths of their intervals (NaN: none), and
    true counts, if they are known.
    """
    series = [released] + ([] if truth is None else [truth])
    low, high = ends(released, margin)
    sides = np.concatenate([*series, low, high])
    least, most = min(0.0, float(np.nanmin(sides))), max(1.0, float(np.nanmax(sides)))
    x = _LEFT + (np.arange(len(released)) + 0.5) * (_WIDTH - _LEFT - 10) / len(released)

    def y(values: Array) -> Array:
        """Height of values in the drawing."""
        return _TOP + (most - values) / (most - least) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_text(_LEFT, 18, title, bold=True)]
    for value in _ticks(least, most):
        height = float(y(np.array([value]))[0])
        parts.append(f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - 10}" stroke="#d5d9de"/>')
        parts.append(_text(_LEFT - 6, height + 4, f"{value:g}", anchor="end"))
    known = ~np.isnan(margin)
    if known.any():
        edge = [*zip(x[known], y(low[known])), *reversed([*zip(x[known], y(high[known]))])]
        parts.append(f'<polygon points="{_pairs(edge)}" fill="{_RELEASED}" opacity="0.18"/>')
    name = "released, with 95 % interval" if known.any() else "released"
    drawn = [(name, _RELEASED, released)] + ([] if truth is None else [("true", _TRUE, truth)])
    wide = 1.5 if len(released) <= 200 else 1
    for i, (name, colour, values) in enumerate(reversed(drawn)):  # the released ones on top
        shown = ~np.isnan(values)
        points = _pairs(zip(x[shown], y(values[shown])))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}"/>')
        parts.append(_text(_WIDTH - 10 - 60 * i, 18, name, anchor="end", colour=colour))
    for i, anchor in ((0, "start"), (len(times) // 2, "middle"), (len(times) - 1, "end")):
        parts.append(_text(float(x[i]), _HEIGHT - 8, times[i], anchor=anchor))
    return Drawing(_svg(parts, _HEIGHT, title))


def shown_in_notebook(title: str, said: Iterable[str], drawing: Drawing | None) -> str:
    """What a notebook shows of a result: its title, some sentences, and a drawing."""
    first, *others = said
    text = "".join(
        f"<p>{one}</p>" for one in [f"<strong>{escape(title)}</strong>: {escape(first)}", *map(escape, others)]
    )
    return text if drawing is None else text + drawing.svg


def draw_map(run: Run, window: int | None = None) -> Drawing:
    """Map of the released counts of a window; values below zero have a colour of their own.

    ``window``: 1-based; None: the one with the largest released total. Raises `DataError` if the cells of the run have
    no place on a map. Raises `ParameterError` if there is no such window.
    """
    counts = _counts(run)
    numbers = counts.windows["window"].to_list()
    if window is None:
        row = int(np.nanargmax(np.nansum(counts.released, axis=1)))
    elif window in numbers:
        row = numbers.index(window)
    else:
        raise ParameterError("window", window, f"a window of the run, from {numbers[0]} to {numbers[-1]}")
    places = _places(run)
    values = dict(zip(counts.cells, counts.released[row].tolist()))
    corners = np.array([corner for rings in places.values() for ring in rings for corner in ring])
    (west, south), (east, north) = corners.min(axis=0), corners.max(axis=0)
    squeeze = math.cos(math.radians((south + north) / 2))
    wide, high = max((east - west) * squeeze, 1e-9), max(north - south, 1e-9)
    scale = min((_WIDTH - 20) / wide, 420 / high)
    height = int(high * scale) + _TOP + 34
    most = max([1.0, *(abs(value) for value in values.values() if math.isfinite(value))])

    def at(point: Sequence[float]) -> tuple[float, float]:
        """A point of longitude and latitude in the drawing."""
        return 10 + (point[0] - west) * squeeze * scale, _TOP + 6 + (north - point[1]) * scale

    when = _local(counts.windows["start"][row], run.time_zone)
    parts = [_text(10, 18, f"Released counts, window {numbers[row]} from {when}", bold=True)]
    for cell, rings in places.items():
        value = values.get(cell, math.nan)
        said = f"<title>{escape(cell)}: {value:.3g}</title>"
        look = f'fill="{_colour(value, most)}" stroke="#9aa3ad" stroke-width="0.5"'
        if len(rings[0]) == 1:
            x, y = at(rings[0][0])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" {look}>{said}</circle>')
        else:
            outline = "".join(f"M{_pairs(map(at, ring))}Z" for ring in rings)
            parts.append(f'<path d="{outline}" fill-rule="evenodd" {look}>{said}</path>')
    lines = "".join(f"M{_pairs(map(at, line.tolist()))}" for line in read_outlines(run.folder))
    if lines:
        frame = f'y="{_TOP}" height="{height - _TOP - 22}" viewBox="0 {_TOP} {_WIDTH} {height - _TOP - 22}"'
        path = f'<path d="{lines}" fill="none" stroke="#2b3036" stroke-opacity="0.6"/>'
        parts.append(f'<svg {frame} width="{_WIDTH}">{path}</svg>')
    parts += _legend([values.get(cell, math.nan) for cell in places], most, height - 8)
    return Drawing(_svg(parts, height, f"Map of released counts of window {numbers[row]}"))


def _legend(values: Sequence[float], most: float, y: float) -> list[str]:
    """Colours of a map with what they stand for, as far as it has them."""
    steps = [most * share**2 for share in np.linspace(0, 1, 6)]
    keys = [(_colour(value, most), f"{value:.2g}") for value in steps]
    keys += [(_colour(-most, most), "below 0")] if any(value < 0 for value in values) else []
    keys += [(_colour(math.nan, most), "not shown")] if any(map(math.isnan, values)) else []
    parts = []
    for i, (colour, said) in enumerate(keys):
        x = 10 + 66 * i
        parts.append(f'<rect x="{x}" y="{y - 9:.1f}" width="14" height="10" fill="{colour}" stroke="#9aa3ad"/>')
        parts.append(_text(x + 18, y, said))
    return parts


def _counts(run: Run) -> Counts:
    counts = run.counts
    if counts is None:
        raise DataError(f"{run.folder}: there are no released counts to draw")
    return counts


def _cell(counts: Counts, cell: str | None) -> int:
    if cell is None:
        return int(np.argmax(np.nansum(counts.released, axis=0)))
    if cell not in counts.cells:
        raise ParameterError("cell", cell, f"a cell of the run, such as {counts.cells[0]!r}")
    return counts.cells.index(cell)


def _places(run: Run) -> dict[str, list[list[list[float]]]]:
    """Rings of the cells that have a place, or their one point."""
    found = read_cells(run.folder)
    if found is None:
        path = run.folder / "public" / CELLS
        raise DataError(f"{path}: no such file: the cells of this run have no place on a map")
    return {cell: rings_of(geometry) for cell, geometry in found.items() if geometry is not None}


def _colour(value: float, most: float) -> str:
    if not math.isfinite(value):
        return "#c8ccd1"
    full = (31, 95, 168) if value >= 0 else (138, 79, 163)
    share = math.sqrt(min(abs(value) / most, 1.0))  # so that small counts are told from none
    mixed = (round(pale + (strong - pale) * share) for pale, strong in zip((255, 255, 255), full))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _ticks(least: float, most: float) -> NDArray[np.float64]:
    """A few round numbers within a range.

    >>> _ticks(-3.0, 42.0).tolist()
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    rough = (most - least) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.8)
    return np.arange(math.ceil(least / step), math.floor(most / step) + 1).astype(np.float64) * step


def _local(milliseconds: int, zone: str) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")


def _pairs(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#2b3036", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'


def _svg(parts: Sequence[str], height: int, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(label)}" font-family="sans-serif" font-size="11" style="background:#fff;max-width:100%">'
        f"{''.join(parts)}</svg>"
    )
