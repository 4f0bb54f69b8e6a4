"""The goodness-of-fit helper: acceptance at its stated rate, and rejection of wrong scales."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from penstock.mechanisms.core.plugin import ParameterError
from penstock.testing import noise_matches
from penstock.testing.noise import _pool_bins

N = 100_000


def discrete_laplace(scale: float, n: int, generator: np.random.Generator) -> np.ndarray:
    draws: np.ndarray = stats.dlaplace(1 / scale).rvs(n, random_state=generator)
    return draws


@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0, 300.0])
def test_right_samples_have_uniform_p_values(scale: float) -> None:
    generator = np.random.default_rng(7)
    values = [noise_matches(discrete_laplace(scale, 2000, generator), "discrete_laplace", scale) for _ in range(120)]
    assert np.mean(np.array(values) < 0.05) < 0.1
    if scale >= 0.5:
        assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("scale", [0.15, 1.0, 50.0])
def test_other_scales_and_families_are_rejected(scale: float) -> None:
    samples = discrete_laplace(scale, N, np.random.default_rng(7))
    assert noise_matches(samples, "discrete_laplace", scale) > 1e-4
    for wrong in (0.7, 1.3):
        assert noise_matches(samples, "discrete_laplace", wrong * scale) < 1e-9
    assert noise_matches(samples, "discrete_gaussian", np.sqrt(2) * scale) < 1e-9


def test_broken_noise_is_rejected() -> None:
    generator = np.random.default_rng(7)
    real = generator.laplace(size=N)
    assert noise_matches(real, "laplace", 1.0) > 1e-4
    assert noise_matches(real, "discrete_laplace", 1.0) == 0.0
    assert noise_matches(np.rint(real), "discrete_laplace", 1.0) < 1e-9  # rounding is not the discrete family
    assert noise_matches(np.rint(real), "laplace", 1.0) < 1e-9
    assert noise_matches(np.zeros(N), "discrete_laplace", 0.5) < 1e-9
    assert noise_matches(np.abs(discrete_laplace(5.0, N, generator)), "discrete_laplace", 5.0) < 1e-9
    assert noise_matches(np.full(N, 10**9), "discrete_laplace", 5.0) == 0.0


def test_planar_noise_is_tested_in_length_and_direction() -> None:
    generator = np.random.default_rng(7)
    radius, angle = generator.gamma(2, 100.0, N), generator.uniform(0, 2 * np.pi, N)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert noise_matches(points, "planar_laplace", 0.01) > 1e-4
    assert noise_matches(points, "planar_laplace", 0.013) < 1e-9
    assert noise_matches(np.abs(points), "planar_laplace", 0.01) < 1e-9
    exponential = points / radius[:, None] * generator.exponential(200.0, (N, 1))
    assert noise_matches(exponential, "planar_laplace", 0.01) < 1e-9


def test_wrong_use_is_named() -> None:
    with pytest.raises(ParameterError, match="family"):
        noise_matches([1.0], "uniform", 1.0)
    with pytest.raises(ParameterError, match="scale"):
        noise_matches([1.0], "discrete_laplace", 1e6)


def test_what_is_left_of_the_bins_joins_the_last():
    expected, seen = _pool_bins(np.array([2.0, 8.0, 10.0, 3.0]), np.array([1, 9, 11, 2]), 5.0)
    assert (expected.tolist(), seen.tolist()) == ([10.0, 13.0], [10, 13])
