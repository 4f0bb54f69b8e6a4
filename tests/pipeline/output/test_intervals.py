"""Intervals of counts, against the truncated normal by brute force, and below 0."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from penstock.pipeline.output.utility_summary import (
    LEVEL,
    coverage_by_part,
    describe_utility,
    ends,
    half_width,
    interval_coverage,
    margin,
)

VALUES = np.array([0.0, 0.2, 1.0, 1.7, 1.95, 2.0, 3.0, 50.0])


def truncated(value, deviation=1.0):
    """Normal distribution truncated at 0."""
    return stats.truncnorm(-value / deviation, np.inf, value, deviation)


def stated(deviation):
    """Stated interval of an integer, widened by a variance of 1/12."""
    return np.sqrt(deviation**2 - 1 / 12)


@pytest.mark.parametrize("deviation", [0.6, 1.0, 8.0])
def test_no_interval_with_as_much_of_a_truncated_normal_is_shorter(deviation):
    values = deviation * VALUES
    for value, low, high in zip(values, *ends(values, margin(values, np.full(len(values), stated(deviation))))):
        count = truncated(value, deviation)
        assert count.cdf(high) - count.cdf(low) == pytest.approx(LEVEL, abs=1e-9)
        below = np.linspace(0.0, 1 - LEVEL, 20001)[:-1]
        widths = count.ppf(below + LEVEL) - count.ppf(below)
        assert high - low <= widths.min() * (1 + 1e-9)
        assert low == pytest.approx(count.ppf(below)[widths.argmin()], abs=2e-2 * deviation)


def test_an_interval_leaves_out_the_next_person_only_where_that_error_is_rarer_than_stated():
    # 6 % of the cells hold one person, the others nobody: the root mean square of the error of 0 is √0.06.
    counts = np.repeat([0.0, 1.0], [94, 6])
    one = np.full(len(counts), np.sqrt(0.06))
    assert interval_coverage(counts, np.zeros(len(counts)), one)["coverage"] == 1.0
    assert margin(np.zeros(1), one[:1]).tolist() == [1.0]
    # 4 %: nobody is what holds 95 %.
    assert margin(np.zeros(1), np.full(1, 0.2))[0] < 1.0


def test_values_without_doubt_and_without_a_value():
    assert margin(np.array([0.0, 4.0]), np.zeros(2)).tolist() == [0.0, 0.0]
    assert np.isnan(margin(np.array([np.nan, 1.0]), np.array([1.0, np.nan]))).all()
    assert margin(np.array([1e9]), np.array([stated(2.0)])) == pytest.approx(2 * 1.959964)


@pytest.mark.parametrize(("value", "deviation"), [(0.3, 1.0), (1.0, 1.0), (15.0, 10.0)])
def test_they_hold_the_stated_share_of_small_counts(value, deviation):
    counts = truncated(value, deviation).rvs(100_000, random_state=1)
    values, deviations = np.full(len(counts), value), np.full(len(counts), stated(deviation))
    actual = interval_coverage(counts, values, deviations)
    assert actual["coverage"] == pytest.approx(LEVEL, abs=0.003)
    assert (values - margin(values, deviations) < 0).all()  # the lower end is 0
    assert actual["interval_width"] == pytest.approx(value + margin(values, deviations)[0])
    # 1.96 standard deviations to either side hold more than they say, and reach below 0.
    plain = np.abs(counts - value) <= 1.96 * deviation
    assert plain.mean() > LEVEL + 0.005
    beyond = np.maximum(np.abs(counts - value) - 1.96 * deviation, 0.0)
    assert actual["interval_score"] < (2 * 1.96 * deviation + 40 * beyond).mean()


def test_noise_of_less_than_a_person_is_no_normal():
    """Half of the noise of one person moves a filtered count by 0, or by half a person."""
    moved = np.repeat([-0.5, 0.0, 0.5], [1, 10, 1])
    deviation = np.full(len(moved), moved.std())
    assert (1.96 * deviation < 0.5).all()  # ten of twelve
    assert interval_coverage(np.full(len(moved), 9.0), 9.0 + moved, deviation)["coverage"] == 1.0


def test_noise_keeps_its_share_where_the_interval_is_cut_off_at_zero():
    rng = np.random.default_rng(1)
    counts = rng.poisson(1.0, 200_000)
    noisy = counts + rng.normal(0, 3.0, len(counts))
    low, high = ends(noisy, 1.96 * 3.0)
    assert low.min() == 0 <= high.min()
    within = np.abs(counts - noisy) <= 1.96 * 3.0
    assert ((low <= counts) & (counts <= high)).mean() >= within.mean() == pytest.approx(LEVEL, abs=0.002)


def test_a_table_of_releases_has_the_margin_of_a_deviation_and_else_that_of_noise():
    rows = pl.DataFrame(
        {
            "value": [1.0, 5.0, 5.0, 5.0],
            "standard_deviation": [1.0, None, None, None],
            "scale": [9.0, 2.0, 2.0, 0.0],
            "noise": ["gaussian", "gaussian", "discrete_laplace", "none"],
        }
    )
    expected = [margin(np.ones(1), np.ones(1))[0], 2 * 1.96, 2 * np.log(20), np.nan]
    widths = rows.lazy().select(half_width().alias("margin")).collect(engine="streaming")["margin"]
    np.testing.assert_allclose(widths.to_numpy(), expected, rtol=1e-12)


def test_a_part_in_which_intervals_fail_is_named():
    truth = np.tile(10.0 * np.arange(100), (501, 1))
    released = truth.copy()
    released[1::2, -10:] += 20  # the ten busiest cells, every other window
    deviation = np.full(truth.shape, 3.0)
    deviation[0] = np.nan  # nothing is stated of the first window
    alarm = np.zeros(truth.shape, bool)
    alarm[7, :50] = True
    parts = coverage_by_part(truth, released, deviation, alarm)
    tenths = [part for part in parts if part["part"].startswith("released as ")]
    assert len(tenths) == 10
    assert [part["counts"] for part in tenths] == [5000] * 10
    assert [part["coverage"] for part in tenths] == [1.0] * 9 + [0.5]
    assert (tenths[9]["part"], tenths[0]["part"]) == ("released as 900 to 1,010", "released as 0 to 90")
    assert parts[10:] == [
        {"part": "in the busiest cells", "counts": 5000, "coverage": 0.5, "half_width": tenths[9]["half_width"]},
        {"part": "with an alarm", "counts": 50, "coverage": 1.0, "half_width": pytest.approx(5.9, abs=0.2)},
    ]
    worth = {
        "mean_count": 495.0,
        "error": 1.0,
        "error_of_zeros": 495.0,
        "error_of_last": 5.0,
        "coverage_by_part": parts,
    }
    message = describe_utility(worth | interval_coverage(truth, released, deviation))
    assert message.endswith("hold 95 % of the counts, and 50 % of those released as 900 to 1,010.")


def test_equal_values_are_in_one_part():
    values = np.repeat([0.0, 1.0, 9.0], [80, 10, 10])[:, None]
    parts = coverage_by_part(values, values, np.ones(values.shape))
    assert [part["part"] for part in parts] == [
        "released as 0 to 0",
        "released as 1 to 1",
        "released as 9 to 9",
        "in the busiest cells",
    ]
    assert [part["counts"] for part in parts] == [80, 10, 10, 100]
    assert coverage_by_part(values, values, np.full(values.shape, np.nan)) == []
