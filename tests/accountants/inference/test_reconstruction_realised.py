"""Realised risk of many targets: beliefs and success against brute force, and bounded state."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.accountants.inference.estimators import attack_success
from penstock.accountants.inference.horizon import horizon_bounds
from penstock.accountants.inference.information import information_bound
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces, Reading
from penstock.accountants.inference.running import observe, predict, realised_risk, start_beliefs
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.success_prior import max_ball_probability
from penstock.accountants.inference.targets import KnownTargets, TargetPriors
from penstock.accountants.markov import MarkovPrior, chain_prior
from penstock.mechanisms.core.plugin import ParameterError
from tests.tools.reconstruction_oracle import Enumeration, random_prior, random_sensors


def conditional(
    prior: MarkovPrior, path: np.ndarray, sensors: list[set[int]], residuals: np.ndarray, scale: float | None
) -> tuple[Enumeration, np.ndarray]:
    """Every trajectory with its posterior probability given the releases."""
    truth = Enumeration(prior, len(sensors))
    weight = truth.weight.copy()
    for step, window in enumerate(sensors):
        for cell in window:
            here, there = float(path[step] == cell), truth.paths[:, step] == cell
            if scale is None:
                weight = weight * (there == here)
            else:
                weight = weight * np.exp(-((residuals[step, cell] + here - there) ** 2) / (2 * scale**2))
    return truth, weight / weight.sum()


def likely(targets, sensors, places, noise=None, scale=1.0, residual=None):
    """ln Pr(one window's release given each place of each target); the last location is that of the unseen."""
    known = KnownTargets(
        users=(None,) * targets.n_targets,
        priors=(),
        places=PriorPlaces.of_cells(targets.n_locations - 1),
        first=0,
        assumption="given",
    )
    active = np.isin(np.arange(targets.n_locations - 1), list(sensors))
    messages = known.log_likelihood(Reading(active, noise, scale, residual), np.asarray(places), np.zeros(0, np.intp))
    return np.take_along_axis(np.pad(messages, ((0, 0), (0, 1)), constant_values=-np.inf), targets.locations, axis=1)


@pytest.mark.parametrize("scale", [None, 0.6])
@pytest.mark.parametrize("is_shared", [False, True])
def test_beliefs_and_success_against_brute_force(scale: float | None, is_shared: bool) -> None:
    rng = np.random.default_rng(71)
    n_targets, n_locations, n_steps, horizon = 12, 4, 5, 3
    priors = [random_prior(rng, n_locations) for _ in range(n_targets)]
    priors = [priors[0]] * n_targets if is_shared else priors
    targets = TargetPriors.of(priors)
    assert len(targets.transition) == (1 if is_shared else n_targets)
    paths = np.stack([prior.sample(1, n_steps, rng)[0] for prior in priors])
    sensors = random_sensors(rng, n_locations - 1, n_steps, 2)
    residuals = rng.normal(size=(n_steps, n_locations - 1)) if scale else np.zeros((n_steps, n_locations - 1))
    state = start_beliefs(targets, horizon)
    for step in range(n_steps):
        noise = "gaussian" if scale else None
        seen = likely(targets, sensors[step], paths[:, step], noise, scale or 1.0, residuals[step])
        state = observe(targets, state, seen)
        for tolerance in (0, 1, 2):
            risk = realised_risk(targets, state, tolerance)
            for target, prior in enumerate(priors):
                truth, posterior = conditional(prior, paths[target], sensors[: step + 1], residuals, scale)
                kept = slice(max(0, step + 1 - horizon), step + 1)
                places = targets.locations[target]
                for position, window in enumerate(range(step + 1)[kept]):
                    marginal = np.bincount(truth.paths[:, window], posterior, n_locations)
                    actual = risk["marginals"][target, position, places >= 0]
                    assert actual == pytest.approx(marginal[places[places >= 0]], abs=1e-9)
                guess = places[risk["marginals"][target].argmax(axis=-1)]
                wrong = (truth.paths[:, kept] != guess).sum(axis=1)
                assert risk["low"][target] == pytest.approx(posterior[wrong <= tolerance].sum(), abs=1e-9)
                every = np.unique(truth.paths[:, kept], axis=0)
                misses = (every[:, None, :] != truth.paths[None, :, kept]).sum(axis=2)
                exact = ((misses <= tolerance) @ posterior).max()
                assert risk["low"][target] - 1e-9 <= exact <= risk["high"][target] + 1e-9


def test_the_state_is_flat_and_keeps_its_size() -> None:
    targets = TargetPriors.of([chain_prior(6, 0.2)] * 5)
    state = start_beliefs(targets, 4)
    sizes, before = [], {name: value.copy() for name, value in state.items()}
    for step in range(12):
        following = observe(targets, state, likely(targets, {step % 6}, np.arange(5)))
        assert all(np.array_equal(state[name], before[name]) for name in state)
        state = following
        before = {name: value.copy() for name, value in state.items()}
        sizes.append({name: (value.shape, value.dtype) for name, value in state.items()})
    assert all(isinstance(value, np.ndarray) for value in state.values())
    assert all(size == sizes[0] for size in sizes)


def test_what_comes_next_starts_from_what_was_told() -> None:
    """A bound for the coming windows from the prior alone would understate after a sighting."""
    prior = chain_prior(20, 0.01)
    targets = TargetPriors.of([prior])
    state = observe(targets, start_beliefs(targets, 3), likely(targets, {4}, np.array([4])))
    assert predict(targets, state)[0] == pytest.approx(prior.transition[4])
    coming = MarkovPrior(predict(targets, state)[0], prior.transition)
    rate, low, _ = attack_success("prior", coming, [set()] * 10, 5, 2000, np.random.default_rng(6))
    assert rate > 0.9
    assert success_upper_bound(prior, [set()] * 10, 5) < 0.11
    assert low < success_upper_bound(coming, [set()] * 10, 5)


def test_a_release_the_prior_excludes_does_not_break_the_filter() -> None:
    stays = MarkovPrior([1.0, 0.0, 0.0], np.eye(3))
    moves = MarkovPrior([0.5, 0.5, 0.0], [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    targets = TargetPriors.of([stays, moves])
    state = start_beliefs(targets, 2)
    for place in ([2, 1], [0, 0]):
        state = observe(targets, state, likely(targets, {0, 1}, np.array(place)))
        risk = realised_risk(targets, state, 0)
        assert all(np.isfinite(value).all() for value in risk.values())
        assert state["belief"][-1].sum(axis=1) == pytest.approx(1.0)


def test_noise_that_hides_everything_leaves_the_prior() -> None:
    prior = chain_prior(8, 0.1)
    targets = TargetPriors.of([prior] * 3)
    state = start_beliefs(targets, 2)
    for _ in range(2):
        residual = np.random.default_rng(1).normal(0, 1e6, 7)
        state = observe(targets, state, likely(targets, {0, 5}, np.array([0, 5, 7]), "gaussian", 1e6, residual))
    assert realised_risk(targets, state, 0)["marginals"][0] == pytest.approx(prior.marginals(2), abs=1e-4)


@pytest.mark.parametrize(
    ("noise", "scale"), [(None, None), ("laplace", 0.7), ("discrete_gaussian", 2.0), ("pure_dp", 0.5), ("zcdp", 0.1)]
)
def test_bounds_of_many_targets_are_those_of_each(noise: str | None, scale: float | None) -> None:
    rng = np.random.default_rng(72)
    for _ in range(25):
        n_locations, n_steps = int(rng.integers(2, 6)), int(rng.integers(1, 6))
        tolerance = int(rng.integers(0, n_steps))
        priors = [random_prior(rng, n_locations) for _ in range(3)]
        sensors = random_sensors(rng, n_locations, n_steps, n_locations)
        targets = TargetPriors.of(priors)
        bounds = horizon_bounds(targets, targets.initial, PlannedWindows(sensors, noise, scale), tolerance)
        for target, prior in enumerate(priors):
            information = min(information_bound(prior, sensors, noise, scale), bounds["entropy"][target])
            assert bounds["information"][target] == pytest.approx(information, abs=1e-9)
            assert bounds["ball"][target] >= max_ball_probability(prior, n_steps, tolerance) * (1 - 1e-9)
            for name in ("tight", "leakage"):
                alone = success_upper_bound(prior, sensors, tolerance, noise, scale, bound=name)  # type: ignore[arg-type]
                assert bounds[name][target] >= alone * (1 - 1e-6)
            alone = success_upper_bound(prior, sensors, tolerance, noise, scale, n_samples=0)
            assert bounds["best"][target] >= alone * (1 - 1e-6)


def test_bounds_of_many_targets_hold() -> None:
    rng = np.random.default_rng(73)
    for _ in range(40):
        priors = [random_prior(rng, 3) for _ in range(4)]
        sensors, tolerance = random_sensors(rng, 3, 4, 2), int(rng.integers(0, 4))
        targets = TargetPriors.of(priors)
        best = horizon_bounds(targets, targets.initial, PlannedWindows(sensors), tolerance)["best"]
        for target, prior in enumerate(priors):
            truth = Enumeration(prior, 4)
            assert truth.best_success(truth.raw_channel(sensors), tolerance) <= best[target] * (1 + 1e-9)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ParameterError, match="priors"):
        TargetPriors.of([chain_prior(3, 1.0), chain_prior(4, 1.0)])
