"""Raster of a space, in which only points in squares touched by an edge need an exact test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
#: Whether a cell holds a point, by cell index, latitude and longitude, each of shape (n,).
Holds = Callable[[Indices, Floats, Floats], NDArray[np.bool_]]

#: Most squares from west to east, and from south to north, without the margin (4 bytes each).
SQUARES_ALONG = 1800
_PIECES_PER_BATCH = 1 << 18
#: Points that are not worth a raster.
FEW_POINTS = 1 << 14


@dataclass(frozen=True)
class Raster:
    """A grid of equal squares over a space and a margin, which stores the cells of each square."""

    west: float  # corner of the first square, in degrees
    south: float
    width: float  # size of a square, in degrees
    height: float
    answers: NDArray[np.int32]  # by row and column: a cell, −1 outside of all, or −2 − k where an edge touches
    offsets: Indices  # where the cells of each square that an edge touches begin in `listed`, and the end of the last
    listed: Indices  # cells that hold points of a square, one square after another, each in ascending order

    @classmethod
    def over(
        cls, edges: Floats, cell: Indices, holds: Holds, *, along: float = SQUARES_ALONG, slack: float = 1e-6
    ) -> Raster:
        """Rasterise the edges of all cells and list each square's cells. A point in several cells belongs to the first.

        ``edges``: straight sides of all cells, shape (n, 4): longitude and latitude of both ends. ``cell``: the cell
        of each, shape (n,). ``along``: squares from one side of the space to the other. ``slack``: how far from its
        place an edge may be, in squares: rounding, or the bend of a curve. At most .5.
        """
        (west, south), (east, north) = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
        width, height = (max(size / along, 1e-9) for size in (east - west, north - south))
        west, south = west - 2 * width, south - 2 * height  # no edge comes near the outermost squares
        shape = tuple(
            math.ceil((high - low) / size) + 2 for low, high, size in ((south, north, height), (west, east, width))
        )
        cell, square = _touched_squares((edges - [west, south] * 2) / ([width, height] * 2), cell, shape, slack)
        # Squares of one row between two that a cell's edges touch are all within the cell or all outside of it.
        same = (np.diff(cell) == 0) & (np.diff(square // shape[1]) == 0) & (np.diff(square) > 1)
        between, begin, end = cell[:-1][same], square[:-1][same] + 1, square[1:][same]
        row, column = np.divmod(begin, shape[1])
        within = holds(between, south + (row + 0.5) * height, west + (column + 0.5) * width)
        answers = np.full(math.prod(shape), -1, np.int32)
        for first, last, inside in np.stack([begin, end, between])[:, within][:, ::-1].T.tolist():
            answers[first:last] = inside  # the first cell comes last
        # A touched square lists the cells whose edges touch it, up to the first cell that holds all of the square.
        is_touched = np.zeros(len(answers), bool)
        is_touched[square] = True
        touched = np.flatnonzero(is_touched)
        whole = touched[answers[touched] >= 0]
        n_cells = cell.max() + 1
        pairs = np.append(square * n_cells + cell, whole * n_cells + answers[whole])
        square, cell = np.divmod(np.sort(pairs), n_cells)
        listed = (answers[square] < 0) | (cell <= answers[square])
        square, cell = square[listed], cell[listed]
        offsets = np.append(np.searchsorted(square, touched), len(square))
        answers[touched] = -2 - np.arange(len(touched))
        return cls(west, south, width, height, answers.reshape(shape), offsets, cell)

    def look_up(self, latitude: Floats, longitude: Floats) -> Indices:
        """Return the entry of `answers` for each point, shape (n,)."""
        n_rows, n_columns = self.answers.shape
        row, column = (latitude - self.south) / self.height, (longitude - self.west) / self.width
        inside = (row >= 0) & (row < n_rows) & (column >= 0) & (column < n_columns)
        # The first square is in the margin, so its answer is that of all points outside.
        square = np.zeros(len(row), np.int64)
        square[inside] = np.floor(row[inside]) * n_columns + np.floor(column[inside])
        return self.answers.ravel()[square].astype(np.int64)


def _touched_squares(edges: Floats, cell: Indices, shape: tuple[int, ...], slack: float) -> tuple[Indices, Indices]:
    """Return all pairs of a cell and a square within ``slack`` of one of the edges, sorted by cell, then by square.

    Edges, shape (n, 4), are in units of squares. Squares are counted row by row.
    """
    # Pieces no longer than a square in either direction: each touches at most three squares each way.
    n_pieces = np.maximum(np.ceil(np.maximum(*np.abs(edges[:, 2:] - edges[:, :2]).T)), 1).astype(np.int64)
    ends = np.flatnonzero(np.diff(np.cumsum(n_pieces) // _PIECES_PER_BATCH)) + 1
    parts = [slice(begin, end) for begin, end in pairwise([0, *ends.tolist(), len(edges)])]
    batches = (_touching(edges[part], cell[part], n_pieces[part], shape, slack) for part in parts)
    pairs = [_distinct(np.concatenate([*batch])) for batch in batches]
    one, other = np.divmod(_distinct(np.concatenate(pairs)), math.prod(shape))
    return one, other


def _touching(
    edges: Floats, cell: Indices, n_pieces: Indices, shape: tuple[int, ...], slack: float
) -> Iterator[Indices]:
    piece = np.arange(n_pieces.sum()) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    spans = []
    for axis in (0, 1):
        start, step = edges[:, axis], (edges[:, axis + 2] - edges[:, axis]) / n_pieces
        step = np.repeat(step, n_pieces)
        begin = np.repeat(start, n_pieces) + piece * step
        low, high = np.minimum(step, 0) - slack, np.maximum(step, 0) + slack
        spans.append([np.floor(begin + side).astype(np.int64) for side in (low, high)])
    (west, east), (south, north) = spans
    cell = np.repeat(cell, n_pieces)
    for column in range(3):
        for row in range(3):
            reached = (west + column <= east) & (south + row <= north)
            square = (south[reached] + row) * shape[1] + west[reached] + column
            yield cell[reached] * math.prod(shape) + square


def _distinct(numbers: Indices) -> Indices:
    """Return the sorted distinct numbers. Faster than `numpy.unique` for many numbers in sorted runs."""
    numbers = np.sort(numbers, kind="stable")
    is_first: NDArray[np.bool_] = np.append(True, numbers[1:] != numbers[:-1])
    return numbers[is_first[: len(numbers)]]
