"""Are the busiest places still the busiest? Window by window.

Pyrgelis, Troncoso, De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020, section 5.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.metrics.arrays import Array, Indices, busiest

LARGEST_PAIRWISE = 512
"""Cells up to which all pairs are compared (O(n²), vectorised over windows); above, windows are sorted one by one."""


def hotspot_scores(truth: Array, released: Array, fraction: float) -> Array:
    """F1 score of the busiest cells of each window, shape (n_windows,).

    Both sides name equally many hotspots, so precision, recall and F1 are one number: the share they have in common.

    >>> hotspot_scores(np.array([[9.0], [8.0], [1.0], [0.0]]), np.array([[9.0], [0.0], [1.0], [0.0]]), 0.5)
    array([0.5])
    """
    true_hotspots, released_hotspots = busiest(truth, fraction), busiest(released, fraction)
    is_hotspot = np.zeros(truth.shape, dtype=bool)
    np.put_along_axis(is_hotspot, true_hotspots, True, axis=0)
    hits: Array = np.take_along_axis(is_hotspot, released_hotspots, axis=0).mean(axis=0)
    return hits


def kendall_taus(truth: Array, released: Array) -> Array:
    """Kendall's τ-b between the counts of all cells, for each window, shape (n_windows,); 0 where a side is constant.

    τ-b = (P − Q) / sqrt((P + Q + T)(P + Q + U)): concordant and discordant pairs, and ties on one side only.

    >>> kendall_taus(np.array([[3.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), np.array([[5.0, 1.0], [1.0, 2.0], [0.0, 3.0]]))
    array([0.81649658, 0.        ])
    """
    n_cells, n_windows = truth.shape
    if n_cells > LARGEST_PAIRWISE:
        return np.array([_sorted_tau(truth[:, window], released[:, window]) for window in range(n_windows)])
    return _taus(_dense_ranks(truth), _dense_ranks(released))


def hotspot_rank_taus(truth: Array, released: Array, fraction: float) -> Array:
    """Kendall's τ between the two lists of cell *indices* of the busiest cells in order, for each window.

    This is what the paper's tables contain: a cell's index is compared as if it were a score, so the figure says
    whether the lists are equal (1) and little else. `kendall_taus` is the measure of rank agreement. Shape
    (n_windows,); with a single hotspot, 1 where it is the same cell and 0 elsewhere.

    >>> truth = np.array([[9.0], [8.0], [7.0], [0.0]])
    >>> hotspot_rank_taus(truth, truth, 0.75), hotspot_rank_taus(truth, truth[::-1], 0.75)
    (array([1.]), array([-1.]))
    """
    lists = busiest(truth, fraction), busiest(released, fraction)
    if len(lists[0]) == 1:
        same: Array = (lists[0] == lists[1])[0].astype(np.float64)
        return same
    if len(lists[0]) > LARGEST_PAIRWISE:
        return kendall_taus(lists[0].astype(np.float64), lists[1].astype(np.float64))
    return _taus(*lists)


def _dense_ranks(counts: Array) -> Indices:
    """Rank of each value in its window: the same order and ties, in small integers."""
    order = np.argsort(counts, axis=0, kind="stable")
    ordered = np.take_along_axis(counts, order, axis=0)
    steps = np.zeros(counts.shape, dtype=np.intp)
    np.cumsum(ordered[1:] != ordered[:-1], axis=0, out=steps[1:])
    ranks = np.empty_like(steps)
    np.put_along_axis(ranks, order, steps, axis=0)
    return ranks


def _taus(first: Indices, second: Indices) -> Array:
    """τ-b for each column of two arrays of small integers, from the signs of all pairs."""
    n_items, n_windows = first.shape
    ranks = first.astype(np.int32), second.astype(np.int32)
    agreement, untied_first, untied_second = np.zeros((3, n_windows), dtype=np.int64)
    for gap in range(1, n_items):
        signs: list[NDArray[np.int8]] = [
            (rank[gap:] > rank[:-gap]).view(np.int8) - (rank[gap:] < rank[:-gap]).view(np.int8) for rank in ranks
        ]
        agreement += (signs[0] * signs[1]).sum(axis=0, dtype=np.int64)
        untied_first += np.count_nonzero(signs[0], axis=0)
        untied_second += np.count_nonzero(signs[1], axis=0)
    scale = np.sqrt(untied_first * untied_second)
    taus: Array = np.divide(agreement, scale, out=np.zeros(n_windows), where=scale > 0)
    return taus


def _sorted_tau(first: Array, second: Array) -> float:
    """τ-b of one window in O(n log n)."""
    if (first == first[0]).all() or (second == second[0]).all():
        return 0.0
    from scipy import stats  # half a second that only large spaces need

    return float(stats.kendalltau(first, second, variant="b").statistic)
