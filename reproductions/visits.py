"""Trajectories of places derived from visits, as Koga, Meehan and Chaudhuri derive them from check-ins."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from penstock.accountants.markov import IntArray
from penstock.mechanisms.core.plugin import ParameterError


def visit_trajectories(
    users: ArrayLike, windows: ArrayLike, places: ArrayLike, n_windows: int, n_top: int, min_windows: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Reduce visits to one place per user and window: one of the most visited places, or elsewhere.

    `users`, `windows`, `places`: (n_visits,) integers; windows count from 0, visits outside 0 … n_windows − 1 are left
    out.

    Returns trajectories (n_users, n_windows) of 0 … K, their users (ascending), and the top places (at most K). In a
    window with several places the most visited of them counts (ties: the more popular one). O(n log n) in the visits.

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
    top, ranks = _rank_places(place, n_top)
    kept = ranks < n_top
    user, window, rank = _one_a_window(np.stack([user[kept], window[kept], ranks[kept]]))
    people, n_seen = np.unique(user, return_counts=True)
    people = people[n_seen >= min_windows]
    chosen = np.isin(user, people)
    trajectories = np.full((people.size, n_windows), n_top, dtype=np.intp)
    trajectories[np.searchsorted(people, user[chosen]), window[chosen]] = rank[chosen]
    return trajectories, people, top


def _rank_places(place: IntArray, n_top: int) -> tuple[IntArray, IntArray]:
    """Return the most visited places in order, and the rank of each visit's place (``n_top`` for all other places)."""
    names, visits = np.unique(place, return_counts=True)
    top = names[np.argsort(-visits, kind="stable")[:n_top]]
    rank = np.full(names.size, n_top)
    rank[np.searchsorted(names, top)] = np.arange(top.size)
    return top, rank[np.searchsorted(names, place)]


def _one_a_window(visits: IntArray) -> IntArray:
    """Return the most frequent rank for each user and window, from visits (user, window, rank), shape (3, n)."""
    triples, counts = np.unique(visits, axis=1, return_counts=True)
    triples = triples[:, np.lexsort((triples[2], -counts, triples[1], triples[0]))]
    first = np.ones(counts.size, dtype=bool)
    first[1:] = (triples[:2, 1:] != triples[:2, :-1]).any(axis=0)
    return triples[:, first]
