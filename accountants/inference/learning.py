"""Priors from data: trajectories of visited places, and transition probabilities estimated from them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from accountants.inference.prior import MarkovPrior
from accountants.inference.stationary import stationary_distribution
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


def estimate_prior(
    trajectories: ArrayLike,
    n_locations: int,
    smoothing: float = 0.0,
    towards: FloatArray | None = None,
    initial: Literal["stationary", "empirical"] = "stationary",
) -> MarkovPrior:
    """Markov prior of one target (or of people alike) from training trajectories.

    Row x is (moves from x to x′ + smoothing · towards[x′]) / (moves from x + smoothing), the posterior mean under
    a Dirichlet prior of total weight ``smoothing``. A row without moves and without smoothing gets the share of visits
    of each location, so that a place only seen last is left as if the walk began anew.

    Parameters
    ----------
    trajectories
        (n_windows,) or (n_trajectories, n_windows) locations; negative where unknown, which breaks the sequence.
    n_locations
        M; locations are 0 … M − 1.
    smoothing
        Total weight of the pseudo-moves added to each row, at least 0. The adversary is only as good as this choice:
        with 0 it rules out every move it never saw.
    towards
        (n_locations,) distribution of the pseudo-moves, or (n_locations, n_locations) one per row; uniform when
        left out. A population's transition matrix is a good choice for a person with few data.
    initial
        stationary: the long-run distribution of the estimated matrix, started from the visits. empirical: the share
        of visits, smoothed in the same way.

    Returns
    -------
    The prior; its matrix is sparse when there is no smoothing. O(visits + M²), or O(visits) when sparse.

    Examples
    --------
    >>> prior = estimate_prior([0, 0, 1, 0, 0, 1], 3, smoothing=0.0, initial="empirical")
    >>> prior.transition.toarray().round(2).tolist()
    [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.67, 0.33, 0.0]]

    Source: Koga, Meehan, Chaudhuri, section 4.1 (which states no smoothing).
    """
    paths = np.atleast_2d(np.asarray(trajectories, dtype=np.intp))
    if paths.size == 0 or paths.max() >= n_locations or not (paths >= 0).any():
        raise ParameterError("trajectories", f"shape {paths.shape}", f"locations below {n_locations}, at least one")
    if not (smoothing >= 0 and np.isfinite(smoothing)):
        raise ParameterError("smoothing", smoothing, "at least 0")
    if initial not in ("stationary", "empirical"):
        raise ParameterError("initial", initial, "stationary or empirical")
    before, after = paths[:, :-1].ravel(), paths[:, 1:].ravel()
    known = (before >= 0) & (after >= 0)
    ones = np.ones(np.count_nonzero(known))
    moves = sparse.coo_array((ones, (before[known], after[known])), shape=(n_locations, n_locations)).tocsr()
    visits = np.bincount(paths[paths >= 0], minlength=n_locations).astype(float)
    base = _base(towards, n_locations)
    transition = _smoothed(moves, visits / visits.sum(), smoothing, base)
    start = (visits + smoothing * base.mean(axis=0)) / (visits.sum() + smoothing)
    return MarkovPrior(stationary_distribution(transition, start) if initial == "stationary" else start, transition)


def _base(towards: FloatArray | None, n_locations: int) -> FloatArray:
    """Distribution of the pseudo-moves, one row for all or one per location."""
    if towards is None:
        return np.full((1, n_locations), 1 / n_locations)
    base = np.atleast_2d(np.asarray(towards, dtype=float))
    if base.shape not in ((1, n_locations), (n_locations, n_locations)) or not np.allclose(base.sum(axis=1), 1):
        raise ParameterError("towards", f"shape {base.shape}", "distributions over the locations, one or one per row")
    return base


def _smoothed(moves: Any, visits: FloatArray, smoothing: float, base: FloatArray) -> Any:
    """Rows that sum to 1, dense with smoothing and sparse without."""
    totals = moves.sum(axis=1)
    if smoothing > 0:
        return (moves.toarray() + smoothing * base) / (totals + smoothing)[:, None]
    empty = np.flatnonzero(totals == 0)
    seen = np.flatnonzero(visits)
    fill = sparse.coo_array(
        (np.tile(visits[seen], empty.size), (np.repeat(empty, seen.size), np.tile(seen, empty.size))), shape=moves.shape
    )
    scale = sparse.dia_array((1 / np.maximum(totals, 1)[None, :], [0]), shape=moves.shape)
    return sparse.csr_array(scale @ moves + fill.tocsr())


def visit_trajectories(
    users: ArrayLike, windows: ArrayLike, places: ArrayLike, n_windows: int, n_top: int, min_windows: int
) -> tuple[IntArray, IntArray, IntArray]:
    """One place per user and window, from visits: the most visited places, and elsewhere for everything else.

    Parameters
    ----------
    users, windows, places
        (n_visits,) integers; windows count from 0, visits outside 0 … n_windows − 1 are left out.
    n_windows
        Length of the trajectories.
    n_top
        K; the places with the most visits become 0 … K − 1 in descending order (ties: smaller place first), and K
        stands for elsewhere, which includes windows without a visit.
    min_windows
        Users with visits to the top places in fewer windows are left out.

    Returns
    -------
    trajectories (n_users, n_windows) of 0 … K, their users (ascending), and the top places (at most K). In a window
    with several places the most visited of them counts (ties: the more popular one). O(n log n) in the visits.

    Examples
    --------
    >>> visit_trajectories([5, 5, 5, 9], [0, 0, 2, 1], [70, 70, 80, 70], 3, n_top=1, min_windows=1)
    (array([[0, 1, 1],
           [1, 0, 1]]), array([5, 9]), array([70]))

    Source: Koga, Meehan, Chaudhuri, section 4.1 (20-day windows, 100 places, at least 10 windows).
    """
    user, window, place = (np.asarray(column).astype(np.int64) for column in (users, windows, places))
    if n_top < 1 or n_windows < 1:
        raise ParameterError("n_top" if n_top < 1 else "n_windows", min(n_top, n_windows), "at least 1")
    inside = (window >= 0) & (window < n_windows)
    user, window, place = user[inside], window[inside], place[inside]
    top, ranks = _ranked(place, n_top)
    kept = ranks < n_top
    user, window, rank = _one_a_window(np.stack([user[kept], window[kept], ranks[kept]]))
    people, n_seen = np.unique(user, return_counts=True)
    people = people[n_seen >= min_windows]
    chosen = np.isin(user, people)
    trajectories = np.full((people.size, n_windows), n_top, dtype=np.intp)
    trajectories[np.searchsorted(people, user[chosen]), window[chosen]] = rank[chosen]
    return trajectories, people, top


def _ranked(place: IntArray, n_top: int) -> tuple[IntArray, IntArray]:
    """The most visited places in their order, and the rank of each visit's place: ``n_top`` for all others."""
    names, visits = np.unique(place, return_counts=True)
    top = names[np.argsort(-visits, kind="stable")[:n_top]]
    rank = np.full(names.size, n_top)
    rank[np.searchsorted(names, top)] = np.arange(top.size)
    return top, rank[np.searchsorted(names, place)]


def _one_a_window(visits: IntArray) -> IntArray:
    """Of visits (user, window, rank), shape (3, n), the most frequent rank of each user and window."""
    triples, counts = np.unique(visits, axis=1, return_counts=True)
    triples = triples[:, np.lexsort((triples[2], -counts, triples[1], triples[0]))]
    first = np.ones(counts.size, dtype=bool)
    first[1:] = (triples[:2, 1:] != triples[:2, :-1]).any(axis=0)
    return triples[:, first]
