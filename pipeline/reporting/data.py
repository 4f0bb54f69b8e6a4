"""Data of the report: tables of a run, read piecewise and packed for the page."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from mechanisms.core.plugin import DataError

# The files of a run as tables: merged where the run is over, the parts so far while it goes on.


T = TypeVar("T")

#: Rows of a long table that are read at once: their columns stay in the processor's cache.
PIECE = 1 << 16

#: Where the parts of each table are before they are merged.
PARTS = {
    "public/releases": "public/parts/releases",
    "public/accounts": "public/parts/accounts_public",
    "operator/accounts": "operator/parts/accounts",
    "operator/truth": "operator/parts/truth",
    "public/traces": "public/parts/traces",
}


@dataclass(frozen=True)
class RunFiles:
    """Read access to one run's folder.

    Parameters
    ----------
    folder
        The folder; raises `DataError` on first use where it holds no run.
    """

    folder: Path

    @cached_property
    def public(self) -> dict[str, Any]:
        """The public manifest, written when a run begins."""
        path = self.folder / "public" / "manifest.json"
        if not path.is_file():
            raise DataError(f"{self.folder}: no run here (public/manifest.json is missing)")
        return _read_json(path)

    @cached_property
    def operator(self) -> dict[str, Any] | None:
        """The operator's manifest; None until the run is over."""
        path = self.folder / "operator" / "manifest.json"
        return _read_json(path) if path.is_file() else None

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration, whole where the operator's manifest is there."""
        manifest = self.operator or self.public
        configuration: dict[str, Any] = manifest["configuration"]
        return configuration

    def table(self, name: str) -> pl.DataFrame | None:
        """A table such as ``public/accounts``, text columns as strings; None if nothing of it is there."""
        read = self._read(name, lambda paths: [_read(path) for path in paths])
        return pl.concat(read) if read else None

    def each(
        self, name: str, columns: Sequence[str], take: Callable[[pa.RecordBatch], T], helper: Executor
    ) -> list[T] | None:
        """What a function makes of each piece of a long table, in their order; None if nothing of it is there.

        Parameters
        ----------
        name
            As in `table`.
        columns
            Those that the function needs; text comes as codes into the few different texts.
        take
            Called with some rows after the other, so that memory for columns it does not keep is used again.
        helper
            Another thread, which begins with the first row groups: reading holds no lock of Python.
        """

        def taken(path: Path, row_group: int) -> list[T]:
            return [take(piece) for piece in _pieces(path, row_group, columns)]

        def read(paths: list[Path]) -> list[T]:
            groups = [(path, group) for path in paths for group in range(pq.read_metadata(path).num_row_groups)]
            tasks = [helper.submit(taken, *group) for group in groups]
            # From the last one on, those that the helper has not begun.
            own = {i: taken(*groups[i]) for i in reversed(range(len(groups))) if tasks[i].cancel()}
            return list(chain.from_iterable(own[i] if i in own else task.result() for i, task in enumerate(tasks)))

        return self._read(name, read)

    def _read(self, name: str, read: Callable[[list[Path]], list[T]]) -> list[T] | None:
        """What is read from the merged file, or the parts so far; None if there is neither."""
        path = self.folder / f"{name}.parquet"
        try:
            if path.is_file():
                return read([path])
            parts = sorted((self.folder / PARTS[name]).glob("*.parquet")) if name in PARTS else []
            return read(parts) if parts else None
        except (OSError, pl.exceptions.PolarsError, pa.ArrowException) as error:
            if self.operator is None:
                return None  # merged while we looked, or still being written
            raise DataError(f"{path}: cannot be read ({error})") from error

    def rejects(self, n_most: int) -> list[dict[str, Any]]:
        """The first rejected rows."""
        path = self.folder / "operator" / "rejects.jsonl"
        if not path.is_file():
            return []
        with path.open(encoding="utf-8", errors="replace") as lines:
            return [json.loads(line) for line, _ in zip(lines, range(n_most))]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    return value


def _read(path: Path) -> pl.DataFrame:
    table = pl.read_parquet(path)
    coded = [name for name, kind in table.schema.items() if isinstance(kind, pl.Categorical | pl.Enum)]
    return table.with_columns(pl.col(coded).cast(pl.String)) if coded else table


def _pieces(path: Path, row_group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise pa.ArrowInvalid(f"no column {missing[0]}")
        yield from file.iter_batches(PIECE, [row_group], list(columns), use_threads=False)


# Arrays inside JSON: compressed and base64, so that a page with a million counts stays small.


#: Bytes out of the middle of a long array that tell how it is best compressed.
SAMPLE = 1 << 16


def pack(values: ArrayLike, exact: bool = False, later: Executor | None = None) -> dict[str, Any]:
    """An array as a value that ``unpack`` of the page turns into a typed array: JSON but for bytes, perhaps to come.

    Parameters
    ----------
    values
        Numbers of any shape; NaN and infinities are kept.
    exact
        Keep 64-bit floating point (times); otherwise the smallest of 1, 2 and 4 byte integers that holds all values,
        or 32-bit floating point.
    later
        Where to compress, which needs no lock of Python, while other things are done; None: here and now.

    Examples
    --------
    >>> pack([1, 2, 300])["type"], pack([0.5, 2])["type"], pack([True, False])["type"]
    ('i2', 'f4', 'i1')
    """
    array = np.asarray(values)
    array = array.astype("<f8") if exact else _smallest(array)
    packed = later.submit(_packed, array) if later else _packed(array)
    return {"type": array.dtype.str[1:], "packed": packed}


def _packed(array: NDArray[Any]) -> bytes:
    return base64.b64encode(_compressed(array))


def _compressed(array: NDArray[Any]) -> bytes:
    """In zlib's format: what is long and has no repeats, as noisy counts, is not searched for any."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    searched, coded = zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE
    strategy = searched
    if len(data) > 4 * SAMPLE:
        some = data[len(data) // 2 :][:SAMPLE]
        strategy = min(searched, coded, key=lambda each: len(_deflated(some, each)))
    return _deflated(data, strategy)


def _deflated(data: NDArray[np.uint8], strategy: int) -> bytes:
    deflating = zlib.compressobj(1, strategy=strategy)  # a higher level saves 1 % of noise
    return deflating.compress(data.data) + deflating.flush()


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    integers = as_integers(array)
    if integers is not None:
        return integers
    with np.errstate(over="ignore"):
        return array.astype(np.float64, copy=False).astype("<f4")


def as_integers(array: NDArray[Any]) -> NDArray[Any] | None:
    """Numbers as the smallest of 1, 2 and 4 byte integers that holds all; None where one is not whole or too large.

    Examples
    --------
    >>> as_integers(np.array([1.0, -300.0])), as_integers(np.array([0.5, 2]))
    (array([   1, -300], dtype=int16), None)
    """
    least, largest = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (least > -(2.0**31) and largest < 2.0**31):  # also where one is not a number
        return None
    whole = array.astype(np.int32) if array.dtype.kind == "f" else array
    if whole is not array and not (whole == array).all():
        return None
    bits = max(-least, largest)
    return whole.astype("i1" if bits < 2**7 else "<i2" if bits < 2**15 else "<i4", copy=False)


# Long tables, each row of a window and a cell, as matrices: read piece by piece, what is not needed left out.


@dataclass(frozen=True)
class Piece:
    """Rows that follow each other.

    Parameters
    ----------
    window, begin
        Of every run of rows that are of one window and stream: the window, and the first row.
    cell
        Position of every row's cell in ``names``.
    names
        The different cells, an array of text.
    values
        Some numbers of every row, or of every run whose rows have the same.
    """

    window: NDArray[np.int64]
    begin: NDArray[np.int64]
    cell: NDArray[np.int32]
    names: pa.Array
    values: tuple[NDArray[Any], ...]

    def per_row(self, values: NDArray[Any]) -> NDArray[Any]:
        """What is known of every run, for every row."""
        if len(values) == len(self.cell):
            return values
        return np.repeat(values, np.diff(self.begin, append=len(self.cell)))


def piece_of(rows: pa.RecordBatch, *values: NDArray[Any]) -> Piece:
    """Rows with the columns ``window``, ``cell`` and, where streams are told apart, ``stream``."""
    window = numbers(rows["window"])
    other = window[1:] != window[:-1]
    if "stream" in rows.schema.names and len(text(rows, "stream").dictionary) > 1:
        stream = numbers(text(rows, "stream").indices)
        other |= stream[1:] != stream[:-1]
    begin = np.concatenate([np.zeros(min(1, len(window)), np.int64), np.flatnonzero(other) + 1])
    cell = text(rows, "cell")
    kept = tuple(each if ((each[1:] != each[:-1]) > other).any() else each[begin] for each in values)
    return Piece(window[begin], begin, numbers(cell.indices), cell.dictionary, kept)


def numbers(column: pa.Array) -> NDArray[Any]:
    """A column of numbers, where it lies in memory; pyarrow's own way would import pandas first, which takes long."""
    return np.from_dlpack(column)


def text(rows: pa.RecordBatch, column: str) -> pa.DictionaryArray:
    """A column of text as codes and the few different texts."""
    texts = rows[column]
    return texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()


def cells_in_order(pieces: Sequence[Piece], first_window: int) -> list[str]:
    """Names of all cells that have a row from some window on, in the order in which they come up."""
    found: dict[str, None] = {}
    known: pa.Array | None = None
    for piece in pieces:
        if known is not None and piece.names.equals(known):
            continue
        rows, due = piece.cell, piece.window >= first_window
        if not due.all():
            rows = rows[piece.per_row(due)]
        first = np.full(len(piece.names), len(rows))
        first[rows[::-1]] = np.arange(len(rows))[::-1]  # of all rows of a cell the first is written last
        present = np.flatnonzero(first < len(rows))
        names = piece.names.to_pylist()
        found |= dict.fromkeys(names[code] for code in present[np.argsort(first[present])])
        known = piece.names if len(present) == len(names) else known
    return list(found)


class Places:
    """Where the rows of a table stand in a matrix of windows and cells.

    Parameters
    ----------
    pieces
        All rows of the table.
    windows
        Windows of the matrix, growing.
    cells
        Names of its cells.
    """

    def __init__(self, pieces: Sequence[Piece], windows: NDArray[np.int64], cells: Sequence[str]) -> None:
        self.pieces, self.windows = pieces, windows
        self.shape = len(windows), len(cells)
        self.columns = list(_columns(pieces, cells))
        # Mostly every window has a row for every cell, always in the same order.
        self.is_whole = self._is_whole()

    def _is_whole(self) -> bool:
        """Whether the rows in their order are the matrix."""
        n_windows, n_cells = self.shape
        starts = [0, *accumulate(map(len, self.columns))]
        if starts[-1] != n_windows * n_cells:
            return False
        window = np.concatenate([piece.window for piece in self.pieces])
        begin = np.concatenate([start + piece.begin for start, piece in zip(starts, self.pieces)])
        # A window that goes on in the next piece begins there once more.
        again = (begin % n_cells != 0) & np.isin(begin, starts) & (np.diff(window, prepend=window[0]) == 0)
        window, begin = window[~again], begin[~again]
        order = np.arange(n_cells, dtype=np.int32)
        return (
            np.array_equal(window, self.windows)
            and np.array_equal(begin, np.arange(n_windows) * n_cells)
            and all(
                np.array_equal(column, np.resize(np.roll(order, -start), len(column)))
                for start, column in zip(starts, self.columns)
            )
        )

    def _shown(self) -> Iterator[tuple[Piece, NDArray[np.bool_] | slice, NDArray[np.int32]]]:
        """Every piece, which of its rows are in the matrix, and their columns there."""
        for piece, column in zip(self.pieces, self.columns):
            if self.is_whole:
                yield piece, slice(None), column
                continue
            within = (piece.window >= self.windows[0]) & (piece.window <= self.windows[-1])
            rows = piece.per_row(within) & (column >= 0)
            yield piece, rows, column[rows]

    def totals(self) -> NDArray[np.float64]:
        """Sum of the first values over all windows, for every cell."""
        totals = np.zeros(self.shape[1])
        for piece, rows, column in self._shown():
            totals += np.bincount(column, piece.per_row(piece.values[0])[rows], self.shape[1])
        return totals

    def matrix(self, chosen: NDArray[np.int64], which: int = 0) -> NDArray[Any]:
        """Some values of each row by window and chosen cell, shape (n_windows, n_chosen), NaN where there is no row."""
        if self.is_whole:
            same = self._per_window(which)
            if same is not None:
                return np.broadcast_to(same[:, None], (len(same), len(chosen)))
            whole = np.concatenate([piece.per_row(piece.values[which]) for piece in self.pieces]).reshape(self.shape)
            return whole if len(chosen) == self.shape[1] else whole[:, chosen]
        matrix = np.full((self.shape[0], len(chosen)), np.nan)
        position = np.full(self.shape[1], -1)
        position[chosen] = np.arange(len(chosen))
        for piece, rows, column in self._shown():
            row = piece.per_row(np.searchsorted(self.windows, piece.window))[rows]
            at = position[column]
            matrix[row[at >= 0], at[at >= 0]] = piece.per_row(piece.values[which])[rows][at >= 0]
        return matrix

    def _per_window(self, which: int) -> NDArray[Any] | None:
        """Values that are the same in all rows of each window, of a whole matrix; None where they are not."""
        if not all(len(piece.values[which]) == len(piece.begin) for piece in self.pieces):
            return None
        values = np.concatenate([piece.values[which] for piece in self.pieces])
        row = np.searchsorted(self.windows, np.concatenate([piece.window for piece in self.pieces]))
        same = np.empty(self.shape[0], values.dtype)
        same[row] = values
        return same if np.array_equal(same[row], values) else None


def _columns(pieces: Sequence[Piece], cells: Sequence[str]) -> Iterator[NDArray[np.int32]]:
    """Position of every row's cell among some cells, −1 where it is none of them."""
    known = {name: column for column, name in enumerate(cells)}
    names: pa.Array | None = None
    column, is_same = np.empty(0, np.int32), False
    for piece in pieces:
        if names is None or not piece.names.equals(names):
            names = piece.names
            column = np.array([known.get(name, -1) for name in names.to_pylist()], np.int32)
            is_same = np.array_equal(column, np.arange(len(column)))
        yield piece.cell if is_same else column.take(piece.cell)


# Released and true counts of a run as matrices, and what is known of each window.


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
