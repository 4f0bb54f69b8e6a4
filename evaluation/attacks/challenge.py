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


def distinguish(
    samples: Samples, features: NDArray[np.float64], *, attack: str, n_components: int
) -> tuple[NDArray[np.float64], int]:
    """Train ``pca`` or ``statistics`` on the features (n_samples, n_features) of a game.

    Returns
    -------
    Log-odds of every challenge, and how many components (or statistics) they are made from.
    """
    n_train, known = samples.n_train, samples.labels[: samples.n_train]
    if attack == "pca":
        # No component points where training samples never vary: most of what is left of rounded or suppressed counts.
        varying = (features[:n_train] != features[0]).any(axis=0)
        if 2 * varying.sum() < varying.size:  # else the copy costs more than it saves
            features = features[:, varying]
        adversary = PcaAttack.fit(features[:n_train], known, n_components)
        return adversary.scores(features[n_train:]), adversary.weights.size
    weights, intercept = fit_logistic(features[:n_train], known)
    return features[n_train:] @ weights + intercept, weights.size


def judge(
    target: int, samples: Samples, scores: NDArray[np.float64], n_features: int, confidence: float
) -> AttackResult:
    """How well the scores of the challenges tell those with the target."""
    hidden = samples.labels[samples.n_train :]
    auc, n_positive = area_under_curve(hidden, scores), int(hidden.sum())
    limits = auc_interval(auc, n_positive, hidden.size - n_positive, confidence)
    return AttackResult(target, auc, *limits, samples.n_train, hidden.size, n_features)
