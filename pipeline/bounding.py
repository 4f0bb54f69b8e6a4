"""Contribution bounding: a user counts in at most ``max_cells`` cells of a window; sensitivity comes from here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.noise import keyed_hash
from pipeline.membership import Memberships
from pipeline.packing import starts_of


def bound(memberships: Memberships, max_cells: int, keep: str, hash_key: bytes) -> NDArray[np.bool_]:
    """Which memberships stay.

    Parameters
    ----------
    memberships
        Sorted by user, window and cell (as `pipeline.membership.merge` leaves them).
    max_cells
        C: how many cells one user keeps in one window.
    keep
        Which ones: ``hash`` (by a keyed hash of user, window and cell), ``first``, ``last`` (by time of the user's
        earliest or latest event there) or ``most_frequent``; ties go to the smaller cell index.
    hash_key
        Secret of the hash in deployment.

    Returns
    -------
    Mask of shape (n,). O(n) where nobody exceeds the bound; only the rest is hashed and sorted.

    Examples
    --------
    >>> two = Memberships(np.array([[7], [7]]), np.array([1, 1]), np.array([3, 4]))
    >>> int(bound(two, 1, "hash", b"k" * 16).sum())
    1
    """
    kept = np.ones(len(memberships), bool)
    if len(memberships) == 0:
        return kept
    start = starts_of([*memberships.user.T, memberships.window])
    segment = np.cumsum(start) - 1
    crowded = np.flatnonzero(np.bincount(segment)[segment] > max_cells)
    if len(crowded) == 0:
        return kept
    some = memberships.take(crowded)
    rank = np.lexsort((some.cell, _preference(some, keep, hash_key), segment[crowded]))
    ordered = segment[crowded][rank]
    first = np.flatnonzero(starts_of([ordered]))
    position = np.arange(len(ordered)) - np.repeat(first, np.diff(np.append(first, len(ordered))))
    kept[crowded[rank[position >= max_cells]]] = False
    return kept


def _preference(some: Memberships, keep: str, hash_key: bytes) -> NDArray[np.generic]:
    """Smaller is kept first."""
    if keep == "hash":
        return keyed_hash(hash_key, *some.user.T, some.window, some.cell)
    if some.mark is None:
        raise ValueError(f"keep {keep!r} needs the marks of the memberships")
    return some.mark if keep == "first" else -some.mark
