"""The earlier attack: statistics of every cell's series, then logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.attacks.pca_attack import fit_logistic

Array = NDArray[np.float64]


def cell_statistics(released: NDArray[Any]) -> Array:
    """Seven statistics over the windows of every cell.

    Parameters
    ----------
    released (n_samples, n_windows, n_cells)
        Aggregates.

    Returns
    -------
    statistics (n_samples, 7·n_cells)
        Mean, median, maximum, minimum, variance, standard deviation and sum, each for all cells.

    Examples
    --------
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


@dataclass(frozen=True)
class StatisticsAttack:
    """A trained distinguisher: logistic regression on standardised statistics of every cell.

    Attributes
    ----------
    mean, scale (n_features,)
        Mean and standard deviation of the training statistics.
    weights (n_features,)
        Weight of each standardised statistic in the log-odds of membership.
    intercept
        Log-odds at the mean.

    Notes
    -----
    Pyrgelis, Troncoso, De Cristofaro, "Knock Knock, Who's There?", NDSS 2018; figure 1 of their 2020 paper compares
    it with principal components.
    """

    mean: Array
    scale: Array
    weights: Array
    intercept: float

    @classmethod
    def fit(cls, statistics: Array, labels: NDArray[np.bool_]) -> StatisticsAttack:
        """Train on labelled statistics (n_samples, n_features).

        Examples
        --------
        >>> statistics = np.array([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0], [4.0, 5.0]])
        >>> attack = StatisticsAttack.fit(statistics, np.array([False, False, True, True]))
        >>> attack.scores(statistics) > 0
        array([False, False,  True,  True])
        """
        mean, deviation = statistics.mean(axis=0), statistics.std(axis=0)
        scale = np.where(deviation > 0, deviation, 1.0)
        return cls(mean, scale, *fit_logistic((statistics - mean) / scale, labels))

    def scores(self, statistics: Array) -> Array:
        """Log-odds of membership of each sample."""
        odds: Array = (statistics - self.mean) / self.scale @ self.weights + self.intercept
        return odds
