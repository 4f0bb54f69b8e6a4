"""Released and true counts of a run as matrices, and what is known of each window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.reporting.files import RunFiles
from pipeline.reporting.packed import pack

#: Counts that a page holds at most; beyond, it shows the busiest cells and the latest windows, and says so.
MOST_COUNTS = 1_000_000
MOST_WINDOWS = 20_000
MOST_CELLS = 2_000

#: What the page needs of a release.
RELEASED = (
    "stream",
    "window",
    "window_start",
    "window_end",
    "cell",
    "value",
    "epsilon",
    "noise",
    "scale",
    "landmark",
    "action",
)

#: What was done to a window, best first; where streams differ, the window counts as the last of these.
ACTIONS = ("published", "repeated", "suppressed", "refused")

#: How far 95 % of the noise stays from 0, in units of its scale.
MIDDLE_95 = {
    "laplace": math.log(20),
    "discrete_laplace": math.log(20),
    "gaussian": 1.96,
    "discrete_gaussian": 1.96,
}


@dataclass(frozen=True)
class Counts:
    """Everything the page shows about counts.

    Parameters
    ----------
    windows
        One row a window: window, start and end (milliseconds), landmark, action, epsilon.
    cells
        Names of the cells shown.
    released, truth, margin
        Shape (n_windows, n_cells), NaN where a sensor was not active: what was released, the distinct users before
        bounding (None outside simulations), and how far 95 % of the noise stays from 0.
    n_all_windows, n_all_cells
        How many there are, shown or not.
    """

    windows: pl.DataFrame
    cells: tuple[str, ...]
    released: NDArray[np.float64]
    truth: NDArray[np.float64] | None
    margin: NDArray[np.float64]
    n_all_windows: int
    n_all_cells: int

    def as_json(self) -> dict[str, Any]:
        """Windows and matrices for the page's script."""
        windows = self.windows
        per_window = self.margin[:, :1] if (self.margin == self.margin[:, :1]).all() else self.margin
        with ThreadPoolExecutor(2) as pool:  # compressing holds no lock of Python
            released, truth, margin = pool.map(_packed, (self.released, self.truth, per_window))
        return {
            "window": pack(windows["window"]),
            "start": pack(windows["start"], exact=True),
            "end": pack(windows["end"], exact=True),
            "landmark": pack(windows["landmark"]),
            "action": pack([ACTIONS.index(action) for action in windows["action"]]),
            "actions": ACTIONS,
            "epsilon": pack(windows["epsilon"]),
            "cells": self.cells,
            "released": released,
            "truth": truth,
            "margin": margin,
        }


def _packed(matrix: NDArray[np.float64] | None) -> dict[str, Any] | None:
    return None if matrix is None else pack(matrix)


def counts(files: RunFiles) -> Counts | None:
    """Read releases and truth; None before the first release."""
    released = files.table("public/releases", RELEASED)
    if released is None or released.is_empty():
        return None
    windows = _windows(released)
    released = released.select("window", "cell", "value", "noise", "scale")
    truth = files.table("operator/truth", ("window", "cell", "count"))
    shown = windows.tail(MOST_WINDOWS)
    n_cells = min(MOST_CELLS, max(1, MOST_COUNTS // len(shown)))
    released = released.filter(pl.col("window") >= shown["window"][0])
    cells = released["cell"].unique(maintain_order=True).cast(pl.String)
    busiest = cells
    if len(cells) > n_cells:
        totals = released.group_by("cell", maintain_order=True).agg(pl.col("value").sum())
        totals = totals.with_columns(pl.col("cell").cast(pl.String))
        chosen = totals.sort("value", descending=True)["cell"].head(n_cells)
        busiest = cells.filter(cells.is_in(chosen.implode()))
    margin = released["scale"] * _looked_up(released["noise"], MIDDLE_95, math.nan)
    place = _Places(released, shown["window"], busiest)
    return Counts(
        windows=shown,
        cells=tuple(busiest.to_list()),
        released=place.matrix(released["value"]),
        truth=None if truth is None else _Places(truth, shown["window"], busiest).matrix(truth["count"]),
        margin=place.matrix(margin),
        n_all_windows=len(windows),
        n_all_cells=len(cells),
    )


def _windows(released: pl.DataFrame) -> pl.DataFrame:
    order = pl.col("action").cast(pl.Enum(ACTIONS)).to_physical().cast(pl.Int64)
    # All rows of a release say the same of it, and follow each other.
    other = (pl.col("window") != pl.col("window").shift()) | (pl.col("stream") != pl.col("stream").shift())
    per_stream = (
        released.filter(other.fill_null(True))
        .group_by("stream", "window")
        .agg(
            pl.col("window_start").first().dt.epoch("ms").alias("start"),
            pl.col("window_end").first().dt.epoch("ms").alias("end"),
            pl.col("landmark").any(),
            order.max().alias("action"),
            pl.col("epsilon").first(),
        )
    )
    # Budgets add over streams.
    totals = [pl.col("start", "end").first(), pl.col("landmark").any(), pl.col("action").max(), pl.col("epsilon").sum()]
    name = pl.col("action").replace_strict(dict(enumerate(ACTIONS)), return_dtype=pl.String)
    return per_stream.group_by("window").agg(totals).sort("window").with_columns(name)


class _Places:
    """Where the rows of a table, each of a window and a cell, stand in a matrix of windows and cells."""

    def __init__(self, frame: pl.DataFrame, windows: pl.Series, cells: pl.Series) -> None:
        self.shape = len(windows), len(cells)
        known = {cell: position for position, cell in enumerate(cells.to_list())}
        column = _looked_up(frame["cell"], known, -1).to_numpy()
        window, numbers = frame["window"].to_numpy(), windows.to_numpy()
        # Mostly every window has a row for every cell, always in the same order.
        self.is_whole = len(column) == len(windows) * len(cells) and all(
            (axis.reshape(self.shape) == same).all()
            for axis, same in ((window, numbers[:, None]), (column, np.arange(len(cells))))
        )
        if not self.is_whole:
            self.shown = (column >= 0) & (window >= numbers[0]) & (window <= numbers[-1])
            self.at = np.searchsorted(numbers, window[self.shown]), column[self.shown]

    def matrix(self, values: pl.Series) -> NDArray[np.float64]:
        """Values of shape (n_windows, n_cells), NaN where there is none."""
        numbers = values.to_numpy().astype(np.float64)
        if self.is_whole:
            return numbers.reshape(self.shape)
        matrix = np.full(self.shape, np.nan)
        matrix[self.at] = numbers[self.shown]
        return matrix


def _looked_up(texts: pl.Series, known: Mapping[str, float], unknown: float) -> pl.Series:
    """The number of every text, by way of the few different texts."""
    texts = texts if texts.dtype == pl.Categorical else texts.cast(pl.Categorical)
    different = texts.unique()
    codes = different.to_physical().to_numpy()
    numbers = np.full(int(codes.max(initial=0)) + 1, unknown)
    numbers[codes] = [known.get(text, unknown) for text in different.cast(pl.String).to_list()]
    return pl.Series(texts.name, numbers[texts.to_physical().to_numpy()])
