"""Exposure of cabs: which cells, hours and habits reveal membership (figures 1(b) and 3 to 5, tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.challenge import fit_logistic, principal_scores, standardize_in_place
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.membership import mobility_features

Array = NDArray[np.float64]
Targets = NDArray[np.intp]

#: Tables 2 and 3: importance in a random forest, and coefficients of a regression (negative: more exposed).
PAPER = {
    "events": (0.17, -0.36),
    "unique_cells": (0.01, 1.29),
    "active_windows": (0.23, 0.05),
    "cells_per_window": (0.30, -0.33),
    "active_windows_weekday": (0.01, 0.28),
    "active_windows_weekend": (0.01, -0.46),
    "events_weekday": (0.07, -0.38),
    "events_weekend": (0.03, -0.17),
    "spatial_entropy": (0.03, -0.18),
    "temporal_entropy": (0.01, -0.06),
    "unicity": (0.17, -0.68),
}
TOP_COMPONENTS = 5
N_BANDS = 10


def feature_importance(features: Mapping[str, NDArray[Any]], most: Targets, least: Targets, method: str) -> Array:
    """Return how important each feature is for separating two sets of users.

    ``random_forest``: shares that sum to 1; ``logistic_regression``: coefficients, negative for the ``most`` exposed.
    """
    table = np.column_stack([np.asarray(values, dtype=float) for values in features.values()])
    rows, is_least = table[np.concatenate([most, least])], np.repeat([False, True], [most.size, least.size])
    if method == "random_forest":
        forest = RandomForestClassifier(n_estimators=100, random_state=0).fit(rows, is_least)
        return np.asarray(forest.feature_importances_, dtype=float)
    deviation = rows.std(axis=0)
    return fit_logistic((rows - rows.mean(axis=0)) / np.where(deviation > 0, deviation, 1), is_least)[0]


def component_loadings(game: MembershipGame, target: int, n_top: int = TOP_COMPONENTS) -> Array:
    """Correlate each (window, cell) count with the components that matter most for one target.

    Returns shape (n_windows, n_cells) of one block of the game: the sum over the top components of the absolute
    correlation between a component's score and a count over the training samples, 0 where the count never varies.
    """
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


def margin(inside: NDArray[np.bool_], scores: Array) -> float:
    """Return the distance between the scores with and without the target, in standard deviations.

    It separates those whom the area cannot, as it is 1 for all who are always found.
    """
    deviation = np.sqrt((scores[inside].var() + scores[~inside].var()) / 2)
    return float((scores[inside].mean() - scores[~inside].mean()) / deviation) if deviation > 0 else 0.0


def extremes(targets: Targets, areas: Array, margins: Array) -> tuple[Targets, Targets]:
    """Return the most and the least exposed tenth of targets by area under the curve, ties by margin.

    >>> areas = np.array([0.5, 1.0, 1.0, 0.7])
    >>> extremes(np.arange(4), areas, np.array([0.0, 4.0, 6.0, 1.0]))
    (array([2]), array([0]))
    """
    order = targets[np.lexsort((margins, areas))[::-1]]
    n = max(1, round(0.1 * order.size))
    return order[:n], order[-n:]


def comparison_table(areas: Mapping[str, Array]) -> pl.DataFrame:
    """Tabulate figure 1(b): the mean and deciles of each attack's areas under the curve.

    >>> comparison_table({"pca": np.array([0.5, 1.0])}).row(0)
    ('pca', 2, 0.75, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
    """
    rows = []
    for attack, values in areas.items():
        deciles = {f"q{10 * i}": float(q) for i, q in enumerate(np.quantile(values, np.arange(11) / 10).round(6))}
        rows.append({"attack": attack, "n_targets": values.size, "mean": float(values.mean())} | deciles)
    return pl.DataFrame(rows)


def loadings_table(
    loadings: Mapping[int, Array], binary: NDArray[np.bool_], groups: Mapping[str, Targets]
) -> pl.DataFrame:
    """Tabulate figures 3 and 5(b): the loadings of the five most important components, sorted by popularity.

    ``binary`` (n_users, n_windows, n_cells): presence over the windows of one block, for the popularity.

    Returns ``targets``, ``cells`` and ``windows`` (tenths by popularity, 1 the least popular) and ``loading``: the mean
    within, relative to the largest of the group.
    """
    counts = binary.sum(axis=0)
    cells, windows = (np.array_split(np.argsort(counts.sum(axis=axis), kind="stable"), N_BANDS) for axis in (0, 1))
    rows = []
    for name, targets in groups.items():
        total = np.sum([loadings[int(target)] for target in targets], axis=0)
        means = np.array([[total[np.ix_(band, places)].mean() for band in windows] for places in cells])
        for (i, j), value in np.ndenumerate(means / means.max()):
            rows.append({"targets": name, "cells": i + 1, "windows": j + 1, "loading": float(value)})
    return pl.DataFrame(rows)


def places_table(loadings: Mapping[int, Array]) -> pl.DataFrame:
    """Tabulate figures 3(a) and 5 without sorting: the mean loading of each cell and window, relative to the largest.

    >>> places_table({0: np.array([[1.0], [3.0]])}).rows()
    [('cell', 0, 1.0), ('window', 0, 0.3333333333333333), ('window', 1, 1.0)]
    """
    total = np.sum(list(loadings.values()), axis=0)
    parts = [
        pl.DataFrame({"axis": axis, "index": np.arange(means.size), "loading": means / means.max()})
        for axis, means in (("cell", total.mean(axis=0)), ("window", total.mean(axis=1)))
    ]
    return pl.concat(parts)


def activity_table(binary: NDArray[np.bool_], most: Targets, least: Targets) -> pl.DataFrame:
    """Tabulate figure 4(b): activity of the most and least exposed tenths, relative to their busiest hour.

    >>> binary = np.array([[[1], [0]], [[1], [1]]], dtype=bool)
    >>> activity_table(binary, np.array([1]), np.array([0])).rows()
    [(0, 1.0, 1.0), (1, 1.0, 0.0)]
    """
    events = {name: binary[users].sum(axis=(0, 2), dtype=float) for name, users in (("most", most), ("least", least))}
    relative = {name: values / max(values.max(), 1) for name, values in events.items()}
    return pl.DataFrame({"hour": np.arange(binary.shape[1])} | relative)


def importance_table(binary: NDArray[np.bool_], most: Targets, least: Targets, method: str) -> pl.DataFrame:
    """Tabulate table 2 (``random_forest``) or 3 (``logistic_regression``): features of both extremes.

    Returns ``feature``, ``weight``, the ``paper``'s, the feature's mean among the ``most`` and the ``least`` exposed,
    and the area under the curve of the feature ``alone``: features that say the same share their weight by chance.
    """
    weekend = np.arange(binary.shape[1]) // 24 % 7 >= 5
    features = mobility_features(binary, weekend, axes="windows_cells")
    weights = feature_importance(features, most, least, method)
    both = np.concatenate([most, least])
    return pl.DataFrame(
        {
            "feature": name,
            "weight": float(weight),
            "paper": PAPER[name][method == "logistic_regression"],
            "most": float(values[most].mean()),
            "least": float(values[least].mean()),
            "alone": area_under_curve(np.arange(both.size) < most.size, values[both]),
        }
        for (name, values), weight in zip(features.items(), weights)
    )
