"""Moments of the number of right guesses in an unseen run, for Markov's inequality on each run.

For a run from a sighting to the next one, σ_j bounds the largest expectation, over guesses, of C(right guesses, j)
jointly with the run. With Q[u, v] the probability of moving from window u to v without being seen,

    S_1(v)(x′) = Pr(unseen to v, at x′),    S_j(v)(x′) = Σ_{u < v} max_x S_{j−1}(u)(x) · Q[u, v][x, x′],
    σ_j = Σ_v max_x′ S_j(v)(x′) · Pr(unseen from x′ at v to the run's end).

Never more than C(length, j) times the largest joint probability of j places in the run.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accountants.inference.observation import Schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
_OPERATIONS = 1e8
_FIRST_OPERATIONS = 1e9


def affordable_moments(plan: Schedule) -> int:
    """How many moments of every run take about a second; none on large sparse priors."""
    n_steps, n_locations = plan.n_steps, plan.prior.n_locations
    n_starts = 1 + sum(active.size for active in plan.active)
    if not isinstance(plan.prior.transition, np.ndarray) or n_starts**2 * n_steps * n_locations / 6 > _FIRST_OPERATIONS:
        return 0
    return 1 + int(min(n_steps - 1, _OPERATIONS / (n_starts * n_steps**2 * n_locations**2 / 6)))


def moment_bounds(
    plan: Schedule,
    starts: list[tuple[int, IntArray]],
    begin: FloatArray,
    unseen: dict[int, FloatArray],
    n_moments: int,
) -> list[list[FloatArray]]:
    """σ_1, σ_2, … up to ``n_moments`` for every run.

    Parameters
    ----------
    plan
        Prior and sensors, raw counts.
    starts
        (window, sighted locations) of the runs' starts, from the last window to −1, the start of the horizon.
    begin
        (n, M) distributions of the first location, one for each start in window −1.
    unseen
        Per window the probability (n_ends, M) of staying unseen from there to each end.
    n_moments
        From `affordable_moments`.

    Returns
    -------
    For each entry of ``starts`` a list of arrays (n_starts, n_ends). Beyond j = 1 the time is
    O(n_steps³ · sensors · M²) per j.
    """
    if n_moments == 0:
        return [[] for _ in starts]
    kernels = _unseen_kernels(plan) if n_moments > 1 else {}
    return [_from_starts(plan, window, locations, begin, unseen, kernels, n_moments) for window, locations in starts]


def _from_starts(
    plan: Schedule,
    window: int,
    locations: IntArray,
    begin: FloatArray,
    unseen: dict[int, FloatArray],
    kernels: dict[tuple[int, int], FloatArray],
    n_moments: int,
) -> list[FloatArray]:
    """Bounds for the runs that begin at the sightings of one window."""
    n_ends = unseen[window].shape[0]
    weights = _first_weights(plan, window, begin if window < 0 else plan.prior.transition[locations])
    bounds = []
    for j in range(1, min(n_moments, max(1, plan.n_steps - 1 - window)) + 1):
        if j > 1:
            weights = _next_weights(weights, kernels)
        total = np.zeros((locations.size, n_ends))
        for then, weight in weights.items():
            after = unseen[then]
            for out, row in zip(total, weight):
                # ends at or before this window have no such place in their run
                out[: len(after)] += (after * row).max(axis=1)
        bounds.append(total)
    return bounds


def _first_weights(plan: Schedule, window: int, current: FloatArray) -> dict[int, FloatArray]:
    """S_1: per later window the probability of being unseen until then and at each location, (n_starts, M)."""
    matrix = plan.prior.transition
    weights = {}
    for then in range(window + 1, plan.n_steps):
        if then > window + 1:
            current = current @ matrix
        current = _masked(current, plan.active[then])
        weights[then] = current
    return weights


def _next_weights(weights: dict[int, FloatArray], kernels: dict[tuple[int, int], FloatArray]) -> dict[int, FloatArray]:
    """S_j from S_{j−1}."""
    windows = sorted(weights)
    result = {}
    for then in windows[1:]:
        total = np.zeros_like(weights[then])
        for before in windows[: windows.index(then)]:
            kernel = kernels[before, then]
            for out, row in zip(total, weights[before]):
                out += np.max(kernel * row[:, None], axis=0)
        result[then] = total
    return result


def _unseen_kernels(plan: Schedule) -> dict[tuple[int, int], FloatArray]:
    """Probability of moving from any place in one window to any place in a later one, unseen on the way and there."""
    matrix = plan.prior.transition
    kernels = {}
    for before in range(plan.n_steps - 1):
        current = matrix
        for then in range(before + 1, plan.n_steps):
            if then > before + 1:
                current = current @ matrix
            current = _masked(current, plan.active[then])
            kernels[before, then] = current
    return kernels


def _masked(rows: FloatArray, active: IntArray) -> FloatArray:
    result = rows.copy()
    result[:, active] = 0.0
    return result
