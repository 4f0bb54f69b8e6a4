"""Classifiers for membership inference. They are trained on the first samples of a game and evaluated on the rest.

Principal components or cell statistics, with logistic regression; the area under the curve, the privacy gain of a
defense, and the true-positive rate at a low false-positive rate, with its exact interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from penstock.evaluation.attacks.user_space import inverse_scale
from penstock.mechanisms.core.plugin import MissingLibrary, ParameterError

Array = NDArray[np.float64]

#: False-positive rate at which single targets are looked for.
FALSE_ALARMS = 0.01
CONFIDENCE = 0.95


def principal_scores(features: Array, n_train: int, n_components: int) -> Array:
    """Project all samples onto the principal components of the first `n_train` samples, shape (n_samples, k).

    Fewer where the rank is lower. O(n_samples·n_features·min(n_train, n_features)) time, one copy of the features.
    """
    mean = features[:n_train].mean(axis=0)
    centred = features - mean
    trained = centred[:n_train]
    is_wide = trained.shape[1] > n_train
    projected = centred @ trained.T if is_wide else centred
    products = projected[:n_train] if is_wide else trained.T @ trained
    n = len(products)
    wanted = (max(0, n - n_components), n - 1)
    values, vectors = eigh(products, subset_by_index=wanted) if n else (np.empty(0), products)
    # Rounding leaves this much where the samples, of this size before centring, do not vary at all.
    eps = np.finfo(features.dtype).eps
    negligible = n * eps * (values.max(initial=0.0) + eps * n_train * (mean @ mean))
    kept = np.flatnonzero(values > negligible)[::-1][:n_components]
    return np.asarray(projected @ (vectors[:, kept] / np.sqrt(values[kept]) if is_wide else vectors[:, kept]))


def fit_logistic(features: Array, labels: NDArray[np.bool_]) -> tuple[Array, float]:
    """Fit a logistic regression with an L2 penalty of ½‖w‖² by Newton's method. Return its weights and intercept."""
    if features.shape[1] == 0:
        return np.empty(0), 0.0
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise MissingLibrary("this attack needs scikit-learn: pip install 'penstock[attacks]'") from None
    model = LogisticRegression(solver="newton-cholesky", tol=1e-6, max_iter=200).fit(features, labels)
    return model.coef_[0], float(model.intercept_[0])


def cell_statistics(released: NDArray[Any]) -> NDArray[np.float64]:
    """Compute seven statistics over time for each cell of every aggregate, shape (n_samples, 7·n_cells).

    Pyrgelis, Troncoso, De Cristofaro, "Knock Knock, Who's There?", NDSS 2018.

    >>> cell_statistics(np.array([[[1], [2], [6]]])).round(2)
    array([[3.  , 2.  , 6.  , 1.  , 4.67, 2.16, 9.  ]])
    """
    variance = released.var(axis=1)
    columns = (
        released.mean(axis=1),
        np.median(released, axis=1),
        released.max(axis=1),
        released.min(axis=1),
        variance,
        np.sqrt(variance),
        released.sum(axis=1),
    )
    return np.concatenate(columns, axis=1).astype(float)


def standardize_in_place(features: NDArray[np.floating[Any]], n_train: int) -> None:
    """Standardise all samples in place by the mean and deviation of the first `n_train`; constant features become 0.

    >>> features = np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 6.0]])
    >>> standardize_in_place(features, 2)
    >>> features
    array([[-1.,  0.],
           [ 1.,  0.],
           [ 3.,  0.]])
    """
    mean = features[:n_train].mean(axis=0)
    features -= mean
    deviations = np.sqrt(np.einsum("ij,ij->j", features[:n_train], features[:n_train]) / n_train)
    # The mean of equal numbers is off by rounding; that must not look like a deviation.
    deviations[deviations <= n_train * np.finfo(features.dtype).eps * np.abs(mean)] = 0
    features *= inverse_scale(deviations)


def distinguish(
    features: Array, labels: NDArray[np.bool_], n_train: int, *, n_components: int | None = None
) -> tuple[Array, int]:
    """Train a logistic regression on the first samples, using either the raw features or their principal components.

    Its L2 penalty is ½‖w‖², so that predictions from components depend on the samples only through their inner
    products: any isometric coordinates give the same. Returns the log-odds of membership of every other sample, and how
    many components or features they are made from. Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1.
    """
    if n_components is not None:
        features = principal_scores(features, n_train, n_components).astype(np.float64)
    weights, intercept = fit_logistic(features[:n_train], labels[:n_train])
    return features[n_train:] @ weights + intercept, weights.size


def privacy_gain(auc: ArrayLike, auc_defended: ArrayLike) -> NDArray[np.float64] | float:
    """Return the fraction of the privacy loss that a defense removes.

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


def advantage(labels: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """Return the membership advantage of an adversary who guesses "in" whenever the evidence is greater than 0 nats.

    The share of challenges with the target that she accuses, less that of those without (Yeom, Giacomelli, Fredrikson,
    Jha 2018): 0 for guessing, 1 where she is always right. No threshold is chosen by the challenges, so that the mean
    over challenges is not too large.
    """
    accused, present = np.asarray(scores) > 0, np.asarray(labels, bool)
    return float(accused[present].mean() - accused[~present].mean())


def true_positives(labels: NDArray[np.bool_], scores: NDArray[np.float64], at: float) -> int | None:
    """Count true positives at the false-positive rate ``at``. At least 1/at challenges without the target are required.

    Found is what scores above the (⌊at·n_absent⌋ + 1)-th highest without the target, so that at most that share of them
    does; ties are not found. None if there are too few challenges. Carlini et al. 2022 say why an average over all
    thresholds, the area under the curve, hides an attack that is sure of a few.

    >>> labels, scores = np.arange(200) < 100, np.r_[np.arange(100) + 50.5, np.arange(100)]
    >>> true_positives(labels, scores, 0.01), true_positives(labels, scores, 0.001)
    (52, None)
    """
    if not 0 < at < 1:
        raise ParameterError("at", at, "above 0 and below 1")
    labels = np.asarray(labels, bool)
    present, absent = np.asarray(scores)[labels], np.sort(np.asarray(scores)[~labels])[::-1]
    n_allowed = math.floor(at * absent.size + 1e-9)
    return int((present > absent[n_allowed]).sum()) if n_allowed and present.size else None


@dataclass(frozen=True)
class AttackResult:
    """The result of a membership attack on one target."""

    target: int  # index of the user
    auc: float  # `auc`, `low`, `high`: area under the curve over the challenges, and its confidence interval
    low: float
    high: float
    n_train: int  # `n_train`, `n_challenges`: samples trained on and challenged with
    n_challenges: int
    n_features: int  # components, statistics or values that the adversary's score is made from
    # challenges with the target that score above all but 1 % of those without (`true_positives`); None if there are
    # fewer than 100 of the latter
    found: int | None = None
