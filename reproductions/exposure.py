"""Explanations of exposure: extreme targets, feature importance, and loadings of the principal components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from penstock.evaluation.attacks.challenge import fit_logistic, principal_scores, standardize_in_place
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.user_space import checked_binary
from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]

METHODS = ("random_forest", "logistic_regression")


def extreme_targets(auc: NDArray[Any], share: float = 0.1) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the positions of the most and the least exposed targets, each the given fraction (at least one).

    `auc` (n_targets,): how well each was attacked; ties go by position.

    >>> extreme_targets(np.array([0.5, 0.9, 0.7, 0.6]), 0.25)
    (array([1]), array([0]))
    """
    if not 0 < share <= 0.5:
        raise ParameterError("share", share, "above 0 and at most 0.5")
    order = np.argsort(-np.asarray(auc, dtype=float), kind="stable")
    n = max(1, round(share * order.size))
    return order[:n], order[order.size - n :]


def activity_profile(binary: NDArray[Any], users: NDArray[Any]) -> NDArray[np.float64]:
    """Return the number of events of some users in each window, relative to the busiest window, or 0 if there are none.

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window. `users` (n,): indices of the
    users.

    >>> activity_profile(np.array([[[1, 1], [0, 1]]], dtype=bool), np.array([0]))
    array([1. , 0.5])
    """
    events = checked_binary(binary)[np.asarray(users)].sum(axis=(0, 2), dtype=float)
    profile: NDArray[np.float64] = events / max(events.max(), 1)
    return profile


def feature_importance(
    features: Mapping[str, NDArray[Any]],
    most: NDArray[Any],
    least: NDArray[Any],
    *,
    method: str = "random_forest",
    seed: int = 0,
) -> dict[str, float]:
    """Return the importance of each feature for separating two sets of users.

    `features`: arrays (n_users,) by name, as `mobility_features` gives.

    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, tables 2 and 3.

    Examples
    --------
    >>> features = {"events": np.array([9, 8, 1, 2]), "noise": np.array([1, 0, 1, 0])}
    >>> weights = feature_importance(features, [0, 1], [2, 3], method="logistic_regression")
    >>> weights["events"] < -0.5, abs(round(weights["noise"], 2))
    (True, 0.0)
    """
    if method not in METHODS:
        raise ParameterError("method", method, "one of " + ", ".join(METHODS))
    most, least = np.asarray(most), np.asarray(least)
    if most.size == 0 or least.size == 0 or np.intersect1d(most, least).size:
        raise ParameterError("least", least, "users apart from `most`, at least one in each set")
    table = np.column_stack([np.asarray(values, dtype=float) for values in features.values()])
    rows, hardest = table[np.concatenate([most, least])], np.repeat([False, True], [most.size, least.size])
    if method == "random_forest":
        forest = RandomForestClassifier(n_estimators=100, random_state=seed).fit(rows, hardest)
        weights = forest.feature_importances_
    else:
        deviation = rows.std(axis=0)
        weights, _ = fit_logistic((rows - rows.mean(axis=0)) / np.where(deviation > 0, deviation, 1), hardest)
    return {name: float(weight) for name, weight in zip(features, weights, strict=True)}


def component_loadings(game: MembershipGame, target: int, n_top: int = 5) -> Array:
    """Correlate each (cell, window) count with the components that matter most for one target.

    Returns loadings (n_windows, n_cells): sum over the top components of the absolute correlation between a component's
    score and a count over the training samples, 0 where the count never varies. Windows are those of one block of the
    game. Add these up over targets and divide by the maximum for the published heat maps.

    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, figures 2, 3 and 5.

    Examples
    --------
    >>> binary = np.random.default_rng(0).random((30, 24, 5)) < 0.2
    >>> sizes = {"group_size": 10, "observation": 24, "inference": 24, "n_samples": 200}
    >>> component_loadings(MembershipGame(binary, **sizes), 3).shape
    (24, 5)
    """
    if n_top < 1:
        raise ParameterError("n_top", n_top, "at least 1")
    samples = game.samples(target)
    n_train = samples.n_train
    counts = game.space.counts(samples, np.arange(n_train)).reshape(n_train, -1).astype(float)
    standardize_in_place(counts, n_train)
    scores = principal_scores(counts, n_train, game.n_components)
    weights, _ = fit_logistic(scores, samples.labels[:n_train])
    top = scores[:, np.argsort(-np.abs(weights), kind="stable")[:n_top]]
    correlations = np.abs((top / top.std(axis=0)).T @ counts) / n_train
    loadings: Array = correlations.sum(axis=0).reshape(game.space.shape)
    return loadings


def sort_by_popularity(loadings: Array, binary: NDArray[Any]) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """Reorder loadings from the least to the most popular cells and windows.

    `loadings` (n_windows, n_cells): as `component_loadings` gives. `binary` (n_users, n_windows, n_cells): whether a
    user was in a cell during a window, over the same windows; popularity is the number of events.

    Returns sorted, cells, windows: the reordered loadings, and the original indices of cells and windows.

    Examples
    --------
    >>> binary = np.array([[[1, 1], [0, 1]]], dtype=bool)
    >>> sort_by_popularity(np.array([[1.0, 2.0], [3.0, 4.0]]), binary)[0]
    array([[3., 4.],
           [1., 2.]])
    """
    presence = checked_binary(binary)
    if loadings.shape != np.shape(binary)[1:]:
        raise ParameterError("loadings", loadings.shape, f"of the shape {np.shape(binary)[1:]} of the binary array")
    counts = presence.sum(axis=0)
    cells = np.argsort(counts.sum(axis=0), kind="stable")
    windows = np.argsort(counts.sum(axis=1), kind="stable")
    return loadings[np.ix_(windows, cells)], cells, windows
