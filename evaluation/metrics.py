"""Values behind the utility metrics, for each cell or window, and their registry entry `Metric`.

Pyrgelis, Troncoso, De Cristofaro, *Measuring Membership Privacy on Aggregate Location Time-Series*, 2020: errors
(section 5.1), hotspots and ranks (5.2), distributions over cells (5.3), correlations in time (5.4). Forecasts and
anomalies are the tasks behind sections 5.1 and 5.4, with a plain seasonal forecaster.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import ParameterError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Scope = Literal["cell", "window", "day"]


def checked_pair(truth: ArrayLike, released: ArrayLike) -> tuple[Array, Array]:
    """Truth and release as float arrays of the same shape (n_windows, n_cells), neither empty nor NaN nor infinite.

    Raises
    ------
    ParameterError
        Naming the array that is wrong, and its shape.

    Examples
    --------
    >>> checked_pair([[1, 2]], [[1, 3]])
    (array([[1., 2.]]), array([[1., 3.]]))
    >>> checked_pair([[1, 2]], [[1, 2, 3]])
    Traceback (most recent call last):
    mechanisms.core.plugin.ParameterError: released: (1, 3) is not allowed; it must be of the truth's shape (1, 2)
    """
    pair = np.asarray(truth, dtype=np.float64), np.asarray(released, dtype=np.float64)
    if pair[0].ndim != 2 or pair[0].size == 0:
        raise ParameterError("truth", pair[0].shape, "of shape (n_windows, n_cells), at least (1, 1)")
    if pair[1].shape != pair[0].shape:
        raise ParameterError("released", pair[1].shape, f"of the truth's shape {pair[0].shape}")
    for name, array in zip(("truth", "released"), pair):
        if not np.isfinite(array).all():
            raise ParameterError(name, array[~np.isfinite(array)][0], "finite throughout")
    if (pair[0] < 0).any():
        raise ParameterError("truth", pair[0].min(), "counts of at least 0")
    return pair


def by_day(counts: Array, days: ArrayLike | None) -> Array:
    """Sums of the windows of each day, in order of date, shape (n_days, n_cells).

    Parameters
    ----------
    counts
        Shape (n_windows, n_cells).
    days
        Local date of each window, shape (n_windows,); NaT: of a day that is left out. None: every `PERIOD` windows
        are a day, and what is left at the end is left out unless there is nothing else.

    Examples
    --------
    >>> by_day(np.array([[1.0], [2.0], [4.0], [8.0]]), ["2020-03-07", "2020-03-07", "2020-03-08", "NaT"])
    array([[3.],
           [4.]])
    """
    if days is None:
        number = np.arange(len(counts)) // PERIOD
        dates = np.where(number < max(1, len(counts) // PERIOD), number, np.iinfo(np.int64).min).astype("M8[D]")
    else:
        try:
            dates = np.asarray(days, "M8[D]")
        except (TypeError, ValueError):
            raise ParameterError("days", days, "dates, or texts such as 2020-03-07") from None
        if dates.shape != (len(counts),):
            raise ParameterError("days", dates.shape, f"one date for each of the {len(counts)} windows")
    kept = ~np.isnat(dates)
    if not kept.any():
        raise ParameterError("days", "NaT", "the date of at least one window")
    known, place = np.unique(dates[kept], return_inverse=True)
    totals = np.zeros((len(known), counts.shape[1]))
    np.add.at(totals, place, counts[kept])
    return totals


#: Orientations of arrays of counts.
AXES = ("windows_cells", "cells_windows")


def turned(name: str, axes: str | None, *arrays: ArrayLike, stacklevel: int = 3) -> tuple[NDArray[Any], ...]:
    """Arrays as (…, n_windows, n_cells): the last two axes are exchanged unless ``axes`` is ``windows_cells``.

    Without ``axes`` arrays are taken as ``cells_windows``, as in earlier versions, with a `FutureWarning` that names
    the function: a square array does not show which it is.

    >>> [turned("mae", axes, np.zeros((3, 2)))[0].shape for axes in AXES]
    [(3, 2), (2, 3)]
    """
    if axes is None:
        text = f'{name}: say axes="windows_cells", or "cells_windows" as is taken now without it'
        warnings.warn(text, FutureWarning, stacklevel=stacklevel)
    elif axes not in AXES:
        raise ParameterError("axes", axes, " or ".join(AXES))
    found = [np.asarray(array) for array in arrays]
    return tuple(array if axes == "windows_cells" or array.ndim < 2 else array.swapaxes(-1, -2) for array in found)


def n_busiest(n_cells: int, fraction: float) -> int:
    """How many cells are the busiest ``fraction``, rounded up: at least one.

    >>> n_busiest(100, 0.1), n_busiest(78, 0.1), n_busiest(3, 0.1)
    (10, 8, 1)
    """
    if not 0 < fraction <= 1:
        raise ParameterError("fraction", fraction, "above 0 and at most 1")
    return max(1, math.ceil(fraction * n_cells - 1e-9))


def busiest(counts: Array, fraction: float) -> Indices:
    """Indices of the busiest cells along the last axis, busiest first; of equals, the one with the lower index.

    >>> busiest(np.array([1.0, 5.0, 5.0, 0.0]), 0.5)
    array([1, 2])
    """
    return np.argsort(-counts, axis=-1, kind="stable")[..., : n_busiest(counts.shape[-1], fraction)]


@dataclass(frozen=True)
class Metric:
    """Registry entry of a utility metric.

    Parameters
    ----------
    name
        Its name in a configuration.
    function
        (truth, released, axes=…) → the mean, a float.
    values
        Checked (truth, released) of windows × cells → one value for each cell or window; use `scores`, which checks.
        Of a ``daily`` metric: of days × cells, for each cell or day.
    scope
        ``cell``, ``window`` or ``day``: what one value is about.
    unit
        Unit of the values; "" for a pure number.
    higher_is_better
        Whether a larger value means a more useful release.
    covered
        Truth → indices of the cells or windows that count; None if all do.
    source
        Whose figure it is, where that must stand beside it.
    bounds
        The least and the largest value there can be, where both are finite.
    daily
        Whether it is about the totals of days: ``function`` and `scores` take ``days``, as in `by_day`.
    """

    name: str
    function: Callable[..., float]
    values: Callable[[Array, Array], Array]
    scope: Scope
    unit: str
    higher_is_better: bool
    covered: Callable[[Array], Indices] | None = None
    source: str = ""
    bounds: tuple[float, float] | None = None
    daily: bool = False

    @property
    def help(self) -> str:
        """First line of the function's documentation."""
        return (self.function.__doc__ or "").strip().splitlines()[0]

    def scores(
        self, truth: ArrayLike, released: ArrayLike, axes: str | None = None, days: ArrayLike | None = None
    ) -> tuple[Indices, Array]:
        """Values behind the mean: 0-based indices of the cells, windows or days covered, and the value of each.

        ``function(truth, released, axes=axes)`` is the mean of these values. ``days``: see `by_day`; other than
        ``daily`` metrics need none.
        """
        pair = checked_pair(*turned(self.name, axes, truth, released))
        if self.daily:
            pair = by_day(pair[0], days), by_day(pair[1], days)
        values = self.values(*pair)
        where = np.arange(len(values)) if self.covered is None else self.covered(pair[0])
        return where, values[where]


SANITY_SHARE = 0.1


def relative_errors(truth: Array, released: Array) -> Array:
    """Mean relative error of each cell, shape (n_cells,).

    mean over t of |Y'[t] − Y[t]| / max(γ, Y[t]) with the sanity bound γ = 0.1·Σ_t Y[t] of the cell. A cell without any
    visit is measured as if it had one (γ = 0.1): its error is neither infinite nor hidden.

    >>> relative_errors(np.array([[10.0, 0.0], [0.0, 0.0]]), np.array([[8.0, 0.0], [1.0, 0.0]]))
    array([0.6, 0. ])
    """
    bound = SANITY_SHARE * np.maximum(truth.sum(axis=0), 1.0)
    errors: Array = (np.abs(released - truth) / np.maximum(bound, truth)).mean(axis=0)
    return errors


def absolute_errors(truth: Array, released: Array) -> Array:
    """Mean absolute error of each cell, in people, shape (n_cells,).

    >>> absolute_errors(np.array([[10.0], [0.0]]), np.array([[8.0], [1.0]]))
    array([1.5])
    """
    errors: Array = np.abs(released - truth).mean(axis=0)
    return errors


def relative_shares(truth: Array, released: Array) -> Array:
    """Each cell's mean absolute error as a share of the mean count over all cells and windows, shape (n_cells,).

    Where no one was counted at all, as if one person had been there once.

    >>> relative_shares(np.array([[10.0, 2.0], [0.0, 0.0]]), np.array([[8.0, 2.0], [1.0, 0.0]]))
    array([0.5, 0. ])
    """
    shares: Array = np.abs(released - truth).sum(axis=0) * truth.shape[1] / max(float(truth.sum()), 1.0)
    return shares


def sum_shares(truth: Array, released: Array) -> Array:
    """Error of each row's sum over the cells as a share of the mean true sum, shape (n_rows,).

    Where no one was counted at all, as if one person had been there once.

    >>> sum_shares(np.array([[10.0, 2.0], [4.0, 0.0]]), np.array([[8.0, 4.0], [1.0, 2.0]]))
    array([0.   , 0.125])
    """
    shares: Array = np.abs((released - truth).sum(axis=1)) * len(truth) / max(float(truth.sum()), 1.0)
    return shares


def explained_shares(truth: Array, released: Array) -> Array:
    """1 − each cell's squared error over the mean squared deviation of a cell from its own mean, shape (n_cells,).

    Their mean is 1 − Σ(Y′ − Y)² / Σ(Y − Ȳ_c)² over all cells and windows: 1 is perfect, 0 no better than every cell's
    own mean, below 0 worse. Where no cell varies, as if they did by 1 in all.

    >>> explained_shares(np.array([[4.0], [0.0]]), np.array([[3.0], [0.0]]))
    array([0.875])
    """
    deviation = float(((truth - truth.mean(axis=0)) ** 2).sum())
    error = ((released - truth) ** 2).sum(axis=0)
    shares: Array = 1.0 - error * truth.shape[1] / (deviation if deviation > 0 else 1.0)
    return shares


def skills(truth: Array, released: Array, instead: Array) -> Array:
    """Each cell's absolute error saved against another release, as a share of a cell's error there, shape (n_cells,).

    Their mean is the skill score 1 − Σ|Y′ − Y| / Σ|instead − Y|: 1 is perfect, 0 no better, below 0 worse. Against a
    perfect one it is minus the mean error.

    >>> truth = np.array([[4.0], [0.0]])
    >>> skills(truth, np.array([[3.0], [0.0]]), np.zeros((2, 1)))
    array([0.75])
    """
    error, reference = (np.abs(side - truth).sum(axis=0) for side in (released, instead))
    scale = reference.sum() if reference.any() else truth.size
    saved: Array = (reference - error) * truth.shape[1] / scale
    return saved


LARGEST_PAIRWISE = 512
"""Cells up to which all pairs are compared (O(n²), vectorised over windows); above, windows are sorted one by one."""


def hotspot_scores(truth: Array, released: Array, fraction: float) -> Array:
    """F1 score of the busiest cells of each window, shape (n_windows,).

    Both sides name equally many hotspots, so precision, recall and F1 are one number: the share they have in common.

    >>> hotspot_scores(np.array([[9.0, 8.0, 1.0, 0.0]]), np.array([[9.0, 0.0, 1.0, 0.0]]), 0.5)
    array([0.5])
    """
    true_hotspots, released_hotspots = busiest(truth, fraction), busiest(released, fraction)
    is_hotspot = np.zeros(truth.shape, dtype=bool)
    np.put_along_axis(is_hotspot, true_hotspots, True, axis=1)
    hits: Array = np.take_along_axis(is_hotspot, released_hotspots, axis=1).mean(axis=1)
    return hits


def kendall_taus(truth: Array, released: Array) -> Array:
    """Kendall's τ-b between the counts of all cells, for each window, shape (n_windows,); 0 where a side is constant.

    τ-b = (P − Q) / sqrt((P + Q + T)(P + Q + U)): concordant and discordant pairs, and ties on one side only.

    >>> kendall_taus(np.array([[3.0, 2.0, 2.0], [0.0, 0.0, 0.0]]), np.array([[5.0, 1.0, 0.0], [1.0, 2.0, 3.0]]))
    array([0.81649658, 0.        ])
    """
    if truth.shape[1] > LARGEST_PAIRWISE:
        return np.array([_sorted_tau(*window) for window in zip(truth, released)])
    return _taus(_dense_ranks(truth), _dense_ranks(released))


def hotspot_rank_taus(truth: Array, released: Array, fraction: float) -> Array:
    """Kendall's τ between the two lists of cell *indices* of the busiest cells in order, for each window.

    This is what the paper's tables contain: a cell's index is compared as if it were a score, so the figure says
    whether the lists are equal (1) and little else. `kendall_taus` is the measure of rank agreement. Shape
    (n_windows,); with a single hotspot, 1 where it is the same cell and 0 elsewhere.

    >>> truth = np.array([[9.0, 8.0, 7.0, 0.0]])
    >>> hotspot_rank_taus(truth, truth, 0.75), hotspot_rank_taus(truth, truth[:, ::-1], 0.75)
    (array([1.]), array([-1.]))
    """
    lists = busiest(truth, fraction), busiest(released, fraction)
    if lists[0].shape[1] == 1:
        same: Array = (lists[0] == lists[1])[:, 0].astype(np.float64)
        return same
    if lists[0].shape[1] > LARGEST_PAIRWISE:
        return kendall_taus(lists[0].astype(np.float64), lists[1].astype(np.float64))
    return _taus(*lists)


def _dense_ranks(counts: Array) -> Indices:
    """Rank of each value in its window: the same order and ties, in small integers."""
    order = np.argsort(counts, axis=1, kind="stable")
    ordered = np.take_along_axis(counts, order, axis=1)
    steps = np.zeros(counts.shape, dtype=np.intp)
    np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, out=steps[:, 1:])
    ranks = np.empty_like(steps)
    np.put_along_axis(ranks, order, steps, axis=1)
    return ranks


def _taus(first: Indices, second: Indices) -> Array:
    """τ-b for each row of two arrays of small integers, from the signs of all pairs."""
    n_windows, n_items = first.shape
    # Pairs are compared along columns, which lie together.
    ranks = first.T.astype(np.int32, order="C"), second.T.astype(np.int32, order="C")
    agreement, untied_first, untied_second = np.zeros((3, n_windows), dtype=np.int64)
    for gap in range(1, n_items):
        signs: list[NDArray[np.int8]] = [
            (rank[gap:] > rank[:-gap]).view(np.int8) - (rank[gap:] < rank[:-gap]).view(np.int8) for rank in ranks
        ]
        agreement += (signs[0] * signs[1]).sum(axis=0, dtype=np.int64)
        untied_first += np.count_nonzero(signs[0], axis=0)
        untied_second += np.count_nonzero(signs[1], axis=0)
    scale = np.sqrt(untied_first * untied_second)
    taus: Array = np.divide(agreement, scale, out=np.zeros(n_windows), where=scale > 0)
    return taus


def _sorted_tau(first: Array, second: Array) -> float:
    """τ-b of one window in O(n log n)."""
    if (first == first[0]).all() or (second == second[0]).all():
        return 0.0
    from scipy import stats  # half a second that only large spaces need

    return float(stats.kendalltau(first, second, variant="b").statistic)


def js_divergences(truth: Array, released: Array) -> Array:
    """Jensen–Shannon divergence of the two distributions over cells, for each window, nats, shape (n_windows,).

    ½·KL(V‖Z) + ½·KL(W‖Z) with Z = (V + W)/2: from 0 to ln 2. Negative released counts are taken as 0. A window without
    any count has no distribution: two such windows are equal (0), and against any other the formula is left with one of
    its terms, ½·ln 2 (which is how the paper's tables treat fully suppressed windows).

    >>> truth = np.array([[1.0, 0.0], [1.0, 3.0], [0.0, 2.0]])
    >>> released = np.array([[0.0, 1.0], [2.0, 6.0], [0.0, 0.0]])
    >>> js_divergences(truth, released).round(4)
    array([0.6931, 0.    , 0.3466])
    """
    from scipy.special import rel_entr  # not for those who only read which metrics there are

    first, second = _shares(truth), _shares(np.maximum(released, 0.0))
    middle = 0.5 * (first + second)
    terms = rel_entr(first, middle) + rel_entr(second, middle)
    divergences: Array = np.maximum(0.5 * terms.sum(axis=1), 0.0)
    return divergences


def _shares(counts: Array) -> Array:
    totals = counts.sum(axis=1, keepdims=True)
    shares: Array = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return shares


def pearson_correlations(truth: Array, released: Array) -> Array:
    """Pearson's r between the two series of each cell, shape (n_cells,); 0 where a side is constant.

    >>> truth = np.array([[1.0, 4.0], [2.0, 4.0], [3.0, 4.0]])
    >>> pearson_correlations(truth, np.array([[2.0, 1.0], [4.0, 2.0], [6.0, 3.0]]))
    array([1., 0.])
    """
    first, second = _standardised(truth), _standardised(released)
    correlations: Array = np.clip(np.einsum("tc,tc->c", first, second), -1.0, 1.0)
    return correlations


def _standardised(series: Array) -> Array:
    """Each column less its mean and divided by its norm; zero where it is constant, whatever the mean rounds to."""
    varies = (series != series[0]).any(axis=0)
    largest = np.abs(series).max(axis=0)
    scaled = np.divide(series, largest, out=np.zeros_like(series), where=varies)
    centred = scaled - scaled.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    standardised: Array = np.divide(centred, norms, out=np.zeros_like(series), where=varies & (norms > 0))
    return standardised


PERIOD = 24
"""Windows of a season: a day of hours."""
SMOOTHING = 0.3
"""Weight of the newest value in the level of its place in the season."""
PERSISTENCE = 0.5
"""How much of the last deviation from its level is expected again."""


def seasonal_forecasts(series: Array, period: int = PERIOD) -> Array:
    """Forecast of every value from the values before it, shape (n_windows, n_series); 0 where nothing is known.

    One level for each place in the season, exponentially smoothed, plus a share of the last deviation. A series
    shorter than two seasons has none: its only level is that of the last values. O(n_series) a window.

    >>> seasonal_forecasts(np.array([[4.0], [8.0], [4.0], [8.0], [4.0], [10.0], [4.0]]), 2).ravel()
    array([0., 0., 4., 8., 4., 8., 5.])
    """
    n_windows, n_series = series.shape
    period = season(n_windows, period)
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


def season(n_windows: int, period: int) -> int:
    """The period, or 1 for a series shorter than two of it."""
    if not isinstance(period, int | np.integer) or period < 1:
        raise ParameterError("period", period, "a whole number at least 1")
    return period if n_windows >= 2 * period else 1


def forecast_errors(truth: Array, released: Array, period: int = PERIOD) -> Array:
    """Mean absolute error of forecasts of the truth from released counts, in people, shape (n_cells,).

    Windows of the first season are not scored (a single window is).

    >>> forecast_errors(np.array([[4.0], [4.0], [4.0]]), np.array([[5.0], [5.0], [5.0]]))
    array([1.])
    """
    first = _first_scored(len(truth), period)
    errors: Array = np.abs(seasonal_forecasts(released, period) - truth)[first:].mean(axis=0)
    return errors


def anomaly_agreements(truth: Array, released: Array, fraction: float, period: int = PERIOD) -> Array:
    """F1 score of each cell's most unusual windows, shape (n_cells,).

    A window is as unusual as its value is far from its forecast, on either side from that side's own past. Both sides
    name equally many, so the score is the share in common; of equals the earlier one is named.

    >>> truth = np.array([[4.0], [4.0], [9.0], [4.0]])
    >>> anomaly_agreements(truth, truth / 2, 0.25), anomaly_agreements(truth, truth[::-1], 0.25)
    (array([1.]), array([0.]))
    """
    first = _first_scored(len(truth), period)
    unusual = [np.abs(side - seasonal_forecasts(side, period))[first:].T for side in (truth, released)]
    named = [busiest(_rounded(distance), fraction) for distance in unusual]
    is_named = np.zeros(unusual[0].shape, dtype=bool)
    np.put_along_axis(is_named, named[0], True, axis=1)
    shares: Array = np.take_along_axis(is_named, named[1], axis=1).mean(axis=1)
    return shares


def _first_scored(n_windows: int, period: int) -> int:
    return min(season(n_windows, period), n_windows - 1)


def _rounded(distances: Array) -> Array:
    # Distances that are equal but for rounding are equal, so that sums in another order name the same windows.
    return np.round(distances, 9)
