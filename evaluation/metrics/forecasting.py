"""Are forecasts and anomalies those that the truth would have shown? Cell by cell.

The tasks behind the metrics of Pyrgelis, Troncoso, De Cristofaro, *Measuring Membership Privacy on Aggregate Location
Time-Series*, 2020, sections 5.1 and 5.4, done with a plain seasonal forecaster.
"""

from __future__ import annotations

import numpy as np

from evaluation.metrics.arrays import Array, busiest
from mechanisms.core.errors import ParameterError

PERIOD = 24
"""Windows of a season: a day of hours."""
SMOOTHING = 0.3
"""Weight of the newest value in the level of its place in the season."""
PERSISTENCE = 0.5
"""How much of the last deviation from its level is expected again."""


def seasonal_forecasts(series: Array, period: int = PERIOD) -> Array:
    """Forecast of every value from the values before it, shape (n_series, n_windows); 0 where nothing is known.

    One level for each place in the season, exponentially smoothed, plus a share of the last deviation. A series
    shorter than two seasons has none: its only level is that of the last values. O(n_series) a window.

    >>> seasonal_forecasts(np.array([[4.0, 8.0, 4.0, 8.0, 4.0, 10.0, 4.0]]), 2)
    array([[0., 0., 4., 8., 4., 8., 5.]])
    """
    n_series, n_windows = series.shape
    period = season(n_windows, period)
    forecasts = np.zeros(series.shape)
    levels, deviation = np.zeros((n_series, period)), np.zeros(n_series)
    for window in range(n_windows):
        place, value = window % period, series[:, window]
        if window < period:
            levels[:, place] = value
            continue
        forecasts[:, window] = levels[:, place] + PERSISTENCE * deviation
        deviation = value - levels[:, place]
        levels[:, place] += SMOOTHING * deviation
    return forecasts


def season(n_windows: int, period: int) -> int:
    """The period, or 1 for a series shorter than two of it."""
    if not isinstance(period, int | np.integer) or period < 1:
        raise ParameterError("period", period, "a whole number at least 1")
    return period if n_windows >= 2 * period else 1


def forecast_errors(truth: Array, released: Array, period: int = PERIOD) -> Array:
    """Mean absolute error of forecasts of the truth from released counts, in people, shape (n_cells,).

    Windows of the first season are not scored (a single window is).

    >>> forecast_errors(np.array([[4.0, 4.0, 4.0]]), np.array([[5.0, 5.0, 5.0]]))
    array([1.])
    """
    first = _first_scored(truth.shape[1], period)
    errors: Array = np.abs(seasonal_forecasts(released, period) - truth)[:, first:].mean(axis=1)
    return errors


def anomaly_agreements(truth: Array, released: Array, fraction: float, period: int = PERIOD) -> Array:
    """F1 score of each cell's most unusual windows, shape (n_cells,).

    A window is as unusual as its value is far from its forecast, on either side from that side's own past. Both sides
    name equally many, so the score is the share in common; of equals the earlier one is named.

    >>> truth = np.array([[4.0, 4.0, 9.0, 4.0]])
    >>> anomaly_agreements(truth, truth / 2, 0.25), anomaly_agreements(truth, truth[:, ::-1], 0.25)
    (array([1.]), array([0.]))
    """
    first = _first_scored(truth.shape[1], period)
    unusual = [np.abs(side - seasonal_forecasts(side, period))[:, first:].T for side in (truth, released)]
    named = [busiest(_rounded(distance), fraction) for distance in unusual]
    is_named = np.zeros(unusual[0].shape, dtype=bool)
    np.put_along_axis(is_named, named[0], True, axis=0)
    shares: Array = np.take_along_axis(is_named, named[1], axis=0).mean(axis=0)
    return shares


def _first_scored(n_windows: int, period: int) -> int:
    return min(season(n_windows, period), n_windows - 1)


def _rounded(distances: Array) -> Array:
    # Distances that are equal but for rounding are equal, so that sums in another order name the same windows.
    return np.round(distances, 9)
