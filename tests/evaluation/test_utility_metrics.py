"""Utility metrics against plain transcriptions of their definitions, and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon

from penstock.evaluation import utility
from penstock.evaluation.utility import METRICS
from penstock.mechanisms.core.plugin import ParameterError


def counts(seed, n_cells=23, n_windows=17, scale=6.0):
    rng = np.random.default_rng(seed)
    truth = rng.poisson(rng.gamma(0.5, scale, size=(n_cells, 1)), size=(n_cells, n_windows)).astype(float)
    return truth, np.round(truth + rng.laplace(0.0, 2.0, truth.shape))


def plain_mre(truth, released, cells=None):
    total = 0.0
    cells = range(len(truth)) if cells is None else cells
    for cell in cells:
        gamma = 0.1 * max(1.0, sum(truth[cell]))
        total += sum(abs(b - a) / max(gamma, a) for a, b in zip(truth[cell], released[cell])) / truth.shape[1]
    return total / len(cells)


def plain_top(column, n):
    return sorted(range(len(column)), key=lambda cell: (-column[cell], cell))[:n]


def plain_f1(truth, released, n):
    scores = []
    for window in range(truth.shape[1]):
        actual, predicted = set(plain_top(truth[:, window], n)), set(plain_top(released[:, window], n))
        precision, recall = len(actual & predicted) / len(predicted), len(actual & predicted) / len(actual)
        scores.append(2 * precision * recall / (precision + recall) if precision else 0.0)
    return float(np.mean(scores))


def scipy_tau(first, second):
    constant = len(set(first)) == 1 or len(set(second)) == 1
    return 0.0 if constant else stats.kendalltau(first, second, variant="b").statistic


@pytest.mark.parametrize("seed", range(5))
def test_errors_equal_their_definition(seed):
    truth, released = counts(seed)
    assert utility.mean_relative_error(truth, released) == pytest.approx(plain_mre(truth, released))
    top = plain_top(truth.sum(axis=1), 3)
    assert utility.top_mean_relative_error(truth, released) == pytest.approx(plain_mre(truth, released, top))
    assert utility.mean_absolute_error(truth, released) == pytest.approx(np.abs(truth - released).mean())


@pytest.mark.parametrize("seed", range(5))
def test_shares_and_skills_equal_their_definition(seed):
    truth, released = counts(seed)
    error = np.abs(truth - released)
    assert utility.relative_mean_absolute_error(truth, released) == pytest.approx(error.mean() / truth.mean())
    variance = ((truth - truth.mean(axis=1, keepdims=True)) ** 2).sum()
    assert utility.variance_explained(truth, released) == pytest.approx(1 - (error**2).sum() / variance)
    assert utility.skill(truth, released) == pytest.approx(1 - error.sum() / truth.sum())
    repeated = np.hstack([np.zeros((len(truth), 1)), released[:, :-1]])
    assert utility.skill_last(truth, released) == pytest.approx(1 - error.sum() / np.abs(repeated - truth).sum())


def test_a_useless_release_is_below_zero_where_the_papers_error_is_small():
    """The paper's sanity bound grows with the length of the series, so its error hides noise above every count."""
    truth = np.full((1, 1000), 1.0)
    released = truth + np.tile([5.0, -5.0], 500)
    assert utility.mean_relative_error(truth, released) == pytest.approx(0.05)
    assert utility.relative_mean_absolute_error(truth, released) == pytest.approx(5.0)
    assert utility.skill(truth, released) == pytest.approx(-4.0)
    assert utility.variance_explained(truth, released) < -1000
    assert utility.skill(truth, np.zeros_like(truth)) == 0.0


def test_skills_where_the_other_release_is_perfect():
    nothing = np.zeros((2, 3))
    assert utility.skill(nothing, nothing) == 0.0
    assert utility.skill(nothing, nothing + 1) == -1.0
    assert utility.variance_explained(nothing, nothing) == 1.0
    assert utility.relative_mean_absolute_error(nothing, nothing) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_hotspots_equal_their_definition(seed):
    truth, released = counts(seed)
    assert utility.hotspot_f1(truth, released) == pytest.approx(plain_f1(truth, released, 3))
    lists = [(plain_top(truth[:, t], 3), plain_top(released[:, t], 3)) for t in range(truth.shape[1])]
    expected = np.mean([stats.kendalltau(*pair).statistic for pair in lists])
    assert utility.hotspot_rank_tau(truth, released) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_kendall_tau_equals_scipy_with_any_ties(n_cells, n_windows, largest, seed):
    rng = np.random.default_rng(seed)
    truth, released = rng.integers(0, largest + 1, (2, n_cells, n_windows)).astype(float)
    expected = [scipy_tau(truth[:, t], released[:, t]) for t in range(n_windows)]
    assert METRICS["kendall_tau"].scores(truth.T, released.T)[1] == pytest.approx(expected, abs=1e-12)


def test_ranks_tell_values_apart_that_differ_in_the_last_bit():
    truth = np.array([[1.0], [1.0 + 2**-52], [2.0]])
    assert utility.kendall_tau(truth, [[1.0], [2.0], [3.0]]) == 1.0


def test_hotspot_lists_with_large_indices():
    truth = np.zeros((70_000, 2))
    truth[[69_000, 2_000, 40_000], 0] = [3.0, 2.0, 1.0]
    truth[[1, 2, 3], 1] = [3.0, 2.0, 1.0]
    assert utility.hotspot_rank_tau(truth, truth, fraction=3 / 70_000) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_js_equals_scipy(seed):
    truth, released = counts(seed)
    truth[0], released[1] = 3.0, 2.0
    clipped = np.maximum(released, 0.0)
    distances = np.array([jensenshannon(truth[:, t], clipped[:, t]) for t in range(truth.shape[1])])
    assert utility.js_distance(truth, released) == pytest.approx(distances.mean())
    assert utility.js_divergence(truth, released) == pytest.approx((distances**2).mean())


@pytest.mark.parametrize("seed", range(3))
def test_pearson_equals_numpy(seed):
    truth, released = counts(seed)
    truth[0], released[1] = 0.1, 7.0
    expected = [
        0.0 if truth[c].std() < 1e-9 or released[c].std() < 1e-9 else np.corrcoef(truth[c], released[c])[0, 1]
        for c in range(len(truth))
    ]
    assert METRICS["pearson"].scores(truth.T, released.T)[1] == pytest.approx(expected)


def test_pearson_of_huge_and_tiny_series():
    series = np.array([[1.0, 2.0, 4.0]])
    assert utility.pearson(series * 1e200, series * 1e-200) == pytest.approx(1.0)
    assert utility.pearson(series, -series) == pytest.approx(-1.0)


PERFECT = {"mre": 0, "mre_top": 0, "mae": 0, "hotspot_f1": 1, "kendall_tau": 1, "hotspot_rank_tau": 1}
PERFECT |= {"relative_mae": 0, "variance_explained": 1, "skill": 1, "skill_last": 1}
PERFECT |= {"daily_mae": 0, "daily_relative_mae": 0, "daily_city_error": 0}
PERFECT |= {"js_distance": 0, "js_divergence": 0, "pearson": 1, "anomaly_agreement": 1}


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_release_has_the_best_value(name):
    rng = np.random.default_rng(0)
    truth = rng.permuted(np.tile(np.arange(1.0, 41.0)[:, None], (1, 30)), axis=0)
    metric = METRICS[name]
    best = metric.function(truth, truth)
    if name in PERFECT:  # forecasts from the truth are off too
        assert best == pytest.approx(PERFECT[name], abs=1e-7)
    noisy = metric.function(truth, np.maximum(truth + rng.normal(0, 15, truth.shape), 0.0))
    assert (noisy < best - 0.01) if metric.higher_is_better else (noisy > best + 0.01)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_values_are_finite_and_the_function_is_their_mean(name, n_cells, n_windows, seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, (n_cells, n_windows)) * rng.integers(0, 3, (n_cells, 1)).astype(float)
    released = rng.integers(-2, 3, truth.shape).astype(float)
    metric = METRICS[name]
    before = truth.copy(), released.copy()
    where, values = metric.scores(truth.T, released.T)
    assert np.isfinite(values).all()
    assert len(where) == len(values) == len(set(where))
    assert where.max() < (n_cells if metric.scope == "cell" else n_windows)
    assert metric.function(truth, released) == pytest.approx(values.mean(), abs=1e-12)
    assert np.array_equal(before[0], truth)
    assert np.array_equal(before[1], released)


def plain_forecast(series, period):
    """Transcribe the forecaster, one value after the other."""
    season = period if len(series) >= 2 * period else 1
    levels, deviation, forecasts = {}, 0.0, []
    for window, value in enumerate(series):
        place = window % season
        forecasts.append(levels[place] + 0.5 * deviation if place in levels else 0.0)
        if place in levels:
            deviation = value - levels[place]
            levels[place] += 0.3 * deviation
        else:
            levels[place] = value
    first = min(season, len(series) - 1)
    return np.array(forecasts)[first:], first


@pytest.mark.parametrize("period", [1, 4, 24])
def test_forecasts_and_anomalies_equal_their_definition(period):
    truth, released = counts(5)
    errors, shares = [], []
    for true, seen in zip(truth, released):
        (expected, first), (forecast, _) = plain_forecast(seen, period), plain_forecast(true, period)
        errors.append(np.abs(expected - true[first:]).mean())
        unusual = np.abs(true[first:] - forecast).round(9), np.abs(seen[first:] - expected).round(9)
        n = math.ceil(0.2 * len(expected))
        first_named, second_named = (set(plain_top(list(side), n)) for side in unusual)
        shares.append(len(first_named & second_named) / n)
    assert utility.forecast_error(truth, released, period=period) == pytest.approx(np.mean(errors))
    assert utility.anomaly_agreement(truth, released, 0.2, period) == pytest.approx(np.mean(shares))


def test_a_season_is_learned():
    day = np.tile(np.arange(24.0), 5)[None]
    assert utility.forecast_error(day, day) == 0.0
    assert utility.forecast_error(day, day, period=7) > 1.0
    for period in (0, 1.5):
        for metric in (utility.forecast_error, utility.anomaly_agreement):
            with pytest.raises(ParameterError, match=r"^period: "):
                metric(day, day, period=period)


def test_an_event_that_was_smoothed_away_is_missed():
    series = np.tile(np.arange(24.0), 5)[None]
    truth = series.copy()
    truth[0, 60] += 50
    assert utility.anomaly_agreement(truth, truth + 3, fraction=0.01) == 1.0
    assert utility.anomaly_agreement(truth, series, fraction=0.01) == 0.0


def test_conventions_for_nothing_at_all():
    nothing, something = np.zeros((4, 3)), np.arange(12.0).reshape(4, 3)
    assert utility.kendall_tau(nothing, nothing) == utility.pearson(nothing, something) == 0.0
    assert utility.hotspot_f1(nothing, nothing) == utility.hotspot_rank_tau(nothing, nothing) == 1.0
    assert utility.js_divergence(nothing, nothing) == 0.0
    assert utility.js_divergence(something, nothing) == pytest.approx(0.5 * math.log(2))
    assert utility.js_divergence(nothing, something) == pytest.approx(0.5 * math.log(2))
    assert utility.mean_relative_error(nothing, nothing) == 0.0
    assert utility.mean_relative_error(nothing, nothing + 1) == pytest.approx(10.0)
    one_visit = np.array([[1.0, 0.0, 0.0]])
    assert utility.mean_relative_error(one_visit, [[1.0, 1.0, 0.0]]) == pytest.approx(10.0 / 3)


def test_ties_go_to_the_lower_index():
    truth = np.zeros((10, 1))
    truth[[4, 7]] = 5.0
    released = np.zeros((10, 1))
    released[4] = 1.0
    assert utility.hotspot_f1(truth, released) == 1.0
    released[7] = 2.0
    assert utility.hotspot_f1(truth, released) == 0.0
    assert utility.hotspot_rank_tau(truth, released) == 0.0


def test_the_top_cells_are_named():
    truth, released = counts(2)
    cells, values = METRICS["mre_top"].scores(truth.T, released.T)
    assert cells.tolist() == sorted(plain_top(truth.sum(axis=1), 3))
    assert values == pytest.approx(METRICS["mre"].scores(truth.T, released.T)[1][cells])


def test_the_table_names_every_metric():
    assert set(METRICS) == {
        *("mre", "mre_top", "mae", "hotspot_f1", "kendall_tau", "hotspot_rank_tau"),
        *("js_distance", "js_divergence", "pearson", "forecast_error", "anomaly_agreement"),
        *("relative_mae", "variance_explained", "skill", "skill_last"),
        *("daily_mae", "daily_relative_mae", "daily_city_error"),
    }
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.scope in {"cell", "window", "day"}
        assert metric.help.endswith(".")


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("truth", "released", "field"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), "released"),
        (np.zeros(3), np.zeros(3), "truth"),
        (np.zeros((0, 3)), np.zeros((0, 3)), "truth"),
        (np.zeros((1, 2)), np.array([[np.nan, 0.0]]), "released"),
        (np.array([[np.inf, 0.0]]), np.zeros((1, 2)), "truth"),
        (np.array([[-1.0, 0.0]]), np.zeros((1, 2)), "truth"),
    ],
)
def test_bad_arrays_are_named(name, truth, released, field):
    with pytest.raises(ParameterError, match=f"^{field}: "):
        METRICS[name].function(truth, released)
    with pytest.raises(ValueError, match=f"^{field}: "):
        METRICS[name].scores(truth.T, released.T)


def test_a_fraction_out_of_bounds_is_named():
    for function in (utility.hotspot_f1, utility.hotspot_rank_tau, utility.top_mean_relative_error):
        with pytest.raises(ParameterError, match=r"^fraction: "):
            function([[1.0]], [[1.0]], fraction=0.0)


def test_metrics_take_either_orientation_if_it_is_stated():
    truth = np.array([[9.0, 1.0], [4.0, 8.0]])
    released = np.array([[9.0, 1.0], [8.0, 4.0]])
    given = {axes: utility.hotspot_f1(truth, released, 0.5, axes=axes) for axes in ("cells_windows", "windows_cells")}
    assert given["windows_cells"] == utility.hotspot_f1(truth.T, released.T, fraction=0.5, axes="cells_windows")
    assert given["windows_cells"] != given["cells_windows"]
    assert utility.hotspot_f1(truth, released, 0.5) == given["cells_windows"]
    with pytest.raises(ParameterError, match="windows_cells or cells_windows"):
        utility.hotspot_f1(truth, released, axes="cells")
