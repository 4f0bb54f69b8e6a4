"""Estimators against brute force; attacks never exceed a bound."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.accountants.inference.estimators import attack_success, estimate
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.markov import MarkovPrior, chain_prior
from penstock.mechanisms.core.plugin import ParameterError
from tests.tools.reconstruction_oracle import Enumeration, random_prior, random_sensors

NOISES = ((None, None), ("gaussian", 0.7), ("laplace", 0.5), ("discrete_laplace", 1.0), ("discrete_gaussian", 0.8))


def observe(
    path: NDArray[np.intp], sensors: list[set[int]], n_locations: int, noise: NDArray[np.float64]
) -> NDArray[np.float64]:
    observations = np.full((len(path), n_locations), np.nan)
    for step, window in enumerate(sensors):
        for cell in window:
            observations[step, cell] = (path[step] == cell) + noise[step, cell]
    return observations


def log_posterior(
    truth: Enumeration, observations: NDArray[np.float64], noise: str | None, scale: float | None
) -> NDArray[np.float64]:
    """ln Pr(path) Pr(observations given path), up to a constant, for every path."""
    with np.errstate(divide="ignore"):
        result = np.log(truth.weight)
    for step, row in enumerate(observations):
        for cell in np.flatnonzero(~np.isnan(row)):
            error = row[cell] - (truth.paths[:, step] == cell)
            if noise is None:
                result = np.where(np.abs(error) > 1e-9, -np.inf, result)
            elif noise.endswith("gaussian"):
                result = result - error**2 / (2 * scale**2)  # type: ignore[operator]
            else:
                result = result - np.abs(error) / scale  # type: ignore[operator]
    return result


@pytest.mark.parametrize(("noise", "scale"), NOISES)
def test_estimates_are_optimal_by_brute_force(noise: str | None, scale: float | None) -> None:
    rng = np.random.default_rng(51)
    for _ in range(25):
        n_locations, n_steps = int(rng.integers(2, 5)), int(rng.integers(1, 5))
        prior = random_prior(rng, n_locations)
        sensors = random_sensors(rng, n_locations, n_steps, n_locations - 1)
        truth = Enumeration(prior, n_steps)
        path = prior.sample(1, n_steps, rng)[0]
        error = np.zeros((n_steps, n_locations))
        if noise is not None:
            error = np.round(rng.normal(size=error.shape)) if noise.startswith("d") else rng.normal(size=error.shape)
        observations = observe(path, sensors, n_locations, error)
        posterior = log_posterior(truth, observations, noise, scale)
        codes = n_locations ** np.arange(n_steps)[::-1]
        chosen = estimate("map", prior, sensors, observations, noise, scale)
        assert posterior[chosen @ codes] == pytest.approx(posterior.max(), abs=1e-9)
        weight = np.exp(posterior - posterior.max())
        chosen = estimate("posterior_marginals", prior, sensors, observations, noise, scale)
        for step in range(n_steps):
            marginal = np.bincount(truth.paths[:, step], weight, n_locations)
            assert marginal[chosen[step]] == pytest.approx(marginal.max(), rel=1e-9)
        blind = estimate("prior", prior, sensors, observations)
        assert truth.weight[blind @ codes] == pytest.approx(truth.weight.max(), rel=1e-9)


def test_many_observations_at_once() -> None:
    prior, sensors, rng = chain_prior(12, 0.1), [{3}, {4, 5}, set()], np.random.default_rng(3)
    observations = rng.normal(size=(2, 70, 3, 12))
    for kind in ("map", "posterior_marginals", "prior", "constant"):
        together = estimate(kind, prior, sensors, observations, "gaussian", 1.0)
        assert together.shape == (2, 70, 3)
        alone = estimate(kind, prior, sensors, observations[1, 65], "gaussian", 1.0)
        assert together[1, 65].tolist() == alone.tolist()


def test_sparse_priors_give_the_same_estimates() -> None:
    from scipy import sparse

    dense = random_prior(np.random.default_rng(8), 5)
    thin = MarkovPrior(dense.initial, sparse.csr_array(dense.transition))
    observations = np.random.default_rng(9).normal(size=(20, 4, 5))
    for kind in ("map", "posterior_marginals", "prior", "constant"):
        first, second = (
            estimate(kind, prior, [{0}, {1, 2}, {3}, set()], observations, "laplace", 0.5) for prior in (dense, thin)
        )
        assert first.tolist() == second.tolist()


def test_a_reading_the_prior_excludes_still_has_an_answer() -> None:
    stays = MarkovPrior([1.0, 0.0, 0.0], np.eye(3))
    observations = np.array([[0.0, np.nan, np.nan], [np.nan, np.nan, 1.0], [np.nan, np.nan, np.nan]])
    for kind in ("map", "posterior_marginals"):
        guess = estimate(kind, stays, [{0}, {2}, set()], observations)
        assert guess[0] != 0
        assert guess[1] == 2
        assert guess[2] == 2


@pytest.mark.parametrize(("noise", "scale"), NOISES)
def test_attacks_never_beat_a_bound(noise: str | None, scale: float | None) -> None:
    rng = np.random.default_rng(61)
    for _ in range(25):
        n_locations, n_steps = int(rng.integers(2, 12)), int(rng.integers(2, 7))
        prior, tolerance = random_prior(rng, n_locations), int(rng.integers(0, n_steps))
        sensors = random_sensors(rng, n_locations, n_steps, 3 if n_locations > 3 else 1)
        best = success_upper_bound(prior, sensors, tolerance, noise, scale)
        for kind in ("map", "posterior_marginals", "prior", "constant"):
            _, low, _ = attack_success(kind, prior, sensors, tolerance, 400, rng, noise, scale)
            assert low <= best


def test_the_check_on_attacks_notices_a_bound_that_is_too_low() -> None:
    rng = np.random.default_rng(62)
    caught = 0
    for _ in range(20):
        prior = random_prior(rng, 4)
        sensors = random_sensors(rng, 4, 3, 2)
        bound = success_upper_bound(prior, sensors, 1)
        _, low, _ = attack_success("map", prior, sensors, 1, 2000, rng)
        caught += low > 0.7 * bound
    assert caught >= 5


def test_success_rates_agree_with_the_exact_ones() -> None:
    prior, sensors = MarkovPrior([0.6, 0.4], [[0.9, 0.1], [0.3, 0.7]]), [{1}, set(), {1}]
    truth = Enumeration(prior, 3)
    exact = truth.best_success(truth.raw_channel(sensors), 0)
    rate, low, high = attack_success("map", prior, sensors, 0, 20_000, np.random.default_rng(7))
    assert low <= exact <= high
    assert high - low < 0.05
    assert rate == pytest.approx(exact, abs=0.02)


def test_real_trajectories_and_the_lucky_constant() -> None:
    prior = chain_prior(4, 0.5)
    paths = np.array([[2, 2, 2], [2, 2, 1], [0, 1, 3], [2, 0, 2]])
    rate, low, high = attack_success("constant", prior, [set()] * 3, 1, 0, np.random.default_rng(0), trajectories=paths)
    assert rate == 0.75
    assert low < rate < high
    rate, _, _ = attack_success("map", prior, [{0, 1, 2}] * 3, 0, 0, np.random.default_rng(0), trajectories=paths)
    assert rate == 1.0


def test_wrong_arguments_are_named() -> None:
    prior, rng = chain_prior(3, 1.0), np.random.default_rng(0)
    one = np.array([[0.0, np.nan, np.nan]])
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("kind", ("magic", prior, [{0}], one)),
        ("observations", ("map", prior, [{0}], np.zeros((2, 3)))),
        ("observations", ("map", prior, [{1}], one)),
        ("observations", ("map", prior, [{0}], one + 0.5)),
        ("noise", ("map", prior, [{0}], one, "pure_dp", 1.0)),
    ]
    for field, arguments in cases:
        with pytest.raises(ParameterError) as caught:
            estimate(*arguments)  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(ParameterError, match="trajectories"):
        attack_success("map", prior, [{0}], 0, 1, rng, trajectories=[[3]])
    with pytest.raises(ParameterError, match="n_trajectories"):
        attack_success("map", prior, [{0}], 0, 0, rng)
