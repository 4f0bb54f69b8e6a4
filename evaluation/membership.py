"""Membership inference on released counts: does an aggregate include a given person?

The public names of `penstock.evaluation.attacks`, and the one-call form of the game.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from penstock.accountants.online_attack import area_under_curve, auc_interval
from penstock.evaluation.attacks.challenge import AttackResult, privacy_gain, privacy_loss
from penstock.evaluation.attacks.defenses import Defense
from penstock.evaluation.attacks.exposure import (
    component_loadings,
    feature_importance,
    mobility_features,
    sort_by_popularity,
    unicity,
)
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.priors import Known, Period
from penstock.evaluation.attacks.targets import activity_profile, extreme_targets, mobility_groups, sample_targets

__all__ = [
    "AttackResult",
    "MembershipGame",
    "activity_profile",
    "area_under_curve",
    "auc_interval",
    "component_loadings",
    "extreme_targets",
    "feature_importance",
    "membership_auc",
    "mobility_features",
    "mobility_groups",
    "privacy_gain",
    "privacy_loss",
    "sample_targets",
    "sort_by_popularity",
    "unicity",
]


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
    axes: str | None = None,
) -> float:
    """Area under the curve of a membership attack on one target.

    Parameters
    ----------
    binary (n_users, n_windows, n_cells)
        Whether a user was in a cell during a window.
    target
        Index of the user under attack.
    prior, group_size, known, challenges, groups, observation, inference, n_samples, n_components, seed, axes
        The game, as in `MembershipGame`.
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
        binary,
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
        axes=axes,
    )
    return game.attack(target, defense=defense, attack=attack).auc
