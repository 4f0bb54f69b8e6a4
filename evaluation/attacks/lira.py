"""Likelihood-ratio attack, which measures the evidence that a release includes the target.

The adversary has shadow releases of groups with and without her target, made with the mechanism. What a release says
about the target is one number, on which the two kinds of groups have a Gaussian each; her score is the logarithm of the
ratio of the two densities. A score is evidence in nats, for whichever person: those of several targets can be compared,
which the low false-positive rates of `penstock.evaluation.attacks.challenge` need.

Carlini, Chien, Nasr, Song, Terzis, Tramèr, *Membership Inference Attacks From First Principles*, IEEE Symposium on
Security and Privacy 2022: their shadow models are groups here, and their statistic of one example, the
confidence of the model, is this project's `Statistic` of one person's trace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]

#: Variance of the rounding of counts to whole numbers, the least that a released value is taken to have.
ROUNDING = 1 / 12


def best_weights(shadows: Array, labels: NDArray[np.bool_], trace: NDArray[np.bool_]) -> Array:
    """Return the weights, shape (n_features,), that best separate one person's trace from the background.

    The trace times the inverse covariance of releases: of all linear statistics it separates those with and without the
    trace best where they are Gaussian. The choice of this statistic is this project's, and so is the covariance: within
    the two kinds of groups, of values divided by their deviation (at least that of rounding), shrunk towards a multiple
    of the identity as Ledoit and Wolf do (2004, lemma 3.3), since there are more values than groups. A mechanism that
    smears a person over windows and cells, say a filter, is attacked as if it did not. O(n_shadows²·n_features +
    n_shadows³) time.
    """
    centred = shadows - np.where(labels[:, None], shadows[labels].mean(axis=0), shadows[~labels].mean(axis=0))
    deviation = np.sqrt(np.maximum((centred**2).mean(axis=0), ROUNDING))
    centred /= deviation
    signal = trace / deviation
    n_rows, n_features = centred.shape
    inner = centred @ centred.T
    norms = np.diag(inner).copy()
    size = float(norms.sum() / n_rows / n_features)  # the mean variance, which the identity is scaled by
    squared = float((inner**2).sum() / n_rows**2)
    distance = squared / n_features - size**2
    error = (float((norms**2).sum() / n_rows) - squared) / n_rows / n_features
    share = min(error, distance) / distance if distance > 0 else 1.0  # weight of the identity
    if share == 0 or size == 0:  # too few values, or none that vary: nothing to shrink
        return np.asarray(signal / deviation)
    # (share·size·I + (1 − share)·S)⁻¹ by the smaller matrix of inner products (Woodbury).
    ridge = share * size * len(centred) / (1 - share) if share < 1 else np.inf
    inner[np.diag_indices_from(inner)] += ridge
    explained = centred.T @ np.linalg.solve(inner, centred @ signal) if np.isfinite(ridge) else 0.0
    return np.asarray((signal - explained) / (share * size * deviation))


def log_likelihood_ratios(statistics: Array, present: Array, absent: Array) -> Array:
    """Return the evidence for the target's presence in nats, from Gaussians fitted to shadows with and without it.

    Both Gaussians have one deviation, fitted to both kinds together: a person adds the same to any group. (Carlini et
    al. do so where shadows are few.) Where statistics do not vary but differ, evidence is huge and finite.
    """
    if min(present.shape[-1], absent.shape[-1]) < 2:
        given = (present.shape[-1], absent.shape[-1])
        raise ParameterError("shadows", given, "at least 2 with and 2 without the target")
    means = [values.mean(axis=-1, keepdims=True) for values in (present, absent)]
    squares = [((values - mean) ** 2).sum(axis=-1, keepdims=True) for values, mean in zip((present, absent), means)]
    n_free = present.shape[-1] + absent.shape[-1] - 2
    difference = means[0] - means[1]
    variance = np.maximum((squares[0] + squares[1]) / n_free, 1e-12 * difference**2)
    evidence = difference * (statistics - (means[0] + means[1]) / 2)
    return np.asarray(np.divide(evidence, variance, out=np.zeros_like(evidence), where=variance > 0))


def likelihood_ratio_scores(
    released: Array, labels: NDArray[np.bool_], trace: NDArray[np.bool_], n_train: int
) -> Array:
    """Return the evidence, in nats, that each challenge includes the target, with weights learned from the shadows.

    Half of the shadows give the statistic, the other half its Gaussians: what fits the first ones by chance would
    otherwise seem to separate the two kinds better than it does. The first ``n_train`` of ``released`` (n_samples,
    n_features) are shadows; labels of challenges are not read. `trace` (n_features,): where and when the target is.
    """
    if n_train < 8:
        raise ParameterError("n_samples", len(released), "enough for 8 shadows")
    half = n_train // 4 * 2
    statistics = released[half:] @ best_weights(released[:half], labels[:half], trace)
    known = labels[half:n_train]
    shadows, challenges = statistics[: n_train - half], statistics[n_train - half :]
    return log_likelihood_ratios(challenges, shadows[known], shadows[~known])
