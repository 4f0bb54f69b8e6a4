"""Membership inference on released counts: the AUC of an attack, and features that describe users' mobility.

The one-call form of the game of `penstock.evaluation.attacks`, the privacy gain, and statistics of movements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.evaluation.attacks.challenge import privacy_gain as privacy_gain
from penstock.evaluation.attacks.defenses import Defense
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.priors import Known, Period
from penstock.evaluation.attacks.user_space import checked_binary
from penstock.evaluation.metrics import Axes, entropies, reorient
from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]


def membership_auc(
    binary: NDArray[Any],
    target: int,
    *,
    prior: str = "subset",
    group_size: int,
    known: Known = None,
    challenges: str = "known",
    groups: int | None = None,
    observation: Period,
    inference: Period,
    n_samples: int,
    n_components: int,
    defense: Defense | None = None,
    attack: str = "pca",
    seed: int,
    axes: Axes = "cells_windows",
) -> float:
    """Return the area under the ROC curve of a membership attack on one target.

    Parameters
    ----------
    binary (n_users, n_windows, n_cells)
        Whether a user was in a cell during a window.
    target
        Index of the user under attack.
    prior, group_size, known, challenges, groups, observation, inference, n_samples, n_components, seed
        The game, as in `MembershipGame`.
    axes
        ``cells_windows`` for a binary array (n_users, n_cells, n_windows), as it is taken unless it says otherwise.
    defense
        Callable of (counts (replicas, n_windows, n_cells), seed) returning released values of the same shape; the
        adversary trains on released values too. None: raw counts.
    attack
        ``pca`` (principal components, then logistic regression) or ``statistics`` (statistics of each cell).

    Returns
    -------
    auc
        1: always right; 0.5: guessing.

    Raises
    ------
    ParameterError
        If an argument is outside what the game allows.

    Notes
    -----
    Undefended principal components cost O(n_samples·n_known² + n_known²·n_windows·n_cells). For several targets use
    `MembershipGame`, which also gives intervals.
    Pyrgelis, Troncoso, De Cristofaro, "Measuring Membership Privacy on Aggregate Location Time-Series", POMACS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> binary = np.random.default_rng(0).random((30, 24, 5)) < 0.2
    >>> game = dict(group_size=10, known=0.8, observation=(0, 24), inference=(0, 24), n_samples=400, n_components=50)
    >>> membership_auc(binary, 3, **game, seed=1, axes="windows_cells") > 0.95
    True
    """
    game = MembershipGame(
        *reorient(axes, binary),
        prior=prior,
        group_size=group_size,
        known=known,
        challenges=challenges,
        groups=groups,
        observation=observation,
        inference=inference,
        n_samples=n_samples,
        n_components=n_components,
        seed=seed,
    )
    return game.attack(target, defense=defense, attack=attack).auc


def mobility_features(binary: NDArray[Any], weekend: NDArray[Any], *, axes: Axes = "cells_windows") -> dict[str, Array]:
    """Compute eleven statistics that describe each user's movements.

    Parameters
    ----------
    binary (n_users, n_windows, n_cells)
        Whether a user was in a cell during a window; an event is one True.
    weekend (n_windows,)
        Whether a window belongs to a weekend.
    axes
        ``cells_windows`` for a binary array (n_users, n_cells, n_windows), as it is taken unless it says otherwise.

    Returns
    -------
    features
        Arrays (n_users,) by name: ``events``, ``unique_cells``, ``active_windows``; ``cells_per_window``, the mean
        over active windows; ``active_windows_weekday``, ``active_windows_weekend``, ``events_weekday``,
        ``events_weekend``, means over all windows of the kind; ``spatial_entropy``, ``temporal_entropy`` of the
        events over cells and over windows, in nats; ``unicity``. A mean over nothing is 0.

    Notes
    -----
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1 and tables 2 and 3.

    Examples
    --------
    >>> binary = np.array([[[1, 1], [1, 0], [0, 0]], [[1, 0], [0, 0], [0, 0]]], dtype=bool)
    >>> features = mobility_features(binary, np.array([False, False, True]), axes="windows_cells")
    >>> features["events"], features["cells_per_window"], features["unicity"]
    (array([3., 1.]), array([1.5, 1. ]), array([0.66666667, 0.33333333]))
    """
    presence = checked_binary(*reorient(axes, binary))
    weekend = np.asarray(weekend)
    if weekend.shape != presence.shape[1:2] or weekend.dtype != bool:
        raise ParameterError("weekend", weekend.shape, f"a boolean mask over the {presence.shape[1]} windows")
    by_cell = presence.sum(axis=1, dtype=float)
    by_window = presence.sum(axis=2, dtype=float)
    events, active = by_cell.sum(axis=1), by_window > 0
    # The order of cells within a window is not known, so sets are compared where the source compares sequences: the
    # share of windows with cells of one's own never exceeds its figure.
    unique = np.zeros(len(presence))
    for window in range(presence.shape[1]):
        cells = np.packbits(presence[:, window], axis=1)
        patterns = np.ascontiguousarray(cells).view(np.dtype((np.void, cells.shape[1]))).ravel()
        _, pattern, sharing = np.unique(patterns, return_inverse=True, return_counts=True)
        unique += (sharing[pattern] == 1) & cells.any(axis=1)
    return {
        "events": events,
        "unique_cells": (by_cell > 0).sum(axis=1).astype(float),
        "active_windows": active.sum(axis=1).astype(float),
        "cells_per_window": events / np.maximum(active.sum(axis=1), 1),
        "active_windows_weekday": _mean(active[:, ~weekend]),
        "active_windows_weekend": _mean(active[:, weekend]),
        "events_weekday": _mean(by_window[:, ~weekend]),
        "events_weekend": _mean(by_window[:, weekend]),
        "spatial_entropy": entropies(by_cell),
        "temporal_entropy": entropies(by_window),
        "unicity": unique / presence.shape[1],
    }


def _mean(values: NDArray[Any]) -> Array:
    return np.asarray(values.sum(axis=1) / max(values.shape[1], 1))
