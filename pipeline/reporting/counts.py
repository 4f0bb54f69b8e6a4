"""Released and true counts of a run as matrices, and what is known of each window."""

from __future__ import annotations

import math
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.reporting.files import RunFiles
from pipeline.reporting.packed import as_integers, pack
from pipeline.reporting.rows import Piece, Places, cells_in_order, numbers, piece_of, text

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
class Windows:
    """What is known of each window, in their order.

    Parameters
    ----------
    index, start, end
        Number, and times in milliseconds.
    landmark
        Whether it is one.
    action
        What was done, as a position in `ACTIONS`.
    epsilon
        Its charge, added over streams.
    """

    index: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    landmark: NDArray[np.bool_]
    action: NDArray[np.int64]
    epsilon: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.index)

    def latest(self, n: int) -> Windows:
        """The last n windows."""
        return Windows(**{name: column[-n:] for name, column in vars(self).items()})

    def done(self) -> list[tuple[str, int]]:
        """What was done, and to how many windows; the most first."""
        counted = zip(ACTIONS, np.bincount(self.action, minlength=len(ACTIONS)).tolist())
        return sorted(((action, n) for action, n in counted if n), key=lambda pair: -pair[1])


@dataclass(frozen=True)
class Counts:
    """Everything the page shows about counts.

    Parameters
    ----------
    windows
        The windows shown.
    cells
        Names of the cells shown.
    released, truth, margin
        Shape (n_windows, n_cells), NaN where a sensor was not active: what was released, the distinct users before
        bounding (None outside simulations), and how far 95 % of the noise stays from 0.
    n_all_windows, n_all_cells
        How many there are, shown or not.
    """

    windows: Windows
    cells: tuple[str, ...]
    released: NDArray[np.float64]
    truth: NDArray[np.float64] | None
    margin: NDArray[np.float64]
    n_all_windows: int
    n_all_cells: int

    def as_json(self, later: Executor) -> dict[str, Any]:
        """Windows and matrices for the page's script; these are packed elsewhere, as they are large."""
        windows = self.windows
        per_window = self.margin[:, :1] if (self.margin == self.margin[:, :1]).all() else self.margin
        matrices = {"released": self.released, "truth": self.truth, "margin": per_window}
        packed = {name: None if matrix is None else pack(matrix, later=later) for name, matrix in matrices.items()}
        return {
            "window": pack(windows.index),
            "start": pack(windows.start, exact=True),
            "end": pack(windows.end, exact=True),
            "landmark": pack(windows.landmark),
            "action": pack(windows.action),
            "actions": ACTIONS,
            "epsilon": pack(windows.epsilon),
            "cells": self.cells,
        } | packed


def counts(files: RunFiles) -> Counts | None:
    """Read releases and truth; None before the first release."""
    with ThreadPoolExecutor(1) as helper:
        read = files.each("public/releases", RELEASED, _released, helper)
        if not read or not any(len(piece.cell) for piece, _ in read):
            return None
        truth = files.each("operator/truth", ("window", "cell", "count"), _truth, helper)
    pieces = [piece for piece, _ in read]
    windows = _windows([runs for _, runs in read])
    shown = windows.latest(MOST_WINDOWS)
    n_cells = min(MOST_CELLS, max(1, MOST_COUNTS // len(shown)))
    cells = cells_in_order(pieces, int(shown.index[0]))
    places = Places(pieces, shown.index, cells)
    chosen = np.arange(len(cells))
    if len(cells) > n_cells:
        chosen = np.sort(np.argsort(-places.totals(), kind="stable")[:n_cells])
    return Counts(
        windows=shown,
        cells=tuple(cells[i] for i in chosen),
        released=places.matrix(chosen),
        truth=None if truth is None else Places(truth, shown.index, cells).matrix(chosen),
        margin=places.matrix(chosen, 1),
        n_all_windows=len(windows),
        n_all_cells=len(cells),
    )


def _released(rows: pa.RecordBatch) -> tuple[Piece, dict[str, NDArray[Any]]]:
    """Values and margins of some rows; and of each run of rows of one window and stream what they have in common."""
    noise = text(rows, "noise")
    piece = piece_of(rows, _compact(rows["value"]), numbers(rows["scale"]), numbers(noise.indices))
    value, scale, kind = piece.values
    if len(scale) != len(kind):
        scale, kind = piece.per_row(scale), piece.per_row(kind)
    farthest = np.array([MIDDLE_95.get(name, math.nan) for name in noise.dictionary.to_pylist()])
    piece = replace(piece, values=(value, scale * farthest[kind]))
    stream, action = text(rows, "stream"), text(rows, "action")
    actions = np.array([ACTIONS.index(name) for name in action.dictionary.to_pylist()])
    columns = {
        "window": piece.window,
        "stream": np.array(stream.dictionary.to_pylist())[numbers(stream.indices)[piece.begin]],
        "start": _milliseconds(rows["window_start"])[piece.begin],
        "end": _milliseconds(rows["window_end"])[piece.begin],
        "landmark": numbers(rows["landmark"].cast(pa.int8()))[piece.begin] > 0,
        "action": actions[numbers(action.indices)[piece.begin]],
        "epsilon": numbers(rows["epsilon"])[piece.begin],
    }
    return piece, columns


def _truth(rows: pa.RecordBatch) -> Piece:
    return piece_of(rows, _compact(rows["count"]))


def _compact(column: pa.Array) -> NDArray[Any]:
    """Numbers in as few bytes as hold them exactly: mostly counts are whole and small, and there are many."""
    values = numbers(column)
    integers = as_integers(values)
    return values if integers is None else integers


def _milliseconds(times: pa.Array) -> NDArray[np.int64]:
    return numbers(times.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))


def _windows(pieces: list[dict[str, NDArray[Any]]]) -> Windows:
    """All windows, of the runs of all pieces."""
    runs = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    order = np.lexsort((runs["stream"], runs["window"]))
    window, stream, start, end, landmark, action, epsilon = (column[order] for column in runs.values())
    other_window = np.concatenate([[True], window[1:] != window[:-1]])
    other_release = other_window | np.concatenate([[True], stream[1:] != stream[:-1]])
    first, release = np.flatnonzero(other_window), np.flatnonzero(other_release)
    return Windows(
        index=window[first],
        start=start[first],
        end=end[first],
        landmark=np.logical_or.reduceat(landmark, first),
        action=np.maximum.reduceat(action, first),
        epsilon=np.add.reduceat(epsilon[release], np.searchsorted(release, first)),  # budgets add over streams
    )
