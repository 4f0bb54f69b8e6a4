"""Posterior of counts: exact where they are few, and intervals that hold what they say under every noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from penstock.mechanisms.core.intervals import deviation_of, margin
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES, families
from penstock.mechanisms.core.posterior import INSIDE, posterior
from penstock.mechanisms.core.surprise import Belief
from penstock.mechanisms.core.usual_days import Noisy
from penstock.pipeline.output.utility_summary import ends

N = 4000


def shown(mean, variance, values, family, scale, seen=True):
    """Posterior without events and without doubt."""
    noise = np.full(values.shape, NOISE_FAMILIES[family].variance(scale))
    noisy = Noisy(values, noise, np.full(values.shape, seen))
    none = Belief(*np.zeros((4, *values.shape)), alarm=np.zeros(values.shape, bool))
    return posterior(mean, variance, np.zeros(values.shape), noisy, family, scale, none)


@pytest.mark.parametrize("family", families("counts"))
@pytest.mark.parametrize("scale", [0.4, 3.0, 40.0])
@pytest.mark.parametrize(
    ("mean", "ratio"), [(0.3, 1.0), (4.0, 1.0), (4.0, 4.0), (60.0, 1.0), (60.0, 0.5), (5000.0, 9.0)]
)
def test_intervals_hold_what_they_say_and_the_median_is_nearer_than_a_linear_guess(family, scale, mean, ratio):
    rng, variance = np.random.default_rng(1), ratio * mean
    if ratio > 1:
        counts = rng.negative_binomial(mean / (ratio - 1), 1 / ratio, N)
    else:
        counts = rng.poisson(mean, N) if ratio == 1 else rng.binomial(int(2 * mean), 0.5, N)
    near = np.arange(-400.0, 401.0)
    chance = {
        "discrete_laplace": np.exp(-np.abs(near) / scale),
        "discrete_gaussian": np.exp(-((near / scale) ** 2) / 2),
    }
    if family in chance:
        drawn = rng.choice(near, N, p=chance[family] / chance[family].sum())
    else:
        drawn = getattr(rng, "normal" if family == "gaussian" else family)(0.0, scale, N)
    values = counts + drawn
    best = shown(np.full(N, mean), np.full(N, variance), values, family, scale)
    low, high = ends(best.median, margin(best.median, best.deviation))
    held = ((low <= counts) & (counts <= high)).mean()
    assert held >= 0.94
    assert held <= 0.98 or np.median(high - low) <= 6  # a whole number more or less is much there
    gain = variance / (variance + float(NOISE_FAMILIES[family].variance(scale)))
    linear = np.maximum(mean + gain * (values - mean), 0.0)
    assert np.abs(best.median - counts).mean() <= 1.01 * np.abs(linear - counts).mean()


def test_without_noise_a_count_is_known_and_without_a_count_the_prediction_stands():
    values = np.array([0.0, 3.0, 10_000.0])
    exact = shown(np.full(3, 5.0), np.full(3, 5.0), values, "gaussian", 0.0)
    assert exact.median.tolist() == values.tolist()
    assert not exact.deviation.any()
    mean = np.array([0.05, 3.0, 400.0])
    alone = shown(mean, mean, np.zeros(3), "gaussian", 1.0, seen=False)
    assert alone.median == pytest.approx(stats.poisson.median(mean), abs=0.5)


def test_a_prediction_near_nothing_that_may_be_wrong_does_not_rule_out_people():
    mean, values = np.full(1, 0.01), np.zeros(1)
    sure = shown(mean, mean, values, "gaussian", 50.0)
    unsure = shown(mean, np.full(1, 30.0), values, "gaussian", 50.0)
    assert sure.median == unsure.median == 0
    assert sure.deviation < 0.5
    assert unsure.deviation > 5.0


@pytest.mark.parametrize("family", families("counts"))
@pytest.mark.parametrize("jump", [20_000.0, 1_000_000.0])
def test_a_count_far_from_its_prediction_is_looked_for_until_every_value_is_seen(family, jump):
    """Two looks at 64 values left steps of hundreds, and a deviation of 0."""
    one = np.ones(1)
    event = Belief(one, jump * one, one, one, np.ones(1, bool))
    values = jump * one + 2.0
    noise = one * NOISE_FAMILIES[family].variance(1.0)
    best = posterior(5 * one, 5 * one, 0 * one, Noisy(values, noise, np.ones(1, bool)), family, 1.0, event)
    assert abs(best.median[0] - jump) <= 2
    assert 0.5 < best.deviation[0] < 2


@pytest.mark.parametrize(("count", "variance"), [(1e6, 1e6), (1e6, 100.0), (1e6, 1e7), (1e5, 1e-6)])
def test_large_counts_keep_their_digits(count, variance):
    """Logarithms of the gamma function of 1e17 are whole numbers of nats."""
    noisy = count + 3.0 * np.sqrt(variance) * np.ones(1)
    best = shown(count * np.ones(1), variance * np.ones(1), noisy, "gaussian", 1e4)
    gain = variance / (variance + 1e8)
    assert best.median[0] == pytest.approx(count + gain * (noisy[0] - count), abs=1 + 0.05 * np.sqrt(variance))
    expected = np.sqrt(variance * (1 - gain))
    assert best.deviation[0] == pytest.approx(expected, rel=0.1, abs=0.5)


def test_what_other_cells_hold_changes_no_cell():
    rng = np.random.default_rng(1)
    mean = rng.gamma(1.0, 100.0, 9000)
    values = mean + rng.laplace(0.0, 10.0, mean.size)
    values[::1000] = 1e6
    together = shown(mean, 2 * mean, values, "laplace", 10.0)
    chosen = np.arange(0, 9000, 500)
    alone = [shown(mean[i : i + 1], 2 * mean[i : i + 1], values[i : i + 1], "laplace", 10.0) for i in chosen]
    assert together.median[chosen].tolist() == [one.median[0] for one in alone]
    assert together.deviation[chosen].tolist() == [one.deviation[0] for one in alone]


@pytest.mark.parametrize("noisy", [20.0, 25.0, 30.0, 40.0])
def test_a_count_that_prediction_and_noise_both_find_unlikely_has_the_posterior_of_the_product(noisy):
    """Of e^k with a Poisson distribution: one of another mean, where the noisy count is far above."""
    one = np.ones(1)
    best = shown(5 * one, 5 * one, noisy * one, "laplace", 1.0)
    counts = np.arange(200)
    exact = np.exp(stats.poisson.logpmf(counts, 5.0) - np.abs(noisy - counts))
    assert best.median[0] == counts[(exact.cumsum() >= exact.sum() / 2).argmax()]


def test_the_interval_of_a_stated_deviation_ends_at_the_whole_numbers_that_it_was_made_from():
    value, half = (one.ravel() for one in np.meshgrid(np.arange(200.0), np.arange(1.0, 64.0)))
    width = margin(value, np.round(deviation_of(value, half + INSIDE), 6))
    assert (np.floor(width) == half).all()
