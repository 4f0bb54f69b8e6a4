"""Landmark sets of experiments: number and position in the series."""

import numpy as np
import pytest
from scipy import stats

from reproductions.katsomallos import SHAPES, landmark_distribution


def frequency(kind: str, n_landmarks: int, n_sets: int = 2000, n_windows: int = 100) -> np.ndarray:
    """Frequency of each window among the landmark sets."""
    return np.mean([landmark_distribution(kind, n_windows, n_landmarks, seed) for seed in range(n_sets)], axis=0)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(("n_windows", "n_landmarks"), [(1, 0), (1, 1), (100, 0), (100, 37), (100, 100), (2000, 5)])
def test_there_are_as_many_as_asked_for(kind, n_windows, n_landmarks):
    landmarks = landmark_distribution(kind, n_windows, n_landmarks, seed=3)
    assert landmarks.shape == (n_windows,)
    assert landmarks.dtype == bool
    assert landmarks.sum() == n_landmarks
    assert (landmark_distribution(kind, n_windows, n_landmarks, seed=3) == landmarks).all()


def test_a_single_landmark_has_the_truncated_normal_distribution():
    windows = np.arange(50)
    for kind, centre in (("left_skewed", 0.75), ("symmetric", 0.5), ("right_skewed", 0.25)):
        drawn = [int(landmark_distribution(kind, 50, 1, seed).argmax()) for seed in range(4000)]
        density = stats.norm.pdf((windows + 0.5) / 50, centre, 0.1)
        # Windows expected less than five times are one class.
        rare = density / density.sum() * 4000 < 5
        observed, expected = np.bincount(drawn, minlength=50), density / density.sum() * 4000
        pooled = [np.append(x[~rare], x[rare].sum()) for x in (observed, expected)]
        assert stats.chisquare(*pooled).pvalue > 1e-5, kind


def test_shapes_are_where_their_names_say():
    left, symmetric, right, bimodal, uniform = (
        frequency(kind, 20) for kind in ("left_skewed", "symmetric", "right_skewed", "bimodal", "uniform")
    )
    middle = np.arange(100) + 0.5
    assert np.average(middle, weights=left) == pytest.approx(75, abs=1)
    assert np.average(middle, weights=symmetric) == pytest.approx(50, abs=1)
    assert np.average(middle, weights=right) == pytest.approx(25, abs=1)
    assert bimodal[:50].sum() == pytest.approx(10, abs=0.5)
    assert np.average(middle[:50], weights=bimodal[:50]) == pytest.approx(25, abs=1)
    assert np.average(middle[50:], weights=bimodal[50:]) == pytest.approx(75, abs=1)
    assert stats.chisquare(uniform * 2000).pvalue > 1e-5
    assert np.abs(right - left[::-1]).max() < 0.08


def test_sampling_is_without_replacement_in_proportion_to_weight():
    # Two of three windows: P(a and b) = p_a p_b / (1 − p_a) + p_b p_a / (1 − p_b).
    weight = stats.norm.pdf([1 / 6, 3 / 6, 5 / 6], 0.5, 1 / 2)
    p = weight / weight.sum()
    sets = [tuple(landmark_distribution("symmetric", 3, 2, seed, scale_divisor=2.0)) for seed in range(6000)]
    both_ends = p[0] * p[2] / (1 - p[0]) + p[2] * p[0] / (1 - p[2])
    observed = np.mean([s == (True, False, True) for s in sets])
    assert abs(observed - both_ends) < 5 * np.sqrt(both_ends / 6000)


def test_windows_far_from_every_centre_are_still_drawn_when_needed():
    landmarks = landmark_distribution("right_skewed", 1000, 999, seed=1, scale_divisor=1000.0)
    assert landmarks.sum() == 999
