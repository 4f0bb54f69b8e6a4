"""Who is exposed by the attack on the taxi data, and by what: figures 1(b), 3, 4(b), 5(b) and tables 2 and 3 of
Pyrgelis, Troncoso and De Cristofaro (2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evaluation.attacks.adversary import Adversary
from evaluation.attacks.features import mobility_features
from evaluation.attacks.game import MembershipGame
from evaluation.attacks.importance import feature_importance
from evaluation.attacks.loadings import component_loadings, sort_by_popularity
from evaluation.attacks.scores import area_under_curve
from evaluation.attacks.targets import activity_profile, extreme_targets
from evaluation.membership_defenses import WEEK
from evaluation.study import Binary, Piece, Targets

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
PAST_PRIORS = ("same_groups", "different_groups")
TOP_COMPONENTS = 5
N_BANDS = 10


def subset_game(presence: Binary, **sizes: Any) -> MembershipGame:
    """The game of section 3.2 over the first week: the adversary knows where some people are."""
    return MembershipGame(presence[:, :, :WEEK], challenges="others", observation=WEEK, inference=WEEK, **sizes)


def past_game(presence: Binary, prior: str, *, groups: int, **sizes: Any) -> MembershipGame:
    """A game of section 3.3: the adversary knows two weeks of groups, and is challenged with the third."""
    periods: dict[str, Any] = {"observation": (0, 2 * WEEK), "inference": (2 * WEEK, 3 * WEEK)}
    return MembershipGame(presence, prior=prior, groups=groups, n_samples=3 * groups, **periods, **sizes)


@dataclass(frozen=True)
class Exposure:
    """How exposed targets are, and by what.

    Attributes
    ----------
    targets
        Indices of users.
    areas
        Under the curve, by game, in the order of the targets.
    margins
        By game: how far the scores of challenges with and without the target lie apart, in deviations. It tells apart
        whom the area cannot, as it is 1 for all who are always found.
    loadings
        By target, (n_cells, n_windows): of the five most important components.
    """

    targets: Targets
    areas: dict[str, NDArray[np.float64]]
    margins: dict[str, NDArray[np.float64]]
    loadings: dict[int, NDArray[np.float64]]


def study(games: Mapping[str, MembershipGame], target: int) -> dict[str, NDArray[np.float64]]:
    """Attack a target in games that differ in their challenges only, with one training.

    Parameters
    ----------
    games
        By name; the adversary is trained in the first one.
    target
        Index of a user.

    Returns
    -------
    ``areas`` and ``margins`` in the order of the games, and ``loadings``, as `Exposure` has them.
    """
    first = next(iter(games.values()))
    adversary = first.adversary(target)
    return {
        "areas": np.array([game.challenge(target, adversary).auc for game in games.values()]),
        "margins": np.array([_margin(game, target, adversary) for game in games.values()]),
        "loadings": component_loadings(first, target, TOP_COMPONENTS, adversary=adversary),
    }


def exposure_of(found: Mapping[Piece, Mapping[str, NDArray[np.float64]]], names: Sequence[str]) -> Exposure:
    """What `study` found of every target, together; ``names``: of the games, in their order."""
    areas, margins = (
        dict(zip(names, np.array([own[key] for own in found.values()]).T)) for key in ("areas", "margins")
    )
    loadings = {piece.target: own["loadings"] for piece, own in found.items()}
    return Exposure(np.array(list(loadings)), areas, margins, loadings)


def _margin(game: MembershipGame, target: int, adversary: Adversary) -> float:
    samples = game.samples(target)
    scores, inside = adversary.scores(samples), samples.labels[samples.n_train :]
    deviation = np.sqrt((scores[inside].var() + scores[~inside].var()) / 2)
    return float((scores[inside].mean() - scores[~inside].mean()) / deviation) if deviation > 0 else 0.0


def comparison_table(areas: Mapping[str, NDArray[np.float64]]) -> pl.DataFrame:
    """Figure 1(b): mean and deciles of the areas of each attack.

    Examples
    --------
    >>> comparison_table({"pca": np.array([0.5, 1.0])}).row(0)
    ('pca', 2, 0.75, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
    """
    rows = []
    for attack, found in areas.items():
        deciles = {f"q{10 * i}": float(q) for i, q in enumerate(np.quantile(found, np.arange(11) / 10).round(6))}
        rows.append({"attack": attack, "n_targets": found.size, "mean": float(found.mean())} | deciles)
    return pl.DataFrame(rows)


def loadings_table(
    loadings: Mapping[int, NDArray[np.float64]], binary: Binary, groups: Mapping[str, Targets]
) -> pl.DataFrame:
    """Figures 3 and 5(b): loadings of the five most important components, sorted by popularity.

    Parameters
    ----------
    loadings
        Of every target, as `study` gives them.
    binary (n_users, n_cells, n_windows)
        Presence over the windows of one block, for the popularity.
    groups
        Targets by the name of their group.

    Returns
    -------
    ``targets``, ``cells`` and ``windows`` (tenths by popularity, 1 the least popular) and ``loading``: the mean within,
    relative to the largest of the group.
    """
    rows = []
    for name, targets in groups.items():
        total = np.sum([loadings[int(target)] for target in targets], axis=0)
        ordered, _, _ = sort_by_popularity(total, binary)
        bands = [np.array_split(np.arange(size), N_BANDS) for size in ordered.shape]
        means = np.array([[ordered[np.ix_(cells, windows)].mean() for windows in bands[1]] for cells in bands[0]])
        for (i, j), value in np.ndenumerate(means / means.max()):
            rows.append({"targets": name, "cells": i + 1, "windows": j + 1, "loading": float(value)})
    return pl.DataFrame(rows)


def places_table(loadings: Mapping[int, NDArray[np.float64]]) -> pl.DataFrame:
    """Figures 3(a) and 5, before sorting: the mean loading of every cell and of every window, relative to the largest.

    Examples
    --------
    >>> places_table({0: np.array([[1.0, 3.0]])}).rows()
    [('cell', 0, 1.0), ('window', 0, 0.3333333333333333), ('window', 1, 1.0)]
    """
    total = np.sum(list(loadings.values()), axis=0)
    parts = [
        pl.DataFrame({"axis": axis, "index": np.arange(means.size), "loading": means / means.max()})
        for axis, means in (("cell", total.mean(axis=1)), ("window", total.mean(axis=0)))
    ]
    return pl.concat(parts)


def activity_table(binary: Binary, most: Targets, least: Targets) -> pl.DataFrame:
    """Figure 4(b): when the most and the least exposed tenth are seen, relative to their busiest hour.

    Examples
    --------
    >>> binary = np.array([[[1, 0]], [[1, 1]]], dtype=bool)
    >>> activity_table(binary, np.array([1]), np.array([0])).rows()
    [(0, 1.0, 1.0), (1, 1.0, 0.0)]
    """
    profiles = {"most": activity_profile(binary, most), "least": activity_profile(binary, least)}
    return pl.DataFrame({"hour": np.arange(binary.shape[2])} | profiles)


def importance_table(binary: Binary, most: Targets, least: Targets, method: str) -> pl.DataFrame:
    """Table 2 (``random_forest``) or 3 (``logistic_regression``): what tells the most from the least exposed.

    Returns
    -------
    ``feature``, ``weight``, the ``paper``'s, the feature's mean among the ``most`` and the ``least`` exposed, and the
    area under the curve of the feature ``alone``: features that say the same share their weight by chance.
    """
    weekend = np.arange(binary.shape[2]) // 24 % 7 >= 5
    features = mobility_features(binary, weekend)
    weights = feature_importance(features, most, least, method=method)
    column = 0 if method == "random_forest" else 1
    both = np.concatenate([most, least])
    is_most = np.arange(both.size) < most.size
    return pl.DataFrame(
        [
            {
                "feature": name,
                "weight": weight,
                "paper": PAPER[name][column],
                "most": float(features[name][most].mean()),
                "least": float(features[name][least].mean()),
                "alone": area_under_curve(is_most, features[name][both]),
            }
            for name, weight in weights.items()
        ]
    )


def extremes(targets: Targets, areas: NDArray[np.float64], margins: NDArray[np.float64]) -> tuple[Targets, Targets]:
    """The most and the least exposed tenth of the targets, by area and where that is equal by margin.

    Examples
    --------
    >>> areas = np.array([0.5, 1.0, 1.0, 0.7])
    >>> extremes(np.arange(4), areas, np.array([0.0, 4.0, 6.0, 1.0]))
    (array([2]), array([0]))
    """
    ranks = np.empty(len(targets))
    ranks[np.lexsort((margins, areas))] = np.arange(len(targets))
    most, least = extreme_targets(ranks)
    return targets[most], targets[least]
