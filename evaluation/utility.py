"""What a release is still worth: utility metrics of released against true counts.

Errors in people and as shares, and skill scores against releases that cost nothing; the metrics of Pyrgelis, Troncoso,
De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020, section 5. The conventions for
ties, constant series and empty cells or windows are in ``docs/utility.md``. Every function takes ``axes``, the
orientation of both arrays: ``windows_cells``, as everywhere else, or ``cells_windows``. Without it arrays are taken
as (n_cells, n_windows), as in earlier versions, with a `FutureWarning`: a square array does not show which it is.
Every function returns the mean over its cells or windows, and is never NaN; `METRICS` gives the values behind that mean
one by one, and takes ``axes`` too.

Examples
--------
>>> truth = np.array([[9.0, 1.0], [4.0, 8.0]])
>>> kendall_tau(truth, truth, axes="windows_cells"), mean_absolute_error(truth, truth + 1.0, axes="windows_cells")
(1.0, 1.0)
>>> cells, errors = METRICS["mae"].scores(truth, truth + [[1.0, 3.0]], axes="windows_cells")
>>> cells, errors
(array([0, 1]), array([1., 3.]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from penstock.evaluation.metrics import (
    PERIOD,
    Array,
    Indices,
    Metric,
    Scope,
    absolute_errors,
    anomaly_agreements,
    busiest,
    by_day,
    checked_pair,
    explained_shares,
    forecast_errors,
    hotspot_rank_taus,
    hotspot_scores,
    js_divergences,
    kendall_taus,
    pearson_correlations,
    relative_errors,
    relative_shares,
    skills,
    sum_shares,
    turned,
)

__all__ = [
    "DEFAULT",
    "METRICS",
    "Metric",
    "anomaly_agreement",
    "daily_city_error",
    "daily_mean_absolute_error",
    "daily_relative_mean_absolute_error",
    "forecast_error",
    "hotspot_f1",
    "hotspot_rank_tau",
    "js_distance",
    "js_divergence",
    "kendall_tau",
    "mean_absolute_error",
    "mean_relative_error",
    "pearson",
    "relative_mean_absolute_error",
    "skill",
    "skill_last",
    "top_mean_relative_error",
    "variance_explained",
]

FRACTION = 0.1
UNUSUAL = 0.05
PAPER = "Pyrgelis et al. 2020"
METRICS: dict[str, Metric] = {}
"""Every utility metric by the name that a configuration gives it."""


def _metric(
    name: str, values: Callable[[Array, Array], Array], scope: Scope, unit: str = "", **facts: Any
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Enter a mean of ``values`` over arrays (n_windows, n_cells) as a metric, and give it the keyword ``axes``."""

    def enter(mean: Callable[..., float]) -> Callable[..., float]:
        """Register a metric under its name."""

        @wraps(mean)
        def oriented(
            truth: ArrayLike, released: ArrayLike, *others: Any, axes: str | None = None, **named: Any
        ) -> float:
            """Turn the arrays to windows × cells first."""
            return mean(*turned(mean.__name__, axes, truth, released), *others, **named)

        METRICS[name] = Metric(name, oriented, values, scope, unit, **facts)
        return oriented

    return enter


def _skills(truth: Array, released: Array) -> Array:
    return skills(truth, released, np.zeros_like(truth))


def _skills_last(truth: Array, released: Array) -> Array:
    return skills(truth, released, np.concatenate([np.zeros((1, truth.shape[1])), released[:-1]]))


def _js_distances(truth: Array, released: Array) -> Array:
    return np.sqrt(js_divergences(truth, released))


def _top_cells(truth: Array) -> Indices:
    return busiest(truth.sum(axis=0), FRACTION)


@_metric("mae", absolute_errors, "cell", "people", higher_is_better=False)
def mean_absolute_error(truth: ArrayLike, released: ArrayLike) -> float:
    """Absolute error in people, mean over cells and windows (0 is best).

    Parameters
    ----------
    truth, released
        Counts of people, shape (n_windows, n_cells) with ``axes="windows_cells"``; the truth at least 0. So for every
        metric here.

    Raises
    ------
    ParameterError
        (A ValueError.) If the shapes differ, an array is empty or not two-dimensional, or a value is not finite.

    Examples
    --------
    >>> mean_absolute_error([[10, 0]], [[8, 1]], axes="cells_windows")
    1.5
    """
    return float(absolute_errors(*checked_pair(truth, released)).mean())


@_metric("relative_mae", relative_shares, "cell", higher_is_better=False)
def relative_mean_absolute_error(truth: ArrayLike, released: ArrayLike) -> float:
    """Mean absolute error as a share of the mean count (0 is best; a release of zeros has 1).

    >>> relative_mean_absolute_error([[10, 0]], [[8, 1]], axes="cells_windows")
    0.3
    """
    return float(relative_shares(*checked_pair(truth, released)).mean())


@_metric("variance_explained", explained_shares, "cell", higher_is_better=True)
def variance_explained(truth: ArrayLike, released: ArrayLike) -> float:
    """Share of the variance in time explained: 1 − squared error over variance within the cells (1 is best).

    0 is what every cell's own true mean would have; a release whose noise is larger than what it shows is below.

    >>> variance_explained([[10, 0]], [[9, 1]], axes="cells_windows")
    0.96
    """
    return float(explained_shares(*checked_pair(truth, released)).mean())


@_metric("skill", _skills, "cell", higher_is_better=True)
def skill(truth: ArrayLike, released: ArrayLike) -> float:
    """Share of the absolute error of a release of zeros that is avoided (1 is best; below 0 zeros are nearer).

    >>> skill([[10, 0]], [[8, 1]], axes="cells_windows"), skill([[1, 0]], [[5, 3]], axes="cells_windows")
    (0.7, -6.0)
    """
    return float(_skills(*checked_pair(truth, released)).mean())


@_metric("skill_last", _skills_last, "cell", higher_is_better=True)
def skill_last(truth: ArrayLike, released: ArrayLike) -> float:
    """Share of the absolute error of showing the last release again that is avoided (1 is best; below 0: worse).

    The first window has no release before it: zeros. 0 means that new releases tell no more than old ones.

    >>> skill_last([[10, 20, 10]], [[10, 10, 10]], axes="cells_windows")
    0.5
    """
    return float(_skills_last(*checked_pair(truth, released)).mean())


@_metric("mre", relative_errors, "cell", higher_is_better=False, source=PAPER)
def mean_relative_error(truth: ArrayLike, released: ArrayLike) -> float:
    """Relative error of Pyrgelis et al. 2020, over at least a tenth of a cell's *total*, mean over cells (0 is best).

    The longer the series, the smaller the figure of the same release: it is for comparison with the paper's tables.
    `relative_mean_absolute_error` is the error as a share of what is counted.

    >>> mean_relative_error([[10, 0]], [[8, 1]], axes="cells_windows")
    0.6
    """
    return float(relative_errors(*checked_pair(truth, released)).mean())


@_metric("mre_top", relative_errors, "cell", higher_is_better=False, covered=_top_cells, source=PAPER)
def top_mean_relative_error(truth: ArrayLike, released: ArrayLike, fraction: float = FRACTION) -> float:
    """`mean_relative_error` over the ``fraction`` of cells with the largest true totals.

    >>> top_mean_relative_error([[10, 10], [1, 0]], [[5, 10], [9, 9]], axes="cells_windows")
    0.25
    """
    pair = checked_pair(truth, released)
    return float(relative_errors(*pair)[busiest(pair[0].sum(axis=0), fraction)].mean())


@_metric("hotspot_f1", partial(hotspot_scores, fraction=FRACTION), "window", higher_is_better=True, bounds=(0.0, 1.0))
def hotspot_f1(truth: ArrayLike, released: ArrayLike, fraction: float = FRACTION) -> float:
    """F1 score of the busiest ``fraction`` of cells of each window, mean over windows (1 is best).

    >>> hotspot_f1([[9], [8], [1], [0]], [[9], [0], [1], [0]], fraction=0.5, axes="cells_windows")
    0.5
    """
    return float(hotspot_scores(*checked_pair(truth, released), fraction).mean())


@_metric("kendall_tau", kendall_taus, "window", higher_is_better=True, bounds=(-1.0, 1.0))
def kendall_tau(truth: ArrayLike, released: ArrayLike) -> float:
    """Kendall's τ-b over all cells of each window, mean over windows (1 is best).

    >>> kendall_tau([[3], [2], [1]], [[30], [10], [20]], axes="cells_windows")
    0.3333333333333333
    """
    return float(kendall_taus(*checked_pair(truth, released)).mean())


@_metric(
    "hotspot_rank_tau",
    partial(hotspot_rank_taus, fraction=FRACTION),
    "window",
    higher_is_better=True,
    bounds=(-1.0, 1.0),
)
def hotspot_rank_tau(truth: ArrayLike, released: ArrayLike, fraction: float = FRACTION) -> float:
    """Kendall's τ between the ordered lists of indices of each window's hotspots, mean over windows (1 is best).

    The τ of the paper's tables; `kendall_tau` is the measure of rank agreement.

    >>> hotspot_rank_tau([[9], [8], [7], [0]], [[0], [7], [8], [9]], fraction=0.75, axes="cells_windows")
    -1.0
    """
    return float(hotspot_rank_taus(*checked_pair(truth, released), fraction).mean())


@_metric("js_distance", _js_distances, "window", "sqrt(nats)", higher_is_better=False, bounds=(0.0, math.log(2) ** 0.5))
def js_distance(truth: ArrayLike, released: ArrayLike) -> float:
    """Square root of each window's Jensen–Shannon divergence, mean over windows: the JS of the paper's tables.

    >>> round(js_distance([[1], [0]], [[0], [1]], axes="cells_windows"), 6)
    0.832555
    """
    return float(_js_distances(*checked_pair(truth, released)).mean())


@_metric("js_divergence", js_divergences, "window", "nats", higher_is_better=False, bounds=(0.0, math.log(2)))
def js_divergence(truth: ArrayLike, released: ArrayLike) -> float:
    """Jensen–Shannon divergence of the distribution over cells, nats, mean over windows (0 is best, ln 2 worst).

    >>> round(js_divergence([[1], [0]], [[0], [1]], axes="cells_windows"), 6)
    0.693147
    """
    return float(js_divergences(*checked_pair(truth, released)).mean())


@_metric("pearson", pearson_correlations, "cell", higher_is_better=True, bounds=(-1.0, 1.0))
def pearson(truth: ArrayLike, released: ArrayLike) -> float:
    """Pearson's r of each cell's two series, 0 where a side is constant, mean over cells (1 is best).

    >>> pearson([[1, 2, 3], [4, 4, 4]], [[2, 4, 6], [1, 2, 3]], axes="cells_windows")
    0.5
    """
    return float(pearson_correlations(*checked_pair(truth, released)).mean())


@_metric("forecast_error", forecast_errors, "cell", "people", higher_is_better=False)
def forecast_error(truth: ArrayLike, released: ArrayLike, period: int = PERIOD) -> float:
    """Error in people of a seasonal forecaster that learns from the release, mean over cells and windows (0 is best).

    Parameters
    ----------
    truth, released
        As for every metric.
    period
        Windows of a season: 24, a day of hours. Without two whole seasons the last values are the forecast.

    Examples
    --------
    >>> forecast_error([[4, 8, 4, 8]], [[5, 9, 5, 9]], period=2, axes="cells_windows")
    1.0
    """
    return float(forecast_errors(*checked_pair(truth, released), period).mean())


@_metric(
    "anomaly_agreement", partial(anomaly_agreements, fraction=UNUSUAL), "cell", higher_is_better=True, bounds=(0.0, 1.0)
)
def anomaly_agreement(truth: ArrayLike, released: ArrayLike, fraction: float = UNUSUAL, period: int = PERIOD) -> float:
    """F1 score of each cell's ``fraction`` of most unusual windows, mean over cells (1 is best).

    Unusual is what the forecaster of `forecast_error` does not expect, on each side from its own past.

    >>> anomaly_agreement([[4, 4, 9, 4]], [[2, 3, 8, 2]], axes="cells_windows")
    1.0
    """
    return float(anomaly_agreements(*checked_pair(truth, released), fraction, period).mean())


@_metric("daily_mae", absolute_errors, "cell", "visits", higher_is_better=False, daily=True)
def daily_mean_absolute_error(truth: ArrayLike, released: ArrayLike, days: ArrayLike | None = None) -> float:
    """Absolute error of a cell's total of a day, in visits, mean over cells and days (0 is best).

    A visit is one person counted in one window: a total is the sum of the counts of a day's windows, *not* the number
    of distinct people of the day, who are in several.

    Parameters
    ----------
    truth, released
        As for every metric.
    days
        Local date of each window, shape (n_windows,), dates or ISO texts; NaT: left out, as days should be that the
        series holds in part. Unset: every 24 windows are a day, and what is left at the end is left out unless there
        is nothing else. Runs and experiments state it (``docs/utility.md``).

    Raises
    ------
    ParameterError
        As every metric, and if there is not one date for each window, or no date at all.

    Examples
    --------
    >>> days = ["2020-03-07", "2020-03-07", "2020-03-08", "NaT"]
    >>> daily_mean_absolute_error([[4, 4, 6, 9]], [[5, 2, 9, 0]], days, axes="cells_windows")
    2.0
    """
    return float(absolute_errors(*_daily(truth, released, days)).mean())


@_metric("daily_relative_mae", relative_shares, "cell", higher_is_better=False, daily=True)
def daily_relative_mean_absolute_error(truth: ArrayLike, released: ArrayLike, days: ArrayLike | None = None) -> float:
    """Error of a cell's total of a day as a share of the mean such total (0 is best; a release of zeros has 1).

    Totals and ``days`` are those of `daily_mean_absolute_error`.

    >>> daily_relative_mean_absolute_error([[4, 4, 6]], [[5, 2, 9]], ["2020-03-07"] * 3, axes="cells_windows")
    0.14285714285714285
    """
    return float(relative_shares(*_daily(truth, released, days)).mean())


@_metric("daily_city_error", sum_shares, "day", higher_is_better=False, daily=True)
def daily_city_error(truth: ArrayLike, released: ArrayLike, days: ArrayLike | None = None) -> float:
    """Error of all cells' common total of a day as a share of the mean such total (0 is best).

    Totals and ``days`` are those of `daily_mean_absolute_error`. Errors of cells cancel in it: it says whether the
    release is too large or too small as a whole.

    >>> daily_city_error([[4, 4], [6, 6]], [[5, 5], [5, 4]], ["2020-03-07"] * 2, axes="cells_windows")
    0.05
    """
    return float(sum_shares(*_daily(truth, released, days)).mean())


def _daily(truth: ArrayLike, released: ArrayLike, days: ArrayLike | None) -> tuple[Array, Array]:
    pair = checked_pair(truth, released)
    return by_day(pair[0], days), by_day(pair[1], days)


DEFAULT = ("mae", "relative_mae", "variance_explained", "skill", "skill_last")
"""Metrics of a simulation that names none: what a reader understands without a paper."""
