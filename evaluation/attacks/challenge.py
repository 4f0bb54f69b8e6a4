"""Train a distinguisher on a game's first samples, challenge it with the others, and score the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.accountants.online_attack import area_under_curve, auc_interval
from penstock.evaluation.attacks.classifiers import PcaAttack, fit_logistic
from penstock.evaluation.attacks.priors import Samples
from penstock.evaluation.attacks.rates import true_positive_rate
from penstock.evaluation.attacks.user_space import inverse_scale
from penstock.mechanisms.core.plugin import ParameterError

__all__ = ["area_under_curve", "auc_interval", "privacy_gain", "privacy_loss"]

#: False-positive rate at which single targets are looked for.
FALSE_ALARMS = 0.01


def privacy_loss(auc: ArrayLike) -> NDArray[np.float64] | float:
    """Privacy loss, the advantage over guessing: AUC − ½.

    >>> privacy_loss(0.75)
    0.25
    """
    loss = np.asarray(auc, dtype=float) - 0.5
    return float(loss) if loss.ndim == 0 else loss


def privacy_gain(auc: ArrayLike, auc_defended: ArrayLike) -> NDArray[np.float64] | float:
    """Privacy gain: the share of the privacy loss that a defense removes.

    Parameters
    ----------
    auc, auc_defended
        Areas under the curve of the attack on raw and on defended aggregates; numbers, or arrays that broadcast.

    Returns
    -------
    gain
        (auc − auc_defended)/(auc − ½) where auc > auc_defended ≥ ½, else 0: in [0, 1]. An area below ½ by chance
        therefore counts as no gain, as in the source; clip `auc_defended` at ½ for the other reading.

    Notes
    -----
    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, equation 1.

    Examples
    --------
    >>> privacy_gain(1.0, [0.5, 0.75, 1.0])
    array([1. , 0.5, 0. ])
    """
    raw, defended = np.broadcast_arrays(np.asarray(auc, dtype=float), np.asarray(auc_defended, dtype=float))
    for field, areas in (("auc", raw), ("auc_defended", defended)):
        if not ((areas >= 0) & (areas <= 1)).all():
            raise ParameterError(field, areas, "0 to 1")
    useful = (raw > defended) & (defended >= 0.5)
    gain = np.divide(raw - defended, raw - 0.5, out=np.zeros(raw.shape), where=useful)
    return float(gain) if gain.ndim == 0 else gain


@dataclass(frozen=True)
class AttackResult:
    """Result of the membership attack on one target."""

    target: int  # index of the user
    auc: float  # `auc`, `low`, `high`: area under the curve over the challenges, and its confidence interval
    low: float
    high: float
    n_train: int  # `n_train`, `n_challenges`: samples trained on and challenged with
    n_challenges: int
    n_features: int  # components, statistics or values that the adversary's score is made from
    # challenges with the target that score above all but 1 % of those without (`rates.true_positive_rate`); None
    # where there are fewer than 100 of the latter
    found: int | None = None

    @property
    def privacy_loss(self) -> float:
        """AUC − ½."""
        return self.auc - 0.5


def standardize_in_place(features: NDArray[np.float64], n_train: int) -> None:
    """Give the first `n_train` samples mean 0 and deviation 1 in every feature, and shift and scale all alike.

    Features that do not vary among them become 0 everywhere.

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

    Returns the log-odds of every challenge, and how many components (or statistics) they are made from.
    """
    n_train, known = samples.n_train, samples.labels[: samples.n_train]
    if attack == "pca":
        # Components vanish on features constant in training, which most rounded or suppressed counts are.
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
    """Area under the curve of the scores of the challenges, with its confidence interval."""
    hidden = samples.labels[samples.n_train :]
    auc, n_positive = area_under_curve(hidden, scores), int(hidden.sum())
    limits = auc_interval(auc, n_positive, hidden.size - n_positive, confidence)
    rate = true_positive_rate(hidden, scores, FALSE_ALARMS, confidence)
    found = None if rate is None else rate.n_found
    return AttackResult(target, auc, *limits, samples.n_train, hidden.size, n_features, found)
