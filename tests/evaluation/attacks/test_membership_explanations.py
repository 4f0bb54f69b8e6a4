"""Mobility features, their importance, loadings, and the choice of targets."""

from collections import Counter

import numpy as np
import pytest

from penstock.evaluation.attacks.exposure import (
    component_loadings,
    feature_importance,
    mobility_features,
    sort_by_popularity,
    unicity,
)
from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.targets import activity_profile, extreme_targets, mobility_groups, sample_targets
from penstock.mechanisms.core.plugin import ParameterError


@pytest.fixture(scope="module")
def binary():
    return np.random.default_rng(0).random((30, 5, 24)) < np.linspace(0.02, 0.3, 30)[:, None, None]


def test_features_of_one_known_user():
    user = np.zeros((1, 3, 4), dtype=bool)
    user[0, [0, 1, 0, 0], [0, 0, 1, 3]] = True
    features = mobility_features(user, np.array([False, False, True, True]))
    expected = {
        "events": 4,
        "unique_cells": 2,
        "active_windows": 3,
        "cells_per_window": 4 / 3,
        "active_windows_weekday": 1.0,
        "active_windows_weekend": 0.5,
        "events_weekday": 1.5,
        "events_weekend": 0.5,
        "spatial_entropy": -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)),
        "temporal_entropy": 1.5 * np.log(2),
        "unicity": 0.75,
    }
    assert list(features) == list(expected)
    for name, value in expected.items():
        assert features[name] == pytest.approx([value]), name


def test_an_absent_user_has_features_of_zero():
    features = mobility_features(np.zeros((2, 3, 4), dtype=bool), np.ones(4, dtype=bool))
    assert all((values == 0).all() for values in features.values())


def test_unicity_equals_counting_sets(binary):
    expected = np.zeros(30)
    for window in range(24):
        sets = [frozenset(np.flatnonzero(binary[user, :, window])) for user in range(30)]
        seen = Counter(sets)
        expected += [bool(cells) and seen[cells] == 1 for cells in sets]
    np.testing.assert_allclose(unicity(binary), expected / 24)


def test_weekend_must_be_a_mask_over_the_windows(binary):
    for weekend in (np.zeros(3, dtype=bool), np.zeros(24)):
        with pytest.raises(ParameterError, match="weekend"):
            mobility_features(binary, weekend)


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


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("prior", ["subset", "same_groups"])
def test_loadings_are_correlations_with_the_scores(binary, standardize, prior):
    periods = {"observation": (0, 24), "inference": (0, 24)}
    if prior != "subset":
        periods = {"observation": (0, 16), "inference": (16, 24)}
    game = MembershipGame(
        binary, **periods, prior=prior, group_size=10, n_samples=300, n_components=8, standardize=standardize
    )
    samples, n = game.samples(20), game.samples(20).n_train
    counts = game.space.counts(samples, np.arange(n)).reshape(n, -1).astype(float)
    scaled = (counts - counts.mean(axis=0)) / (
        np.where(counts.std(axis=0) > 0, counts.std(axis=0), 1) if standardize else 1
    )
    left, values, _ = np.linalg.svd(scaled, full_matrices=False)
    scores = left[:, :8] * values[:8]
    with np.errstate(invalid="ignore"):
        correlations = np.abs(np.nan_to_num(np.corrcoef(scores.T, counts.T)[:8, 8:]))
    # All eight components: the choice of the top ones cannot matter.
    expected = correlations.sum(axis=0).reshape(-1, 5).T
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
    binary = rng.random((40, 4, 10)) < 0.05
    binary[7, 2] = True
    game = MembershipGame(binary, group_size=15, observation=10, inference=10, n_samples=600)
    assert component_loadings(game, 7, n_top=1).sum(axis=1).argmax() == 2


def test_popularity_sorts_both_axes(binary):
    counts = binary.sum(axis=0)
    ordered, cells, windows = sort_by_popularity(counts.astype(float), binary)
    assert (np.diff(ordered.sum(axis=1)) >= 0).all()
    assert (np.diff(ordered.sum(axis=0)) >= 0).all()
    np.testing.assert_array_equal(ordered, counts[np.ix_(cells, windows)])
    with pytest.raises(ParameterError, match="loadings"):
        sort_by_popularity(np.ones((2, 2)), binary)


def test_targets_come_equally_from_all_mobility_groups(binary):
    groups, events = mobility_groups(binary), binary.sum(axis=(1, 2))
    np.testing.assert_array_equal(np.bincount(groups), [10, 10, 10])
    assert events[groups == 0].max() <= events[groups == 1].min()
    assert events[groups == 1].max() <= events[groups == 2].min()
    targets = sample_targets(binary, 4, seed=1)
    np.testing.assert_array_equal(groups[targets], np.repeat([0, 1, 2], 4))
    assert np.unique(targets).size == 12
    with pytest.raises(ParameterError, match="n_per_group"):
        sample_targets(binary, 11, seed=1)


def test_extremes_and_their_activity(binary):
    most, least = extreme_targets(np.linspace(0.5, 1.0, 20), 0.1)
    np.testing.assert_array_equal(most, [19, 18])
    np.testing.assert_array_equal(least, [1, 0])
    profile = activity_profile(binary, most)
    assert profile.shape == (24,)
    assert profile.max() == 1.0
    with pytest.raises(ParameterError, match="share"):
        extreme_targets(np.ones(4), 0.6)
