"""Explanations of exposure: mobility features, their importance, and loadings of the principal components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from penstock.evaluation.attacks.challenge import fit_logistic
from penstock.evaluation.attacks.game import Adversary, MembershipGame
from penstock.evaluation.attacks.user_space import checked_binary, inverse_scale
from penstock.evaluation.metrics import turned
from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]


def mobility_features(binary: NDArray[Any], weekend: NDArray[Any], *, axes: str | None = None) -> dict[str, Array]:
    """Eleven statistics of every user's movements.

    Parameters
    ----------
    binary (n_users, n_windows, n_cells)
        Whether a user was in a cell during a window; an event is one True.
    weekend (n_windows,)
        Whether a window belongs to a weekend.
    axes
        ``windows_cells``, the orientation of the last two axes; ``cells_windows`` for arrays the other way round, as
        they are also taken, with a `FutureWarning`, where this is left out.

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
    presence = checked_binary(binary, "mobility_features", axes)
    weekend = np.asarray(weekend)
    if weekend.shape != presence.shape[1:2] or weekend.dtype != bool:
        raise ParameterError("weekend", weekend.shape, f"a boolean mask over the {presence.shape[1]} windows")
    by_cell = presence.sum(axis=1, dtype=float)
    by_window = presence.sum(axis=2, dtype=float)
    events, active = by_cell.sum(axis=1), by_window > 0
    return {
        "events": events,
        "unique_cells": (by_cell > 0).sum(axis=1).astype(float),
        "active_windows": active.sum(axis=1).astype(float),
        "cells_per_window": events / np.maximum(active.sum(axis=1), 1),
        "active_windows_weekday": _mean(active[:, ~weekend]),
        "active_windows_weekend": _mean(active[:, weekend]),
        "events_weekday": _mean(by_window[:, ~weekend]),
        "events_weekend": _mean(by_window[:, weekend]),
        "spatial_entropy": _entropy(by_cell),
        "temporal_entropy": _entropy(by_window),
        "unicity": unicity(presence, axes="windows_cells"),
    }


def unicity(binary: NDArray[Any], *, axes: str | None = None) -> Array:
    """Share of the windows in which a user's set of cells is unique.

    The order of the cells within a window is not in the binary matrix, so sets are compared where the source
    compares sequences: this never exceeds its figure.

    `binary` (n_users, n_windows, n_cells): whether a user was in a cell during a window.

    >>> unicity(np.array([[[1], [0]], [[1], [1]]], dtype=bool), axes="windows_cells")
    array([0. , 0.5])
    """
    presence = checked_binary(binary, "unicity", axes)
    n_users, n_windows, _ = presence.shape
    unique = np.zeros(n_users)
    for window in range(n_windows):
        cells = np.packbits(presence[:, window], axis=1)
        patterns = np.ascontiguousarray(cells).view(np.dtype((np.void, cells.shape[1]))).ravel()
        _, pattern, sharing = np.unique(patterns, return_inverse=True, return_counts=True)
        unique += (sharing[pattern] == 1) & cells.any(axis=1)
    share: Array = unique / n_windows
    return share


def _mean(values: NDArray[Any]) -> Array:
    mean: Array = values.sum(axis=1) / max(values.shape[1], 1)
    return mean


def _entropy(counts: Array) -> Array:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    entropy: Array = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=1)
    return np.abs(entropy)  # no negative zero


METHODS = ("random_forest", "logistic_regression")


def feature_importance(
    features: Mapping[str, NDArray[Any]],
    most: NDArray[Any],
    least: NDArray[Any],
    *,
    method: str = "random_forest",
    seed: int = 0,
) -> dict[str, float]:
    """Importance of each feature for separating two sets of users.

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


def component_loadings(
    game: MembershipGame,
    target: int,
    n_top: int = 5,
    *,
    adversary: Adversary | None = None,
    axes: str | None = None,
) -> Array:
    """Correlation of each (cell, window) count with the components that matter most for one target.

    `adversary`: what the game trained on this target before; None: train now.

    Returns loadings (n_windows, n_cells): sum over the top components of the absolute correlation between a component's
    score and a count over the training samples, 0 where the count never varies. Windows are those of one block of the
    game. Add these up over targets and divide by the maximum for the published heat maps.

    The components are found in user space and carried to cells and windows only for the `n_top` that matter.
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, figures 2, 3 and 5.

    Examples
    --------
    >>> binary = np.random.default_rng(0).random((30, 24, 5)) < 0.2
    >>> sizes = {"group_size": 10, "observation": 24, "inference": 24, "n_samples": 200}
    >>> component_loadings(MembershipGame(binary, **sizes, axes="windows_cells"), 3, axes="windows_cells").shape
    (24, 5)
    """
    if n_top < 1:
        raise ParameterError("n_top", n_top, "at least 1")
    trained = adversary or game.adversary(target)
    weights, variances = trained.distinguisher.weights, trained.distinguisher.components.variances
    top = np.argsort(-np.abs(weights), kind="stable")[:n_top]
    correlations = np.abs(trained.directions(np.eye(weights.size)[top])) * np.sqrt(variances[top, None])
    if not game.standardize:  # else the directions are of counts that have a deviation of 1
        correlations *= inverse_scale(game.space.deviations(trained.samples))
    loadings: Array = correlations.sum(axis=0).reshape(game.space.shape)
    return turned("component_loadings", axes, loadings)[0]


def sort_by_popularity(
    loadings: Array, binary: NDArray[Any], *, axes: str | None = None
) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """Reorder loadings from the least to the most popular cells and windows.

    `loadings` (n_windows, n_cells): as `component_loadings` gives. `binary` (n_users, n_windows, n_cells): whether a
    user was in a cell during a window, over the same windows; popularity is the number of events.

    Returns sorted, cells, windows: the reordered loadings in the orientation given, and the original indices of cells
    and windows.

    Examples
    --------
    >>> binary = np.array([[[1, 1], [0, 1]]], dtype=bool)
    >>> sort_by_popularity(np.array([[1.0, 2.0], [3.0, 4.0]]), binary, axes="windows_cells")[0]
    array([[3., 4.],
           [1., 2.]])
    """
    presence = checked_binary(binary, "sort_by_popularity", axes)
    if loadings.shape != np.shape(binary)[1:]:
        raise ParameterError("loadings", loadings.shape, f"of the shape {np.shape(binary)[1:]} of the binary array")
    counts = presence.sum(axis=0)
    cells = np.argsort(counts.sum(axis=0), kind="stable")
    windows = np.argsort(counts.sum(axis=1), kind="stable")
    order = (windows, cells) if axes == "windows_cells" else (cells, windows)
    return loadings[np.ix_(*order)], cells, windows
