"""Area under the curve, its interval, and privacy gain."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from penstock.accountants.online_attack import area_under_curve, auc_interval
from penstock.evaluation.attacks.challenge import privacy_gain
from penstock.mechanisms.core.plugin import ParameterError


def test_area_equals_the_reference_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(50):
        labels = np.append(rng.random(30) < 0.4, [True, False])
        scores = rng.integers(0, 8, labels.size).astype(float)
        assert area_under_curve(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_area_needs_both_labels():
    with pytest.raises(ParameterError, match="labels"):
        area_under_curve(np.array([True, True]), np.array([1.0, 2.0]))


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_interval_covers_as_often_as_promised(shift):
    from scipy.stats import norm

    truth, rng, covered, n = norm.cdf(shift / np.sqrt(2)), np.random.default_rng(1), 0, 600
    labels = np.repeat([True, False], 40)
    for _ in range(n):
        low, high = auc_interval(area_under_curve(labels, rng.normal(labels * shift)), 40, 40, 0.9)
        covered += low <= truth <= high
    # An interval of half the width covers about 59 %.
    assert 0.9 - 4 * np.sqrt(0.09 / n) < covered / n


def test_interval_is_not_empty_at_the_ends():
    low, high = auc_interval(1.0, 200, 200)
    assert 0.97 < low < 1.0
    assert high == 1.0
    low, high = auc_interval(0.0, 200, 200)
    assert low == 0.0
    assert 0.0 < high < 0.03


def test_interval_shrinks_with_challenges_and_grows_with_confidence():
    width = lambda *arguments: np.diff(auc_interval(*arguments))[0]  # noqa: E731
    assert width(0.7, 400, 400) < width(0.7, 100, 100)
    assert width(0.7, 100, 100, 0.99) > width(0.7, 100, 100, 0.9)


@pytest.mark.parametrize(("arguments", "field"), [((1.2, 5, 5), "auc"), ((0.7, 5, 5, 1.0), "confidence")])
def test_interval_refuses_what_is_no_probability(arguments, field):
    with pytest.raises(ParameterError) as error:
        auc_interval(*arguments)
    assert error.value.field == field


def test_privacy_gain_is_the_published_formula():
    assert privacy_gain(0.9, 0.7) == pytest.approx(0.5)
    assert privacy_gain(0.9, 0.5) == pytest.approx(1.0)
    assert privacy_gain(0.9, 0.9) == 0.0
    assert privacy_gain(0.7, 0.9) == 0.0
    assert privacy_gain(0.9, 0.49) == 0.0
    assert privacy_gain(0.5, 0.5) == 0.0
    np.testing.assert_allclose(privacy_gain(np.array([0.75, 1.0]), 0.5), [1.0, 1.0])
    assert isinstance(privacy_gain(0.9, 0.7), float)


def test_privacy_gain_refuses_what_is_no_area():
    with pytest.raises(ParameterError, match="auc_defended"):
        privacy_gain(0.9, 1.5)
