"""Classifiers of the membership attack: principal components or cell statistics, with logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PrincipalComponents:
    """Directions of largest variance of a set of samples."""

    mean: Array  # (n_features,): mean of the samples they were fitted to
    # (n_rows, n_features): each direction is a sum of these: the centred samples where there are more features
    # than samples
    rows: Array
    parts: Array  # (n_rows, n_components): how much of each row is in each direction
    variances: Array  # (n_components,): variance of the samples along each

    @classmethod
    def fit(cls, samples: Array, n_components: int) -> tuple[PrincipalComponents, Array]:
        """Leading components, fewer than asked for where the rank is lower, and the scores of these samples.

        Decomposes the smaller of the covariance and the Gram matrix of the samples:
        O(n_samples·n_features·min(n_samples, n_features)) time, one copy of the samples.

        >>> components, scores = PrincipalComponents.fit(np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]), 2)
        >>> components.variances, components.directions.round(3).tolist()
        (array([5.33333333]), [[0.707, 0.707]])
        """
        mean = samples.mean(axis=0)
        centred = samples - mean
        wide = centred.shape[1] > centred.shape[0]
        values, vectors = np.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
        # Rounding leaves this much where the samples, of this size before centring, do not vary at all.
        eps = np.finfo(float).eps
        negligible = values.size * eps * (values.max(initial=0.0) + eps * len(samples) * (mean @ mean))
        kept = np.flatnonzero(values > negligible)[::-1][:n_components]
        values, vectors = values[kept], vectors[:, kept]
        scale = np.sqrt(values)
        rows, parts = (centred, vectors / scale) if wide else (np.eye(mean.size), vectors)
        return cls(mean, rows, parts, values / len(samples)), vectors * scale if wide else centred @ vectors

    @property
    def directions(self) -> Array:
        """The components (n_components, n_features), orthonormal, by descending variance."""
        return self.combined(np.eye(self.variances.size))

    def combined(self, weights: Array) -> Array:
        """Sums (…, n_features) of the directions with weights (…, n_components).

        Few sums are cheap even where all directions together are not: O(n_rows·n_features) each.
        """
        combined: Array = (weights @ self.parts.T) @ self.rows
        return combined


@dataclass(frozen=True)
class PcaAttack:
    """A trained distinguisher: logistic regression on principal components.

    Pyrgelis, Troncoso, De Cristofaro, POMACS 2020, section 3.1. The regression has an L2 penalty of ½‖w‖², so its
    predictions depend on the samples only through their inner products: any isometric coordinates give the same.
    """

    components: PrincipalComponents  # the components of the training samples
    weights: Array  # (n_components,): weight of each component's score in the log-odds of membership
    intercept: float  # Log-odds at the mean of the training samples

    @classmethod
    def fit(cls, samples: Array, labels: NDArray[np.bool_], n_components: int) -> PcaAttack:
        """Train on labelled samples (n_samples, n_features).

        Examples
        --------
        >>> samples = np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 1.0], [4.0, 0.0]])
        >>> attack = PcaAttack.fit(samples, np.array([False, False, True, True]), 2)
        >>> attack.scores(samples) > 0
        array([False, False,  True,  True])
        """
        components, scores = PrincipalComponents.fit(samples, n_components)
        weights, intercept = fit_logistic(scores, labels)
        return cls(components, weights, intercept)

    @property
    def direction(self) -> Array:
        """Log-odds rise along it (n_features,)."""
        return self.components.combined(self.weights)

    @property
    def offset(self) -> float:
        """Log-odds at the origin."""
        return self.intercept - float(self.components.mean @ self.direction)

    def scores(self, samples: Array) -> Array:
        """Log-odds of membership of each sample."""
        odds: Array = samples @ self.direction + self.offset
        return odds


def fit_logistic(features: Array, labels: NDArray[np.bool_]) -> tuple[Array, float]:
    """Weights and intercept of a logistic regression with penalty ½‖w‖²; without features, weights of none.

    Newton's method: O(n_samples·n_features² + n_features³) a step, about ten steps.
    """
    if features.shape[1] == 0:
        return np.empty(0), 0.0
    model = LogisticRegression(solver="newton-cholesky", tol=1e-6, max_iter=200).fit(features, labels)
    return model.coef_[0], float(model.intercept_[0])


def cell_statistics(released: NDArray[Any]) -> NDArray[np.float64]:
    """Seven statistics over the windows of every cell.

    `released` (n_samples, n_windows, n_cells): aggregates.

    Returns statistics (n_samples, 7·n_cells): mean, median, maximum, minimum, variance, standard deviation and sum,
    each for all cells.

    Pyrgelis, Troncoso, De Cristofaro, "Knock Knock, Who's There?", NDSS 2018; figure 1 of their 2020 paper compares
    the attack with principal components.

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
