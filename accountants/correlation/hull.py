"""Geometry of temporal leakage: the concave hull of the ROC curves of all row pairs in a matrix.

A pair of distributions (q, d) and a set of states S give the point (d(S), q(S) - d(S)), here called (miss, gain).
Seen in these coordinates the upper-left hull of the usual ROC plane, down to slope 1, is the increasing part of an
ordinary concave hull, and q(S) - d(S) keeps its relative precision when the two distributions nearly agree.

**Theorem.** Let H be the upper-left hull of the points (d(S), q(S)) over all ordered pairs of rows and all sets, from
its leftmost vertex (without the origin) to where its slope falls to 1. For every α > 0, with k = e^α − 1, L_P(α) is 0
if H is empty, and otherwise the maximum of ln((kq + 1)/(kd + 1)) over the vertices of H.

*Proof.* (kq + 1)/(kd + 1) is the slope of the line from (−1/k, −1/k) to the point (d, q). Over a set of points in the
positive quadrant a tangent attains the largest such slope, so at a vertex of the upper-left hull; if some point lies
above the diagonal the slope is at least 1, so the vertex is not beyond where the hull's slope falls to 1. For one
pair (q, d), the largest q(S) − r·d(S) for a given r is attained by the states with q/d > r, a prefix of the states
sorted by q/d; so the prefixes hold all vertices of the pair's hull (Neyman and Pearson's ROC curve). The hull of all
pairs is the hull of their hulls. ∎
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
SMALLEST_PROBABILITY = 1e-290
"""Entries below count as 0, which keeps every slope between two hull vertices a finite double."""

_FEW_POINTS = 32  # up to here the sequential hull is the fastest
_ELEMENTS_PER_BATCH = 1 << 16  # chunks of half a megabyte stay in the processor's cache
_FEW_ROWS = 16  # up to here pruning costs more than it saves
_MAX_SLOPES = 24


def leakage_hull(rows: Array) -> Array:
    """Return the hull vertices (miss, gain) over all ordered row pairs, by increasing miss."""
    # Memory O(n_rows² + n_vertices). Time: a few passes over all pairs at O(n_rows² n_states), and O(n_states log
    # n_states) for each pair that survives `candidate_pairs`.
    rows = np.where(rows < SMALLEST_PROBABILITY, 0.0, rows)
    if len(rows) > _FEW_ROWS:
        rows = np.unique(rows, axis=0)
    hull, first, second = candidate_pairs(rows)
    chunk = max(1, 8 * _ELEMENTS_PER_BATCH // rows.shape[1])
    for start in range(0, len(first), chunk):
        part = slice(start, start + chunk)
        hull = extend_hull(hull, roc_points(rows[first[part]], rows[second[part]]))
    return hull[hull[:, 1] > 0]


def candidate_pairs(rows: Array) -> tuple[Array, Indices, Indices]:
    """Return a preliminary hull and the ordered row pairs (first, second) whose ROC curves may exceed it."""
    # The support h(r) = max over S of q(S) - r·d(S) = sum of max(q - r·d, 0) costs no sort. Supports at slopes 1 = r_0
    # < ... < r_m, the last at least every likelihood ratio, enclose a pair's curve in a polygon with the corners where
    # neighbouring support lines meet. A pair is dropped only if *every* corner lies under the hull of some exact
    # curves. With m = 1 this is the test with the pair's total variation h(1) and largest ratio; further slopes are put
    # where most pairs survive.
    first, second = np.nonzero(~np.eye(len(rows), dtype=bool))
    hull = np.zeros((1, 2))
    if len(rows) <= _FEW_ROWS:
        return hull, first, second
    tolerance = 4 * rows.shape[1] * np.finfo(float).eps  # rounding of a sum over the states
    smallest_positive = np.where(rows > 0, rows, np.inf).min(axis=0)
    largest_ratio = float((rows.max(axis=0) / smallest_positive).max())
    slopes = [1.0, largest_ratio if largest_ratio > 1 else 2.0]
    supports = [ends[first, second] for ends in end_supports(rows)]
    for best in {int(values.argmax()) for values in supports}:
        hull = extend_hull(hull, roc_points(rows[[first[best]]], rows[[second[best]]]))
    while True:
        corners = []
        for (slope, value), (next_slope, next_value) in pairwise(zip(slopes, supports)):
            miss = (value - next_value) / (next_slope - slope)
            gain = value + (slope - 1.0) * miss
            corners.append(height(hull, np.column_stack((miss, gain))) > tolerance * (gain + miss))
        above = np.array(corners)
        alive = above.any(axis=0)
        first, second, supports = first[alive], second[alive], [values[alive] for values in supports]
        if len(first) <= len(rows) or len(slopes) == _MAX_SLOPES:
            return hull, first, second
        split = int(above.sum(axis=1).argmax()) + 1
        slopes.insert(split, float(np.sqrt(slopes[split - 1]) * np.sqrt(slopes[split])))
        supports.insert(split, support(rows, first, second, slopes[split]))
        best = int(supports[split].argmax())
        hull = extend_hull(hull, roc_points(rows[[first[best]]], rows[[second[best]]]))


def end_supports(rows: Array) -> tuple[Array, Array]:
    """Return the supports of all ordered row pairs at slope 1 and at the largest ratio, each (n_rows, n_rows)."""
    # At slope 1, Σ max(q − d, 0) = (Σ|q − d| + Σq − Σd)/2. Sums of rows are rounded once, and what that may hide is
    # added: a support that is too large keeps a pair, never drops one. Beyond every ratio only states count that d
    # never reaches.
    from scipy.spatial.distance import pdist, squareform  # a tenth of a second that only large matrices need

    sums = np.array([math.fsum(row) for row in rows.tolist()])
    unit_supports = (squareform(pdist(rows, "cityblock")) + (sums[:, None] - sums)) / 2 + 4 * np.finfo(float).eps
    return unit_supports, rows @ (rows == 0).T


def support(rows: Array, first: Indices, second: Indices, slope: float) -> Array:
    """Return the maximum of q(S) - slope·d(S) over sets S of states for each pair. Pairs are sorted by ``first``."""
    if 2 * len(first) < len(rows) ** 2:
        return exact_support(rows, first, second, slope)
    # Σ max(q − s, 0) = (Σ|q − s| + Σq − Σs)/2, where s = slope·d, cut at what no q exceeds, which changes no term but
    # keeps Σs small. What rounding may hide is added, and where it may be more than a millionth, terms are summed.
    from scipy.spatial.distance import cdist

    scaled = np.minimum(slope * rows, rows.max(axis=0))
    sums, scaled_sums = rows.sum(axis=1)[:, None], scaled.sum(axis=1)
    error = rows.shape[1] * np.finfo(float).eps * (sums.max() + scaled_sums.max())
    result = ((cdist(rows, scaled, "cityblock") + sums - scaled_sums) / 2 + error)[first, second]
    small = np.flatnonzero(result < 1e6 * error)
    result[small] = exact_support(rows, first[small], second[small], slope)
    return np.asarray(result)


def exact_support(rows: Array, first: Indices, second: Indices, slope: float) -> Array:
    """Return `support` with the relative precision of its terms."""
    scaled = slope * rows
    chunk = max(1, _ELEMENTS_PER_BATCH // rows.shape[1])
    result = np.empty(len(first))
    for q, start, end in zip(rows, *np.searchsorted(first, [np.arange(len(rows)), np.arange(1, len(rows) + 1)])):
        for begin in range(start, end, chunk):
            part = slice(begin, min(begin + chunk, end))
            excess = scaled[second[part]]
            np.subtract(q, excess, out=excess)
            np.maximum(excess, 0.0, out=excess)
            excess.sum(axis=1, out=result[part])
    return result


def roc_points(q: Array, d: Array) -> Array:
    """Return the ROC points (miss, gain) of the given pairs (q[i], d[i]) down to slope 1, shape (n_points, 2)."""
    # The prefixes of the states sorted by q/d are the corners of the curve; states with q <= d add nothing.
    gain = np.maximum(q - d, 0.0)
    inverse_ratio = np.divide(d, q, out=np.full_like(d, np.inf), where=gain > 0)
    order = np.argsort(inverse_ratio, axis=-1)
    miss = np.take_along_axis(np.where(gain > 0, d, 0.0), order, -1).cumsum(axis=-1)
    gain = np.take_along_axis(gain, order, -1).cumsum(axis=-1)
    return np.column_stack((miss.ravel(), gain.ravel()))


def height(hull: Array, points: Array) -> Array:
    """Return the height of each point (miss, gain) above a hull that extends horizontally beyond its last vertex."""
    return np.asarray(points[..., 1] - np.interp(points[..., 0], hull[:, 0], hull[:, 1]))


def upper_hull(points: Array) -> Array:
    """Return the concave chain from the highest leftmost point to the highest point (Andrew's monotone chain, 1979)."""
    points = points[np.lexsort((-points[:, 1], points[:, 0]))]
    rises = np.append(True, points[1:, 1] > np.maximum.accumulate(points[:-1, 1]))
    chain: list[tuple[float, float]] = []
    slopes: list[float] = []  # slopes[i] joins chain[i] and chain[i + 1]
    for miss, gain in points[rises].tolist():
        while chain:
            slope = (gain - chain[-1][1]) / (miss - chain[-1][0])
            if not slopes or slope < slopes[-1]:
                slopes.append(slope)
                break
            chain.pop()
            slopes.pop()
        chain.append((miss, gain))
    return np.array(chain)


def extend_hull(hull: Array, points: Array) -> Array:
    """Extend a hull with more points in a few rounds of O(n_points) each (like Quickhull, Barber et al. 1996)."""
    # Each round keeps the points above the hull and takes the highest over each edge into it, so that almost no point
    # ever reaches the sequential `upper_hull`.
    if len(points) <= _FEW_POINTS:
        return upper_hull(np.concatenate((hull, points)))
    while len(points := points[height(hull, points) > 0]):
        edge = np.searchsorted(hull[:, 0], points[:, 0])
        order = np.lexsort((height(hull, points), edge))
        highest = order[np.append(np.diff(edge[order]) > 0, True)]
        hull = upper_hull(np.concatenate((hull, points[highest])))
        points = np.delete(points, highest, axis=0)
    return hull
