"""Utility metrics that compare released counts with true counts.

Errors in people and as shares, and skill scores against releases that cost nothing; the metrics of Pyrgelis, Troncoso,
De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020, section 5: errors (5.1), hotspots
and ranks (5.2), distributions over cells (5.3), correlations in time (5.4); forecasts and anomalies are the tasks
behind sections 5.1 and 5.4. Each function says what it gives for ties, constant series and empty cells or windows.

Each function is written for checked counts (n_windows, n_cells) and returns a value for each cell or window; `metric`
makes of it a function of any two arrays (n_cells, n_windows), or (n_windows, n_cells) with ``axes="windows_cells"``,
that returns their mean and is never NaN. `METRICS` gives the values behind the mean, of windows × cells.

Examples
--------
>>> truth = np.array([[9.0, 1.0], [4.0, 8.0]])
>>> kendall_tau(truth, truth), mean_absolute_error(truth, truth + 1.0)
(1.0, 1.0)
>>> cells, errors = METRICS["mae"].scores(truth, truth + [[1.0, 3.0]])
>>> cells, errors
(array([0, 1]), array([1., 3.]))
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.evaluation.metrics import METRICS as METRICS
from penstock.evaluation.metrics import PERIOD, Array, Indices, busiest, by_day, metric
from penstock.evaluation.metrics import Metric as Metric
from penstock.evaluation.metrics import metric_called as metric_called
from penstock.evaluation.metrics import metric_names as metric_names
from penstock.mechanisms.core.plugin import ParameterError

FRACTION = 0.1
UNUSUAL = 0.05
PAPER = "Pyrgelis et al. 2020"


@metric("mae", "cell", "people", higher_is_better=False)
def mean_absolute_error(truth: Array, released: Array) -> Array:
    """Absolute error in people, averaged over cells and windows (0 is best).

    Parameters
    ----------
    truth, released
        Counts of people of one shape; the truth at least 0. So for every metric here.

    Raises
    ------
    ParameterError
        (A ValueError.) If the shapes differ, an array is empty or not two-dimensional, or a value is not finite.

    Examples
    --------
    >>> mean_absolute_error([[10, 0]], [[8, 1]])
    1.5
    """
    return np.asarray(np.abs(released - truth).mean(axis=0))


@metric("relative_mae", "cell", higher_is_better=False)
def relative_mean_absolute_error(truth: Array, released: Array) -> Array:
    """Mean absolute error as a fraction of the mean count (0 is best; releasing zeros scores 1).

    Of a cell, its own error over the mean count of all cells and windows. Where no one was counted at all, as if one
    person had been there once.

    >>> relative_mean_absolute_error([[10, 0]], [[8, 1]])
    0.3
    """
    return np.asarray(np.abs(released - truth).sum(axis=0) * truth.shape[1] / max(float(truth.sum()), 1.0))


@metric("variance_explained", "cell", higher_is_better=True)
def variance_explained(truth: Array, released: Array) -> Array:
    """Fraction of the variance over time that is explained: 1 − squared error / variance within the cells (1 is best).

    1 − Σ(Y′ − Y)² / Σ(Y − Ȳ_c)² over all cells and windows. 0 is what every cell's own true mean would have; a release
    whose noise is larger than what it shows is below. Where no cell varies, as if they did by 1 in all.

    >>> variance_explained([[10, 0]], [[9, 1]])
    0.96
    """
    deviation = float(((truth - truth.mean(axis=0)) ** 2).sum())
    error = ((released - truth) ** 2).sum(axis=0)
    return np.asarray(1.0 - error * truth.shape[1] / (deviation if deviation > 0 else 1.0))


def skills(truth: Array, released: Array, instead: Array) -> Array:
    """Return each cell's error reduction over another release, as a fraction of that release's mean error per cell.

    Their mean is the skill score 1 − Σ|Y′ − Y| / Σ|instead − Y|: 1 is perfect, 0 no better, below 0 worse. Against a
    perfect one it is minus the mean error.

    >>> truth = np.array([[4.0], [0.0]])
    >>> skills(truth, np.array([[3.0], [0.0]]), np.zeros((2, 1)))
    array([0.75])
    """
    error, reference = (np.abs(side - truth).sum(axis=0) for side in (released, instead))
    scale = reference.sum() if reference.any() else truth.size
    return np.asarray((reference - error) * truth.shape[1] / scale)


@metric("skill", "cell", higher_is_better=True)
def skill(truth: Array, released: Array) -> Array:
    """Fraction of the absolute error of releasing zeros that is avoided (1 is best; below 0, zeros are better).

    >>> skill([[10, 0]], [[8, 1]]), skill([[1, 0]], [[5, 3]])
    (0.7, -6.0)
    """
    return skills(truth, released, np.zeros_like(truth))


@metric("skill_last", "cell", higher_is_better=True)
def skill_last(truth: Array, released: Array) -> Array:
    """Fraction of the absolute error of repeating the last release that is avoided (1 is best, below 0 is worse).

    The first window has no release before it: zeros. 0 means that new releases tell no more than old ones.

    >>> skill_last([[10, 20, 10]], [[10, 10, 10]])
    0.5
    """
    return skills(truth, released, np.concatenate([np.zeros((1, truth.shape[1])), released[:-1]]))


SANITY_SHARE = 0.1


@metric("mre", "cell", higher_is_better=False, source=PAPER)
def mean_relative_error(truth: Array, released: Array) -> Array:
    """Relative error (Pyrgelis et al. 2020) over at least a tenth of a cell's *total*, averaged over cells (0 is best).

    Mean over t of |Y'[t] − Y[t]| / max(γ, Y[t]) with the sanity bound γ = 0.1·Σ_t Y[t] of the cell. A cell without any
    visit is measured as if it had one (γ = 0.1): its error is neither infinite nor hidden. The longer the series, the
    smaller the figure of the same release: it is for comparison with the paper's tables.
    `relative_mean_absolute_error` is the error as a share of what is counted.

    >>> mean_relative_error([[10, 0]], [[8, 1]])
    0.6
    """
    bound = SANITY_SHARE * np.maximum(truth.sum(axis=0), 1.0)
    return np.asarray((np.abs(released - truth) / np.maximum(bound, truth)).mean(axis=0))


@metric("mre_top", "cell", higher_is_better=False, source=PAPER)
def top_mean_relative_error(truth: Array, released: Array, fraction: float = FRACTION) -> Array:
    """`mean_relative_error` over the ``fraction`` of cells with the largest true totals.

    >>> top_mean_relative_error([[10, 10], [1, 0]], [[5, 10], [9, 9]])
    0.25
    """
    top = busiest(truth.sum(axis=0), fraction)
    errors = np.full(truth.shape[1], np.nan)
    errors[top] = METRICS["mre"].values(truth, released)[top]
    return errors


@metric("hotspot_f1", "window", higher_is_better=True, bounds=(0.0, 1.0))
def hotspot_f1(truth: Array, released: Array, fraction: float = FRACTION) -> Array:
    """F1 score of the busiest ``fraction`` of cells in each window, averaged over windows (1 is best).

    Both sides name equally many hotspots, so precision, recall and F1 are one number: the share they have in common.

    >>> hotspot_f1([[9], [8], [1], [0]], [[9], [0], [1], [0]], fraction=0.5)
    0.5
    """
    return _share_in_common(busiest(truth, fraction), busiest(released, fraction), truth.shape[1])


def _share_in_common(first: Indices, second: Indices, n: int) -> Array:
    """Return for each row the fraction of the second list's indices (below ``n``) that are also in the first list."""
    is_named = np.zeros((len(first), n), dtype=bool)
    np.put_along_axis(is_named, first, True, axis=1)
    return np.asarray(np.take_along_axis(is_named, second, axis=1).mean(axis=1))


@metric("kendall_tau", "window", higher_is_better=True, bounds=(-1.0, 1.0))
def kendall_tau(truth: Array, released: Array) -> Array:
    """Kendall's τ-b over all cells in each window, averaged over windows (1 is best).

    0 where a side is constant.

    >>> round(kendall_tau([[3], [2], [1]], [[30], [10], [20]]), 6)
    0.333333
    """
    return _taus(truth, released)


def _taus(first: NDArray[np.generic], second: NDArray[np.generic]) -> Array:
    from scipy.stats import kendalltau  # half a second that only those who rank need

    if first.shape[1] == 1:
        return np.zeros(len(first))
    # A window with a constant side has no τ.
    return np.asarray(np.nan_to_num([kendalltau(*window).statistic for window in zip(first, second)], nan=0.0))


@metric("hotspot_rank_tau", "window", higher_is_better=True, bounds=(-1.0, 1.0))
def hotspot_rank_tau(truth: Array, released: Array, fraction: float = FRACTION) -> Array:
    """Kendall's τ between the ordered hotspot indices in each window, averaged over windows (1 is best).

    The τ of the paper's tables: a cell's index is compared as if it were a score, so the figure says whether the lists
    are equal (1) and little else. `kendall_tau` is the measure of rank agreement. With a single hotspot, 1 where it is
    the same cell and 0 elsewhere.

    >>> hotspot_rank_tau([[9], [8], [7], [0]], [[0], [7], [8], [9]], fraction=0.75)
    -1.0
    """
    lists = busiest(truth, fraction), busiest(released, fraction)
    if lists[0].shape[1] == 1:
        return np.asarray((lists[0] == lists[1])[:, 0].astype(np.float64))
    return _taus(*lists)


@metric("js_distance", "window", "sqrt(nats)", higher_is_better=False, bounds=(0.0, math.log(2) ** 0.5))
def js_distance(truth: Array, released: Array) -> Array:
    """Square root of each window's Jensen–Shannon divergence, averaged over windows (called JS in the paper's tables).

    >>> round(js_distance([[1], [0]], [[0], [1]]), 6)
    0.832555
    """
    return np.sqrt(METRICS["js_divergence"].values(truth, released))


@metric("js_divergence", "window", "nats", higher_is_better=False, bounds=(0.0, math.log(2)))
def js_divergence(truth: Array, released: Array) -> Array:
    """Jensen–Shannon divergence over cells, in nats, averaged over windows (0 is best, ln 2 is worst).

    ½·KL(V‖Z) + ½·KL(W‖Z) with Z = (V + W)/2. Negative released counts are taken as 0. A window without any count has no
    distribution: two such windows are equal (0), and against any other the formula is left with one of its terms,
    ½·ln 2 (which is how the paper's tables treat fully suppressed windows).

    >>> round(js_divergence([[1], [0]], [[0], [1]]), 6)
    0.693147
    """
    from scipy.special import rel_entr  # not for those who only read which metrics there are

    first, second = _shares_of_window(truth), _shares_of_window(np.maximum(released, 0.0))
    middle = 0.5 * (first + second)
    terms = rel_entr(first, middle) + rel_entr(second, middle)
    return np.asarray(np.maximum(0.5 * terms.sum(axis=1), 0.0))


def _shares_of_window(counts: Array) -> Array:
    totals = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0))


@metric("pearson", "cell", higher_is_better=True, bounds=(-1.0, 1.0))
def pearson(truth: Array, released: Array) -> Array:
    """Pearson's r between each cell's two series, or 0 if either is constant, averaged over cells (1 is best).

    >>> pearson([[1, 2, 3], [4, 4, 4]], [[2, 4, 6], [1, 2, 3]])
    0.5
    """
    first, second = _standardise(truth), _standardise(released)
    return np.asarray(np.clip(np.einsum("tc,tc->c", first, second), -1.0, 1.0))


def _standardise(series: Array) -> Array:
    """Centre the columns and divide them by their norms. Constant columns become zero."""
    varies = (series != series[0]).any(axis=0)
    largest = np.abs(series).max(axis=0)
    scaled = np.divide(series, largest, out=np.zeros_like(series), where=varies)
    centred = scaled - scaled.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    return np.asarray(np.divide(centred, norms, out=np.zeros_like(series), where=varies & (norms > 0)))


SMOOTHING = 0.3
"""Weight of the newest value in the level of its place in the season."""
PERSISTENCE = 0.5
"""Share of the last deviation from the level that is expected again."""


def seasonal_forecasts(series: Array, period: int = PERIOD) -> Array:
    """Forecast every value from the values before it, shape (n_windows, n_series). The first forecasts are 0.

    One level for each place in the season, exponentially smoothed, plus a share of the last deviation. A series
    shorter than two seasons has none: its only level is that of the last values. O(n_series) a window.

    >>> seasonal_forecasts(np.array([[4.0], [8.0], [4.0], [8.0], [4.0], [10.0], [4.0]]), 2).ravel()
    array([0., 0., 4., 8., 4., 8., 5.])
    """
    n_windows, n_series = series.shape
    period = _season(n_windows, period)
    forecasts = np.zeros(series.shape)
    levels, deviation = np.zeros((period, n_series)), np.zeros(n_series)
    for window in range(n_windows):
        place, value = window % period, series[window]
        if window < period:
            levels[place] = value
            continue
        forecasts[window] = levels[place] + PERSISTENCE * deviation
        deviation = value - levels[place]
        levels[place] += SMOOTHING * deviation
    return forecasts


def _season(n_windows: int, period: int) -> int:
    """Return the period, or 1 if the series is shorter than two periods."""
    if not isinstance(period, int | np.integer) or period < 1:
        raise ParameterError("period", period, "a whole number at least 1")
    return period if n_windows >= 2 * period else 1


def _first_scored(n_windows: int, period: int) -> int:
    return min(_season(n_windows, period), n_windows - 1)


@metric("forecast_error", "cell", "people", higher_is_better=False)
def forecast_error(truth: Array, released: Array, period: int = PERIOD) -> Array:
    """Error in people of a seasonal forecast made from the release, averaged over cells and windows (0 is best).

    Windows of the first season are not scored (a single window is). Without two whole seasons of ``period`` windows the
    last values are the forecast.

    >>> forecast_error([[4, 8, 4, 8]], [[5, 9, 5, 9]], period=2)
    1.0
    """
    first = _first_scored(len(truth), period)
    return np.asarray(np.abs(seasonal_forecasts(released, period) - truth)[first:].mean(axis=0))


@metric("anomaly_agreement", "cell", higher_is_better=True, bounds=(0.0, 1.0))
def anomaly_agreement(truth: Array, released: Array, fraction: float = UNUSUAL, period: int = PERIOD) -> Array:
    """F1 score of the ``fraction`` of most unusual windows in each cell, averaged over cells (1 is best).

    Unusual is what the forecaster of `forecast_error` does not expect, on each side from its own past. Both sides name
    equally many, so the score is the share in common; of equals the earlier one is named.

    >>> anomaly_agreement([[4, 4, 9, 4]], [[2, 3, 8, 2]])
    1.0
    """
    first = _first_scored(len(truth), period)

    def most_unusual(side: Array) -> Indices:
        """Return the windows that are furthest from their forecasts."""
        distances: Array = np.abs(side - seasonal_forecasts(side, period))[first:].T
        # Distances that are equal but for rounding are equal, so that sums in another order name the same windows.
        return busiest(distances.round(9), fraction)

    return _share_in_common(most_unusual(truth), most_unusual(released), len(truth) - first)


@metric("daily_mae", "cell", "visits", higher_is_better=False, daily=True)
def daily_mean_absolute_error(truth: Array, released: Array, days: ArrayLike | None = None) -> Array:
    """Absolute error of a cell's daily total, in visits, averaged over cells and days (0 is best).

    A visit is one person counted in one window: a total is the sum of the counts of a day's windows, *not* the number
    of distinct people of the day, who are in several.

    ``days``: local date of each window, dates or ISO texts; NaT: left out, as days should be that the series holds in
    part. Unset: every 24 windows are a day, and what is left at the end is left out unless there is nothing else. Runs
    and experiments state it (``docs/utility.md``).

    >>> days = ["2020-03-07", "2020-03-07", "2020-03-08", "NaT"]
    >>> daily_mean_absolute_error([[4, 4, 6, 9]], [[5, 2, 9, 0]], days)
    2.0
    """
    return np.asarray(np.abs(by_day(released, days) - by_day(truth, days)).mean(axis=0))


@metric("daily_relative_mae", "cell", higher_is_better=False, daily=True)
def daily_relative_mean_absolute_error(truth: Array, released: Array, days: ArrayLike | None = None) -> Array:
    """Mean error of a cell's daily total as a fraction of the mean daily total (0 is best; releasing zeros scores 1).

    Totals and ``days`` are those of `daily_mean_absolute_error`.

    >>> daily_relative_mean_absolute_error([[4, 4, 6]], [[5, 2, 9]], ["2020-03-07"] * 3)
    0.14285714285714285
    """
    return METRICS["relative_mae"].values(by_day(truth, days), by_day(released, days))


@metric("daily_city_error", "day", higher_is_better=False, daily=True)
def daily_city_error(truth: Array, released: Array, days: ArrayLike | None = None) -> Array:
    """Mean error of the daily total over all cells, as a fraction of its mean (0 is best).

    Totals and ``days`` are those of `daily_mean_absolute_error`. Errors of cells cancel in it: it says whether the
    release is too large or too small as a whole. Where no one was counted at all, as if one person had been there once.

    >>> daily_city_error([[4, 4], [6, 6]], [[5, 5], [5, 4]], ["2020-03-07"] * 2)
    0.05
    """
    totals = by_day(truth, days)
    errors: Array = np.abs((by_day(released, days) - totals).sum(axis=1)) * len(totals) / max(float(totals.sum()), 1.0)
    return errors


DEFAULT = ("mae", "relative_mae", "variance_explained", "skill", "skill_last")
"""Metrics of a simulation that names none: what a reader understands without a paper."""
