"""Smallest sigma, classes of length scales, and designed noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.accountants.gaussian_process.design import cases, designed_covariance, minimise_worst_loss
from penstock.accountants.gaussian_process.goal import smallest_sigma, worst_length_scale
from penstock.accountants.gaussian_process.kernels import GaussianProcess, named_family
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss, conditional_response
from penstock.mechanisms.core.plugin import ParameterError

TIMES = np.arange(10.0)


def worst_loss(secrets, sigma=None, length_scale=2.0, covariance=None):
    return max(
        conditional_inferential_loss(TIMES, s, sigma, length_scale, 1.0, 2.0, noise_covariance=covariance)[0]
        for s in secrets
    )


@pytest.mark.parametrize("goal", [1e-3, 0.5, 40.0])
def test_smallest_sigma_is_the_smallest(goal):
    secrets = [[0, 2, 4], [5], [7, 8]]
    sigma = smallest_sigma(goal, TIMES, secrets, 2.0, radius=1.0, order=2.0)
    assert goal * (1 - 1e-7) <= worst_loss(secrets, sigma) <= goal
    assert worst_loss(secrets, sigma * (1 - 1e-6)) > goal


def test_smallest_sigma_covers_every_shape_of_noise():
    shape = designed_covariance(TIMES, [[0, 4]], 10.0, 1.0)
    scale = smallest_sigma(1.0, TIMES, [0, 4], 1.0, 2.0, 3.0, noise_covariance=shape)
    designed, _ = conditional_inferential_loss(TIMES, [0, 4], None, 1.0, 2.0, 3.0, noise_covariance=scale**2 * shape)
    assert 1 - 1e-6 < designed <= 1.0
    with pytest.raises(ParameterError, match=r"^goal: "):
        smallest_sigma(0.0, TIMES, [0], 1.0, 1.0, 2.0)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "periodic"])
def test_the_longest_length_scale_is_the_worst_for_single_points(kernel):
    rng = np.random.default_rng(8)
    period = 7.0 if kernel == "periodic" else None
    for _ in range(25):
        times = np.sort(rng.uniform(0.0, 10.0, int(rng.integers(2, 10))))
        point, sigma = [int(rng.integers(len(times)))], 10 ** rng.uniform(-1.0, 0.5)
        losses = [
            conditional_inferential_loss(times, point, sigma, scale, 1.0, 2.0, kernel, period=period, nugget=1e-3)[0]
            for scale in np.geomspace(0.1, 15.0, 25)
        ]
        assert (np.diff(losses) > -1e-9 * np.array(losses[1:])).all()


def test_the_longest_length_scale_is_not_the_worst_for_sets():
    """Without any nugget and far from singular: assuming the longest understates by a third."""
    times, secret = [0.61, 0.9, 4.62, 6.95, 8.31, 8.34], [0, 1, 3, 4]
    losses = [
        conditional_inferential_loss(times, secret, 0.83447, scale, 1.0, 2.0)[0] for scale in np.geomspace(0.5, 8, 50)
    ]
    assert max(losses) > 1.3 * losses[-1]


def test_worst_length_scale_is_above_a_fine_scan():
    rng = np.random.default_rng(9)
    for case in range(12):
        times = np.sort(rng.uniform(0.0, 8.0, 7))
        secret = rng.choice(7, int(rng.integers(1, 5)), replace=False)
        sigma, nugget = 10 ** rng.uniform(-1.0, 0.5), 10 ** rng.uniform(-4.0, -1.0)
        kernel = ("rbf", "matern12", "matern32")[case % 3]

        def loss(scale, times=times, secret=secret, sigma=sigma, nugget=nugget, kernel=kernel):
            return conditional_inferential_loss(times, secret, sigma, scale, 1.0, 2.0, kernel, nugget=nugget)[0]

        value, at = worst_length_scale(np.vectorize(loss), GaussianProcess(length_scale=12.0, kernel=kernel), times)
        coarse = np.geomspace(0.01, 12.0, 120)
        best = coarse[np.argmax([loss(scale) for scale in coarse])]
        step = coarse[1] / coarse[0]
        finest = max(loss(scale) for scale in np.minimum(np.geomspace(best / step, best * step, 40), 12.0))
        assert finest <= value <= finest * (1 + 2e-3)
        assert value == pytest.approx(loss(at) * 1.001)


@pytest.mark.parametrize("log_peak", np.linspace(0.5, 0.65, 7))
def test_a_peak_between_grid_points_is_found(log_peak):
    prior = GaussianProcess(length_scale=9.0)
    value, at = worst_length_scale(
        lambda scales: 1 + np.exp(-(((np.log(scales) - log_peak) / 0.15) ** 2)), prior, TIMES
    )
    assert 2.0 <= value <= 2.0 * 1.001
    assert math.log(at) == pytest.approx(log_peak, abs=0.02)


def test_worst_length_scale_of_sigma_and_of_the_longest():
    needed = np.vectorize(lambda scale: smallest_sigma(1.0, TIMES, [4], scale, 1.0, 2.0))

    value, at = worst_length_scale(needed, GaussianProcess(length_scale=3.0), TIMES)
    assert at == pytest.approx(3.0)
    assert value == pytest.approx(needed(3.0), rel=2e-3)
    alone, _ = worst_length_scale(lambda scale: scale, GaussianProcess(length_scale=2.0), [1.0])
    assert alone == pytest.approx(2.0, rel=2e-3)


FAMILIES = {name: named_family(name, 10, 3) for name in ("singletons", "every_other", "sliding_blocks")}


@pytest.mark.parametrize("length_scale", [1.0, 2.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_designed_noise_beats_white_noise_of_the_same_total(family, length_scale):
    secrets = FAMILIES[family]
    covariance = designed_covariance(TIMES, secrets, 10.0, length_scale)
    assert np.trace(covariance) == pytest.approx(10.0)
    assert np.linalg.eigvalsh(covariance)[0] > 0
    white, designed = (
        worst_loss(secrets, 1.0, length_scale),
        worst_loss(secrets, None, length_scale, covariance=covariance),
    )
    assert white > 1.3 * designed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_design_is_certified_and_no_other_noise_beats_the_certificate(family):
    rng = np.random.default_rng(1)
    design = minimise_worst_loss(
        cases(GaussianProcess(length_scale=1.0), TIMES, FAMILIES[family]), 10.0, tolerance=0.01
    )
    assert design.lower_bound <= design.worst <= 1.01 * design.lower_bound
    assert worst_loss(FAMILIES[family], None, 1.0, design.covariance) == pytest.approx(design.worst, rel=1e-9)
    for size in (0.02, 0.2, 1.0):
        for _ in range(20):
            root = np.linalg.cholesky(design.covariance) @ (np.eye(10) + size * rng.normal(size=(10, 10)) / 3)
            other = root @ root.T
            assert worst_loss(FAMILIES[family], None, 1.0, 10.0 * other / np.trace(other)) >= design.lower_bound


def test_one_secret_has_a_closed_form():
    """Σ_g = (w·M·Mᵀ/γ − D)₊ with the γ that gives the trace: the exact optimum to compare with."""
    prior = GaussianProcess(length_scale=1.5)
    ((weight, *_),) = one = cases(prior, TIMES, [[3, 4]])
    response = conditional_response(prior.covariance(np.asarray(TIMES)), np.array([3, 4]))
    low, high = 1e-6, 1e6
    for _ in range(200):
        goal = math.sqrt(low * high)
        needed = np.linalg.eigvalsh(weight / goal * response.mean @ response.mean.T - response.residual)
        low, high = (goal, high) if needed[needed > 0].sum() > 6.0 else (low, goal)
    design = minimise_worst_loss(one, 6.0, tolerance=0.005)
    assert goal * (1 - 1e-9) <= design.worst <= goal * 1.005
    assert design.lower_bound <= goal * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"total_variance": 0.0}, "total_variance"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"secrets": [[0], [10]]}, "secrets"),
        ({"radius": 0.0}, "radius"),
        ({"length_scale": -1.0}, "length_scale"),
    ],
)
def test_bad_designs_name_the_argument(change, field):
    good = {"times": TIMES, "secrets": [[0], [1]], "total_variance": 1.0, "length_scale": 1.0}
    with pytest.raises(ParameterError, match=f"^{field}: "):
        designed_covariance(**{**good, **change})
