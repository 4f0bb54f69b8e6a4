"""Geometry of temporal leakage: ROC curves of pairs of distributions and the concave hull above all of them.

A pair of distributions (q, d) and a set of states S give the point (d(S), q(S) - d(S)), here called (miss, gain).
Seen in these coordinates the upper-left hull of the usual ROC plane, down to slope 1, is the increasing part of an
ordinary concave hull, and q(S) - d(S) keeps its relative precision when the two distributions nearly agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FEW_POINTS = 32  # up to here the sequential hull is the fastest


def roc_points(q: Array, d: Array) -> Array:
    """Points (miss, gain) of the ROC curves of pairs (q[i], d[i]) down to slope 1, flattened to (n_points, 2).

    The prefixes of the states sorted by q/d are the corners of the curve (Neyman and Pearson, 1933); sorting stops
    to matter where q <= d, so those states add nothing.

    >>> roc_points(np.array([[0.5, 0.25, 0.25]]), np.array([[0.0, 0.125, 0.875]])).tolist()
    [[0.0, 0.5], [0.125, 0.625], [0.125, 0.625]]
    """
    gain = np.maximum(q - d, 0.0)
    inverse_ratio = np.divide(d, q, out=np.full_like(d, np.inf), where=gain > 0)
    order = np.argsort(inverse_ratio, axis=-1)
    miss = np.take_along_axis(np.where(gain > 0, d, 0.0), order, -1).cumsum(axis=-1)
    gain = np.take_along_axis(gain, order, -1).cumsum(axis=-1)
    return np.column_stack((miss.ravel(), gain.ravel()))


def height(hull: Array, points: Array) -> Array:
    """How far points (miss, gain) lie above a hull, which is taken to go on level after its last vertex."""
    above: Array = points[..., 1] - np.interp(points[..., 0], hull[:, 0], hull[:, 1])
    return above


def upper_hull(points: Array) -> Array:
    """Concave chain from the highest of the leftmost points to the highest of all (monotone chain, Andrew 1979).

    >>> upper_hull(np.array([[0.0, 0.0], [0.5, 0.5], [0.25, 0.25], [0.75, 0.25]]))
    array([[0. , 0. ], [0.5, 0.5]])
    """
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
    """Hull of a hull and of more points, O(n_points) a round and few rounds (as Quickhull, Barber et al. 1996).

    Each round keeps the points above the hull and takes the highest over each edge into it, so that almost no point
    ever reaches the sequential `upper_hull`.
    """
    if len(points) <= _FEW_POINTS:
        return upper_hull(np.concatenate((hull, points)))
    while len(points := points[height(hull, points) > 0]):
        edge = np.searchsorted(hull[:, 0], points[:, 0])
        order = np.lexsort((height(hull, points), edge))
        highest = order[np.append(np.diff(edge[order]) > 0, True)]
        hull = upper_hull(np.concatenate((hull, points[highest])))
        points = np.delete(points, highest, axis=0)
    return hull
