"""Stay points: where a user of a trace stayed for a while."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sphere import Points, distance


def stay_points(
    times: NDArray[np.int64], points: Points, starts: NDArray[np.int64], max_distance: float, min_time: float
) -> NDArray[np.bool_]:
    """Which points of some traces belong to a stay.

    From a point on, the points that follow it within ``max_distance`` of it without interruption are a stay if the last
    of them is at least ``min_time`` after it; the search goes on behind the stay, or else with the next point.

    Parameters
    ----------
    times
        In any unit, shape (n_points,); user after user, each in order of time.
    points
        Latitude and longitude in degrees, shape (n_points, 2).
    starts
        First point of every user, shape (n_users,).
    max_distance, min_time
        The two thresholds: metres, and the unit of the times.

    Returns
    -------
    Mask of shape (n_points,).

    Notes
    -----
    All points look ahead together, so O(sum over points of how many follow within the distance), vectorised. Li, Zheng,
    Xie, Chen, Liu, Ma 2008, algorithm 1, but for its end: there a stay must be left to count; here a trace that ends in
    one has it, as Katsomallos et al. 2022 need it to make every point of a trace a landmark.

    Examples
    --------
    >>> track = np.array([[0, 0], [0, 1e-4], [0, 2e-4], [0, 1], [0, 2]])
    >>> stay_points(np.array([0, 10, 20, 30, 40]), track, np.array([0]), 50.0, 15).tolist()
    [True, True, True, False, False]
    """
    ends = np.append(starts[1:], len(times))[np.repeat(np.arange(len(starts)), np.diff(starts, append=len(times)))]
    leaves = _leaves(points, ends, max_distance)
    is_long = times[leaves - 1] - times >= min_time if len(times) else np.zeros(0, bool)
    is_long &= leaves - 1 > np.arange(len(times))
    mask = np.zeros(len(times), bool)
    behind = 0
    for first, last in zip(np.flatnonzero(is_long).tolist(), leaves[is_long].tolist()):
        if first >= behind:
            mask[first:last] = True
            behind = last
    return mask


def _leaves(points: Points, ends: NDArray[np.int64], max_distance: float) -> NDArray[np.int64]:
    """The first point after each one that is further than ``max_distance`` from it, or the end of its trace."""
    leaves = ends.copy()
    looking = np.arange(len(points))
    ahead = 1
    while True:
        looking = looking[looking + ahead < ends[looking]]
        if not len(looking):
            return leaves
        left = distance(points[looking], points[looking + ahead]) > max_distance
        leaves[looking[left]] = looking[left] + ahead
        looking = looking[~left]
        ahead += 1
