"""Which pairs of rows of a transition matrix can matter, and the one hull that holds all their leakage."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from accountants.correlation.hull import Array, extend_hull, height, roc_points

Indices = NDArray[np.intp]

SMALLEST_PROBABILITY = 1e-290
"""Entries below count as 0, which keeps every slope between two hull vertices a finite double."""

_ELEMENTS_AT_ONCE = 1 << 16  # chunks of half a megabyte stay in the processor's cache
_FEW_ROWS = 16  # up to here pruning costs more than it saves
_MOST_SLOPES = 24


def leakage_hull(rows: Array) -> Array:
    """Vertices (miss, gain) of the hull over all ordered pairs of rows, by increasing miss.

    Parameters
    ----------
    rows
        Conditional distributions, one a row, shape (n_rows, n_states); each sums to 1.

    Returns
    -------
    Array
        Shape (n_vertices, 2), strictly increasing in both columns, without the origin. Empty when all rows agree.

    Notes
    -----
    Memory O(n_rows² + n_vertices). Time: a few passes over all pairs at O(n_rows² n_states), and
    O(n_states log n_states) for each pair that survives `candidate_pairs`.

    Examples
    --------
    >>> leakage_hull(np.array([[0.75, 0.25], [0.125, 0.875]]))
    array([[0.125, 0.625]])
    """
    rows = np.where(rows < SMALLEST_PROBABILITY, 0.0, rows)
    if len(rows) > _FEW_ROWS:
        rows = np.unique(rows, axis=0)
    hull, first, second = candidate_pairs(rows)
    chunk = max(1, 8 * _ELEMENTS_AT_ONCE // rows.shape[1])
    for start in range(0, len(first), chunk):
        part = slice(start, start + chunk)
        hull = extend_hull(hull, roc_points(rows[first[part]], rows[second[part]]))
    return hull[hull[:, 1] > 0]


def candidate_pairs(rows: Array) -> tuple[Array, Indices, Indices]:
    """A hull so far, and the ordered pairs (first, second) of rows whose ROC curve may rise above it.

    The support h(r) = max over S of q(S) - r·d(S) = sum of max(q - r·d, 0) costs no sort. Supports at slopes
    1 = r_0 < ... < r_m, the last at least every likelihood ratio, enclose a pair's curve in a polygon with the corners
    where neighbouring support lines meet. A pair is dropped only if *every* corner lies under the hull of some exact
    curves. With m = 1 this is the test with the pair's total variation h(1) and largest ratio; further slopes are
    put where most pairs survive.
    """
    first, second = np.nonzero(~np.eye(len(rows), dtype=bool))
    hull = np.zeros((1, 2))
    if len(rows) <= _FEW_ROWS:
        return hull, first, second
    tolerance = 4 * rows.shape[1] * np.finfo(float).eps  # rounding of a sum over the states
    slopes = [1.0, largest_ratio(rows)]
    supports = [support(rows, first, second, slope) for slope in slopes]
    for best in {int(values.argmax()) for values in supports}:
        hull = extend_hull(hull, roc_points(rows[[first[best]]], rows[[second[best]]]))
    while True:
        above = np.array([_corner_above(hull, *edge, tolerance) for edge in pairwise(zip(slopes, supports))])
        alive = above.any(axis=0)
        first, second, supports = first[alive], second[alive], [values[alive] for values in supports]
        if len(first) <= len(rows) or len(slopes) == _MOST_SLOPES:
            return hull, first, second
        split = int(above.sum(axis=1).argmax()) + 1
        slopes.insert(split, float(np.sqrt(slopes[split - 1]) * np.sqrt(slopes[split])))
        supports.insert(split, support(rows, first, second, slopes[split]))
        best = int(supports[split].argmax())
        hull = extend_hull(hull, roc_points(rows[[first[best]]], rows[[second[best]]]))


def largest_ratio(rows: Array) -> float:
    """Bound above 1 on q_j / d_j over all rows and all states j with d_j > 0."""
    smallest_positive = np.where(rows > 0, rows, np.inf).min(axis=0)
    ratio = float((rows.max(axis=0) / smallest_positive).max())
    return ratio if ratio > 1 else 2.0


def support(rows: Array, first: Indices, second: Indices, slope: float) -> Array:
    """For each pair the largest q(S) - slope·d(S) over sets S of states, O(n_states) a pair.

    >>> support(np.array([[0.75, 0.25], [0.125, 0.875]]), np.array([0]), np.array([1]), 2.0)
    array([0.5])
    """
    scaled = slope * rows
    chunk = max(1, _ELEMENTS_AT_ONCE // rows.shape[1])
    result = np.empty(len(first))
    for start in range(0, len(first), chunk):
        part = slice(start, start + chunk)
        excess = rows[first[part]]
        excess -= scaled[second[part]]
        np.maximum(excess, 0.0, out=excess)
        excess.sum(axis=1, out=result[part])
    return result


def _corner_above(
    hull: Array, left: tuple[float, Array], right: tuple[float, Array], tolerance: float
) -> NDArray[np.bool_]:
    """Whether the corner between two support lines of each pair lies above the hull by more than rounding."""
    (slope, value), (next_slope, next_value) = left, right
    miss = (value - next_value) / (next_slope - slope)
    gain = value + (slope - 1.0) * miss
    above: NDArray[np.bool_] = height(hull, np.column_stack((miss, gain))) > tolerance * (gain + miss)
    return above
