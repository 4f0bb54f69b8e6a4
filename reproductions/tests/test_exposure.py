"""Importance of features, loadings of the principal components, and extreme targets."""

import numpy as np
import pytest

from penstock.evaluation.attacks.game import MembershipGame
from penstock.mechanisms.core.plugin import ParameterError
from reproductions.exposure import (
    activity_profile,
    component_loadings,
    extreme_targets,
    feature_importance,
    sort_by_popularity,
)


@pytest.fixture(scope="module")
def binary():
    """Presence, (n_people, n_windows, n_cells)."""
    return (np.random.default_rng(0).random((30, 5, 24)) < np.linspace(0.02, 0.3, 30)[:, None, None]).swapaxes(1, 2)


@pytest.mark.parametrize("method", ["random_forest", "logistic_regression"])
def test_importance_finds_the_feature_that_matters(method):
    rng = np.random.default_rng(0)
    features = {"noise": rng.normal(size=40), "signal": np.repeat([2.0, 0.0], 20) + rng.normal(size=40) * 0.3}
    weights = feature_importance(features, np.arange(20), np.arange(20, 40), method=method)
    assert abs(weights["signal"]) > 5 * abs(weights["noise"])
    if method == "random_forest":
        assert sum(weights.values()) == pytest.approx(1.0)
    else:
        assert weights["signal"] < 0


def test_importance_needs_two_sets_and_a_method():
    features = {"events": np.arange(4.0)}
    with pytest.raises(ParameterError, match="least"):
        feature_importance(features, np.array([0, 1]), np.array([1, 2]))
    with pytest.raises(ParameterError, match="method"):
        feature_importance(features, np.array([0]), np.array([1]), method="magic")


@pytest.mark.parametrize("prior", ["subset", "same_groups"])
def test_loadings_are_correlations_with_the_scores(binary, prior):
    periods = {"observation": (0, 24), "inference": (0, 24)}
    if prior != "subset":
        periods = {"observation": (0, 16), "inference": (16, 24)}
    game = MembershipGame(binary, **periods, prior=prior, group_size=10, n_samples=300, n_components=8)
    samples, n = game.samples(20), game.samples(20).n_train
    counts = game.space.counts(samples, np.arange(n)).reshape(n, -1).astype(float)
    scaled = (counts - counts.mean(axis=0)) / np.where(counts.std(axis=0) > 0, counts.std(axis=0), 1)
    left, values, _ = np.linalg.svd(scaled, full_matrices=False)
    scores = left[:, :8] * values[:8]
    with np.errstate(invalid="ignore"):
        correlations = np.abs(np.nan_to_num(np.corrcoef(scores.T, counts.T)[:8, 8:]))
    # All eight components: the choice of the top ones cannot matter.
    expected = correlations.sum(axis=0).reshape(-1, 5)
    np.testing.assert_allclose(component_loadings(game, 20, n_top=8), expected, atol=1e-6)


def test_fewer_components_load_less(binary):
    game = MembershipGame(binary, group_size=10, observation=24, inference=24, n_samples=300, n_components=8)
    one, all_eight = component_loadings(game, 20, n_top=1), component_loadings(game, 20, n_top=8)
    assert one.max() <= 1 + 1e-9
    assert (one <= all_eight + 1e-9).all()
    with pytest.raises(ParameterError, match="n_top"):
        component_loadings(game, 20, n_top=0)


def test_loadings_point_to_the_cells_of_the_target():
    rng = np.random.default_rng(4)
    binary = rng.random((40, 10, 4)) < 0.05
    binary[7, :, 2] = True
    game = MembershipGame(binary, group_size=15, observation=10, inference=10, n_samples=600)
    assert component_loadings(game, 7, n_top=1).sum(axis=0).argmax() == 2


def test_popularity_sorts_both_axes(binary):
    counts = binary.sum(axis=0)
    ordered, cells, windows = sort_by_popularity(counts.astype(float), binary)
    assert (np.diff(ordered.sum(axis=1)) >= 0).all()
    assert (np.diff(ordered.sum(axis=0)) >= 0).all()
    np.testing.assert_array_equal(ordered, counts[np.ix_(windows, cells)])
    with pytest.raises(ParameterError, match="loadings"):
        sort_by_popularity(np.ones((2, 2)), binary)


def test_extremes_and_their_activity(binary):
    most, least = extreme_targets(np.linspace(0.5, 1.0, 20), 0.1)
    np.testing.assert_array_equal(most, [19, 18])
    np.testing.assert_array_equal(least, [1, 0])
    profile = activity_profile(binary, most)
    assert profile.shape == (24,)
    assert profile.max() == 1.0
    with pytest.raises(ParameterError, match="share"):
        extreme_targets(np.ones(4), 0.6)
