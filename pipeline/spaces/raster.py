"""Raster of a space, in which only points in squares crossed by an edge need an exact test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Cell index of points by latitude and longitude, each of shape (n,); −1 outside of all cells.
Locate = Callable[[Floats, Floats], NDArray[np.int64]]

#: Answer of a square that an edge crosses or touches.
_MIXED = -2
#: Squares along a cell that is as wide as high, and the most in all (4 bytes each).
_SQUARES_PER_CELL = 24
_MAX_SQUARES = 1 << 22
#: Points that are not worth a raster.
FEW_POINTS = 1 << 14


@dataclass(frozen=True)
class Raster:
    """A grid of equal squares over a space and a margin, which stores the cell of each square."""

    west: float  # corner of the first square, in degrees
    south: float
    width: float  # size of a square, in degrees
    height: float
    answers: NDArray[np.int32]  # by row and column: a cell index, −1 outside of all cells, −2 where it differs within

    @classmethod
    def over(cls, edges: Floats, n_cells: int, locate: Locate, slack: float = 1e-6) -> Raster:
        """Rasterise the edges of all cells and locate one point in each connected region that contains no edge.

        ``edges``: straight sides of all cells, shape (n, 4): longitude and latitude of both ends. ``slack``: how far
        from its place an edge may be, in squares: rounding, or the bend of a curve. At most .5.
        """
        from scipy.ndimage import label  # loaded with the first space that has a raster

        (west, south), (east, north) = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
        along = math.sqrt(min(_SQUARES_PER_CELL**2 * n_cells, _MAX_SQUARES))
        width, height = max((east - west) / along, 1e-9), max((north - south) / along, 1e-9)
        west, south = west - 2 * width, south - 2 * height  # no edge comes near the outermost squares
        shape = tuple(
            math.ceil((high - low) / size) + 2 for low, high, size in ((south, north, height), (west, east, width))
        )
        parts, n_parts = label(~_touched_squares((edges - [west, south] * 2) / ([width, height] * 2), shape, slack))
        # Neighbours without an edge between them have one answer, so one square stands for all of its part.
        first = np.zeros(n_parts + 1, np.int64)
        first[parts.ravel()[::-1]] = np.arange(parts.size)[::-1]
        row, column = np.divmod(first[1:], shape[1])
        located = locate(south + (row + 0.5) * height, west + (column + 0.5) * width)
        return cls(west, south, width, height, np.concatenate([[_MIXED], located]).astype(np.int32)[parts])

    def place(self, latitude: Floats, longitude: Floats, locate: Locate) -> NDArray[np.int64]:
        """Return each point's cell, shape (n,), calling ``locate`` only in squares crossed by an edge."""
        n_rows, n_columns = self.answers.shape
        row, column = (latitude - self.south) / self.height, (longitude - self.west) / self.width
        inside = np.flatnonzero((row >= 0) & (row < n_rows) & (column >= 0) & (column < n_columns))
        placed = np.full(len(latitude), -1, np.int64)
        placed[inside] = self.answers[row[inside].astype(np.int64), column[inside].astype(np.int64)]
        mixed = np.flatnonzero(placed == _MIXED)
        placed[mixed] = locate(latitude[mixed], longitude[mixed])
        return placed


@dataclass(frozen=True)
class Bins:
    """A coarse grid of bins for finding the boxes that contain a point. Each bin lists the boxes that overlap it."""

    boxes: Floats
    n_bins: int
    offsets: NDArray[np.int64]
    listed: NDArray[np.int64]

    @classmethod
    def of(cls, boxes: Floats) -> Bins:
        """Build bins for boxes of shape (n, 4), each given as its west, south, east and north edges."""
        n_bins = 2 * math.ceil(math.sqrt(len(boxes)))
        made = cls(boxes, n_bins, np.zeros(0, np.int64), np.zeros(0, np.int64))
        (west, south), (east, north) = (made._bin(boxes[:, i], boxes[:, i + 1]) for i in (0, 2))
        n_columns, n_met = east - west + 1, (east - west + 1) * (north - south + 1)
        box = np.repeat(np.arange(len(boxes)), n_met)
        row, column = np.divmod(np.arange(len(box)) - np.repeat(np.cumsum(n_met) - n_met, n_met), n_columns[box])
        bins = (south[box] + row) * n_bins + west[box] + column
        offsets = np.concatenate([[0], np.cumsum(np.bincount(bins, minlength=n_bins**2))])
        return cls(boxes, n_bins, offsets, box[np.argsort(bins, kind="stable")])

    def _bin(self, longitude: Floats, latitude: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        low, high = self.boxes[:, :2].min(axis=0), self.boxes[:, 2:].max(axis=0)
        size = np.maximum(high - low, 1e-9) / self.n_bins
        column, row = ((a - b) / c for a, b, c in zip((longitude, latitude), low, size))
        return tuple(np.clip(one, 0, self.n_bins - 1).astype(np.int64) for one in (column, row))  # type: ignore[return-value]

    def pairs(self, longitude: Floats, latitude: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of all pairs of a point and a box that contains it. A box contains its border."""
        column, row = self._bin(longitude, latitude)
        bins = row * self.n_bins + column
        order = np.argsort(bins)  # one bin after another, so that what is in its boxes stays in the processor's cache
        first = self.offsets[bins[order]]
        n_listed = self.offsets[bins[order] + 1] - first
        point = np.repeat(order, n_listed)
        box = self.listed[np.arange(len(point)) + np.repeat(first - np.cumsum(n_listed) + n_listed, n_listed)]
        west, south, east, north = self.boxes[box].T
        x, y = longitude[point], latitude[point]
        within = (x >= west) & (x <= east) & (y >= south) & (y <= north)
        return point[within], box[within]


def _touched_squares(edges: Floats, shape: tuple[int, ...], slack: float) -> NDArray[np.bool_]:
    """Return a mask of the squares within ``slack`` of an edge. Edges, shape (n, 4), are in units of squares."""
    # Pieces no longer than a square in either direction: each touches at most three squares each way.
    n_pieces = np.maximum(np.ceil(np.maximum(*np.abs(edges[:, 2:] - edges[:, :2]).T)), 1).astype(np.int64)
    piece = np.arange(n_pieces.sum()) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    spans = []
    for axis in (0, 1):
        start, step = edges[:, axis], (edges[:, axis + 2] - edges[:, axis]) / n_pieces
        step = np.repeat(step, n_pieces)
        begin = np.repeat(start, n_pieces) + piece * step
        low, high = np.minimum(step, 0) - slack, np.maximum(step, 0) + slack
        spans.append([np.floor(begin + side).astype(np.int64) for side in (low, high)])
    (west, east), (south, north) = spans
    touched = np.zeros(shape, bool)
    for column in range(3):
        for row in range(3):
            reached = (west + column <= east) & (south + row <= north)
            touched[(south + row)[reached], (west + column)[reached]] = True
    return touched
