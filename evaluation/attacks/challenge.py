"""Train an adversary on the first samples of a game and challenge her with the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.pca_attack import PcaAttack
from evaluation.attacks.priors import Samples
from evaluation.attacks.scores import area_under_curve, auc_interval
from evaluation.attacks.statistics_attack import StatisticsAttack


@dataclass(frozen=True)
class AttackResult:
    """How well one target's membership was inferred.

    Attributes
    ----------
    target
        Index of the user.
    auc, low, high
        Area under the curve over the challenges, and its confidence interval.
    n_train, n_challenges
        Samples trained on and challenged with.
    n_features
        Components (or statistics) that the classifier used.
    """

    target: int
    auc: float
    low: float
    high: float
    n_train: int
    n_challenges: int
    n_features: int

    @property
    def privacy_loss(self) -> float:
        """AUC − ½."""
        return self.auc - 0.5


def challenge(
    target: int,
    samples: Samples,
    features: NDArray[np.float64],
    *,
    attack: str,
    n_components: int,
    confidence: float,
) -> AttackResult:
    """Result of one attack (``pca`` or ``statistics``) on the features (n_samples, n_features) of a game."""
    n_train, n_challenges = samples.n_train, samples.labels.size - samples.n_train
    known, hidden = samples.labels[:n_train], samples.labels[n_train:]
    adversary: PcaAttack | StatisticsAttack
    if attack == "pca":
        adversary = PcaAttack.fit(features[:n_train], known, n_components)
    else:
        adversary = StatisticsAttack.fit(features[:n_train], known)
    auc = area_under_curve(hidden, adversary.scores(features[n_train:]))
    n_positive = int(hidden.sum())
    limits = auc_interval(auc, n_positive, n_challenges - n_positive, confidence)
    return AttackResult(target, auc, *limits, n_train, n_challenges, adversary.weights.size)
