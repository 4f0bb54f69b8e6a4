"""Train an adversary on the first samples of a game and challenge her with the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.pca_attack import PcaAttack, fit_logistic
from evaluation.attacks.priors import Samples
from evaluation.attacks.scores import area_under_curve, auc_interval
from evaluation.attacks.user_space import inverse_scale


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


def standardize_in_place(features: NDArray[np.float64], n_train: int) -> None:
    """Give the first `n_train` samples mean 0 and deviation 1 in every feature, and shift and scale all alike.

    Features that do not vary among them become 0 everywhere.

    Examples
    --------
    >>> features = np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 6.0]])
    >>> standardize_in_place(features, 2)
    >>> features
    array([[-1.,  0.],
           [ 1.,  0.],
           [ 3.,  0.]])
    """
    mean = features[:n_train].mean(axis=0)
    features -= mean
    deviations = features[:n_train].std(axis=0)
    # The mean of equal numbers is off by rounding; that must not look like a deviation.
    deviations[deviations <= n_train * np.finfo(float).eps * np.abs(mean)] = 0
    features *= inverse_scale(deviations)


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
    if attack == "pca":
        adversary = PcaAttack.fit(features[:n_train], known, n_components)
        weights, scores = adversary.weights, adversary.scores(features[n_train:])
    else:
        weights, intercept = fit_logistic(features[:n_train], known)
        scores = features[n_train:] @ weights + intercept
    auc, n_positive = area_under_curve(hidden, scores), int(hidden.sum())
    limits = auc_interval(auc, n_positive, n_challenges - n_positive, confidence)
    return AttackResult(target, auc, *limits, n_train, n_challenges, weights.size)
