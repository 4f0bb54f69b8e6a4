"""Long tables, each row of a window and a cell, as matrices: read piece by piece, what is not needed left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


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
