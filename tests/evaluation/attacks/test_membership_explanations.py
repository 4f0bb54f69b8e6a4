"""Mobility features, and the choice of targets."""

from collections import Counter

import numpy as np
import pytest

from penstock.evaluation.attacks.user_space import draw_targets, mobility_groups
from penstock.evaluation.membership import mobility_features
from penstock.mechanisms.core.plugin import ParameterError


@pytest.fixture(scope="module")
def binary():
    """Presence, (n_people, n_windows, n_cells)."""
    return (np.random.default_rng(0).random((30, 5, 24)) < np.linspace(0.02, 0.3, 30)[:, None, None]).swapaxes(1, 2)


def test_features_of_one_known_user():
    user = np.zeros((1, 4, 3), dtype=bool)
    user[0, [0, 0, 1, 3], [0, 1, 0, 0]] = True
    features = mobility_features(user, np.array([False, False, True, True]), axes="windows_cells")
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
        sets = [frozenset(np.flatnonzero(binary[user, window])) for user in range(30)]
        seen = Counter(sets)
        expected += [bool(cells) and seen[cells] == 1 for cells in sets]
    features = mobility_features(binary, np.arange(24) < 12, axes="windows_cells")
    np.testing.assert_allclose(features["unicity"], expected / 24)


def test_weekend_must_be_a_mask_over_the_windows(binary):
    for weekend in (np.zeros(3, dtype=bool), np.zeros(24)):
        with pytest.raises(ParameterError, match="weekend"):
            mobility_features(binary, weekend, axes="windows_cells")


def test_targets_come_equally_from_all_mobility_groups(binary):
    groups, events = mobility_groups(binary), binary.sum(axis=(1, 2))
    np.testing.assert_array_equal(np.bincount(groups), [10, 10, 10])
    assert events[groups == 0].max() <= events[groups == 1].min()
    assert events[groups == 1].max() <= events[groups == 2].min()
    targets = draw_targets(binary, 12, seed=1)
    np.testing.assert_array_equal(groups[targets], np.repeat([0, 1, 2], 4))
    assert np.unique(targets).size == 12
    with pytest.raises(ParameterError, match="n_targets"):
        draw_targets(binary, 31, seed=1)
