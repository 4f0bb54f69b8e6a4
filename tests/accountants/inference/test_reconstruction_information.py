"""Entropy and information bounds: brute force, closed forms of the noise, no understatement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import entr

from penstock.accountants.inference.information import information_bound
from penstock.accountants.inference.observation import cell_divergence, log_capacity, sample_noise, total_variation
from penstock.accountants.markov import MarkovPrior, chain_prior, trajectory_entropy
from penstock.mechanisms.core.plugin import ParameterError
from tests.tools.reconstruction_oracle import Enumeration, random_prior, random_sensors

FAMILIES = ("gaussian", "laplace", "discrete_gaussian", "discrete_laplace")


def test_entropy_and_exact_information_by_brute_force() -> None:
    rng = np.random.default_rng(21)
    for _ in range(120):
        n_locations, n_steps = int(rng.integers(2, 5)), int(rng.integers(1, 6))
        prior = random_prior(rng, n_locations)
        sensors = random_sensors(rng, n_locations, n_steps, n_locations)
        truth = Enumeration(prior, n_steps)
        exact = truth.information(truth.raw_channel(sensors))
        assert trajectory_entropy(prior, n_steps) == pytest.approx(truth.entropy(), abs=1e-10)
        assert information_bound(prior, sensors, order="exact") == pytest.approx(exact, abs=1e-10)
        orders = [information_bound(prior, sensors, order=order) for order in (1, 2, 3, 4)]
        assert all(later <= earlier + 1e-10 for earlier, later in zip(orders, [*orders[1:], exact]))


def test_order_one_is_the_papers_sum() -> None:
    prior, sensors = chain_prior(8, 0.2), [3, 5, 5, 1]
    expected = 0.0
    for step, cell in enumerate(sensors):
        now = prior.marginals(4)[step]
        if step == 0:
            expected += entr([now[cell], 1 - now[cell]]).sum()
            continue
        before, then = sensors[step - 1], prior.marginals(4)[step - 1]
        both = then[before] * prior.transition[before, cell]
        joint = [both, then[before] - both, now[cell] - both, 1 - then[before] - now[cell] + both]
        expected += entr(joint).sum() - entr([then[before], 1 - then[before]]).sum()
    assert information_bound(prior, sensors) == pytest.approx(expected, rel=1e-12)


def test_published_figures_on_the_slow_chain() -> None:
    sensors = [{int(cell)} for cell in np.random.default_rng(0).integers(0, 20, 10)]
    prior = chain_prior(20, 0.01)
    assert information_bound(prior, sensors) == pytest.approx(1.9636, abs=1e-3)
    assert information_bound(prior, sensors, order="exact") == pytest.approx(1.6902, abs=1e-3)


def test_sparse_and_dense_priors_agree() -> None:
    from scipy import sparse

    prior = chain_prior(300, 0.01)
    matrix = np.where(prior.transition > 0.05, prior.transition, 0)
    matrix /= matrix.sum(axis=1, keepdims=True)
    sensors = [{5, 60}, {150}, set(), {7, 8, 9}, {151}]
    dense, thin = MarkovPrior(prior.initial, matrix), MarkovPrior(prior.initial, sparse.csr_array(matrix))
    assert sparse.issparse(thin.reduced[0].transition)
    for order in (1, 2, "exact"):
        expected = information_bound(dense, sensors, order=order)
        assert information_bound(thin, sensors, order=order) == pytest.approx(expected, rel=1e-12)
    assert trajectory_entropy(thin, 5) == pytest.approx(trajectory_entropy(dense, 5), rel=1e-12)


def test_gaussian_bound_is_the_papers() -> None:
    prior, sensors, sigma = chain_prior(10, 0.1), [2, 7, 4], 3.0
    expected = 0.0
    for step, cell in enumerate(sensors):
        p, overlap = prior.marginals(3)[step, cell], math.exp(-1 / (2 * sigma**2))
        expected -= p * math.log(p + (1 - p) * overlap) + (1 - p) * math.log((1 - p) + p * overlap)
    assert information_bound(prior, sensors, "gaussian", sigma) == pytest.approx(expected, rel=1e-12)


def test_noisy_bounds_hold_and_never_exceed_the_raw_one() -> None:
    rng = np.random.default_rng(22)
    for _ in range(60):
        prior = random_prior(rng, 3)
        sensors = random_sensors(rng, 3, 3, 2)
        scale = float(rng.choice([0.15, 0.7, 3.0]))
        truth = Enumeration(prior, 3)
        exact = truth.information(truth.discrete_laplace_channel(sensors, scale))
        raw = information_bound(prior, sensors, order="exact")
        spent = [1 / scale if window else 0.0 for window in sensors]
        for noise, value in (("discrete_laplace", scale), ("pure_dp", spent)):
            bound = information_bound(prior, sensors, noise, value, order="exact")
            assert exact - 1e-10 <= bound <= raw + 1e-12


def test_guarantees_and_repeats() -> None:
    prior = chain_prior(10, 0.1)
    everything = [set(range(10))] * 4
    assert information_bound(prior, everything, "pure_dp", 0.1) == pytest.approx(0.4 * math.tanh(0.05))
    assert information_bound(prior, everything, "zcdp", 0.01) == pytest.approx(0.04)
    assert information_bound(prior, [set()] * 4) == 0.0
    assert information_bound(prior, [{1}, set()], "laplace", 1.0) == information_bound(prior, [{1}], "laplace", 1.0)


@pytest.mark.parametrize("noise", FAMILIES)
def test_divergence_and_capacity_against_integration(noise: str) -> None:
    scale = 1.3
    if noise.startswith("discrete"):
        values = np.arange(-30, 31)
        weight = np.exp(-((values / scale) ** 2) / 2) if noise == "discrete_gaussian" else np.exp(-abs(values) / scale)
        absent = weight / weight.sum()
        present = np.roll(absent, 1)
        divergence = float(np.sum(present[5:-5] * np.log(present[5:-5] / absent[5:-5])))
        union = float(np.maximum(absent, present).sum())
    else:
        family = stats.norm(0, scale) if noise == "gaussian" else stats.laplace(0, scale)
        divergence, _ = integrate.quad(
            lambda y: family.pdf(y - 1) * (family.logpdf(y - 1) - family.logpdf(y)), -40, 40, points=[0, 0.5, 1]
        )
        union, _ = integrate.quad(lambda y: max(family.pdf(y), family.pdf(y - 1)), -40, 40, points=[0, 0.5, 1])
    assert float(cell_divergence(noise, np.array([scale]))[0]) == pytest.approx(divergence, rel=1e-6)
    assert 1 + total_variation(noise, scale) == pytest.approx(union, rel=1e-6)
    assert math.exp(log_capacity(noise, np.array([scale]))) == pytest.approx(union, rel=1e-6)


@pytest.mark.parametrize("noise", FAMILIES)
@pytest.mark.parametrize("scales", [(0.8, 0.8, 0.8), (0.5, 2.0)])
def test_capacity_of_several_cells_is_an_upper_bound_and_close(noise: str, scales: tuple[float, ...]) -> None:
    rng = np.random.default_rng(31)
    n, scale = 200_000, np.array(scales)
    empty = sample_noise(noise, np.broadcast_to(scale, (n, scale.size)), rng)
    if "gauss" in noise:
        log_ratio = (2 * empty - 1) / (2 * scale**2)
    else:
        log_ratio = (np.abs(empty) - np.abs(empty - 1)) / scale
    # Σ_y max_x Pr(y given x) is the mean of the largest likelihood ratio when nobody is there
    largest = np.maximum(1.0, np.exp(log_ratio.max(axis=1)))
    error = 4 * largest.std() / math.sqrt(n)
    capacity = math.exp(log_capacity(noise, scale))
    assert largest.mean() - error <= capacity <= (largest.mean() + error) * 1.05
    assert capacity <= scale.size + 1


def test_wrong_arguments_are_named() -> None:
    prior = chain_prior(3, 1.0)
    wrong = {
        "sensors": {"sensors": [{3}]},
        "noise": {"noise": "cauchy", "scale": 1},
        "scale": {"noise": "laplace", "scale": [1, 2, 3]},
        "order": {"order": 0},
    }
    for field, change in wrong.items():
        with pytest.raises(ParameterError) as caught:
            information_bound(prior, **{"sensors": [{0}, {1}], **change})
        assert caught.value.field == field
    for scale in (None, 0, -1):
        with pytest.raises(ParameterError, match="scale"):
            information_bound(prior, [{0}], "gaussian", scale)
