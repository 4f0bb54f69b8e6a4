"""Which mobility features tell the most exposed users from the least exposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from evaluation.attacks.pca_attack import fit_logistic
from mechanisms.core.errors import ParameterError

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

    Parameters
    ----------
    features
        Arrays (n_users,) by name, as `mobility_features` gives.
    most, least
        Indices of the users whose membership is easiest and hardest to infer.
    method
        ``random_forest``: decrease of impurity, at least 0, summing to 1 (100 trees). ``logistic_regression``:
        coefficient of the standardised feature, negative where more of it means more exposed, as in the source.
    seed
        Of the forest.

    Notes
    -----
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
