"""Upper bounds on reconstruction: the exact best attack, each other, and published values."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from scipy.special import entr

from penstock.accountants.inference.first_moment import noisy_first_moment, upper_mean
from penstock.accountants.inference.information import information_bound, largest_success, log_loose
from penstock.accountants.inference.observation import HiddenMarkovModel
from penstock.accountants.inference.segment import log_segment
from penstock.accountants.inference.success_bounds import advantage_upper_bound, success_upper_bound
from penstock.accountants.inference.success_prior import max_ball_probability
from penstock.accountants.markov import MarkovPrior, chain_prior, trajectory_entropy
from penstock.mechanisms.core.plugin import ParameterError
from tests.tools.reconstruction_oracle import Enumeration, random_prior, random_sensors

BOUNDS = ("loose", "tight", "leakage", "first_moment", "segment", "best")


def all_bounds(*arguments: object, **options: object) -> dict[str, float]:
    return {bound: success_upper_bound(*arguments, bound=bound, **options) for bound in BOUNDS}  # type: ignore[arg-type]


def test_no_bound_is_below_the_best_attack_on_raw_counts() -> None:
    rng = np.random.default_rng(41)
    ratios = []
    for _ in range(150):
        n_locations, n_steps = int(rng.integers(2, 5)), int(rng.integers(2, 5))
        prior, tolerance = random_prior(rng, n_locations), int(rng.integers(0, n_steps))
        sensors = random_sensors(rng, n_locations, n_steps, int(rng.integers(1, n_locations + 1)))
        truth = Enumeration(prior, n_steps)
        exact = truth.best_success(truth.raw_channel(sensors), tolerance)
        bounds = all_bounds(prior, sensors, tolerance)
        assert all(value >= exact for value in bounds.values()), (bounds, exact)
        assert all(bounds["best"] <= value * (1 + 1e-9) for value in bounds.values())
        assert success_upper_bound(prior, sensors, tolerance, bound="tight", ball="paper") >= bounds["tight"] - 1e-9
        ratios.append(bounds["best"] / exact)
    # the check has teeth: most bounds are so close that 10 % less would be below the best attack
    assert np.median(ratios) < 1.1


def test_no_bound_is_below_the_best_attack_on_noisy_counts() -> None:
    rng = np.random.default_rng(42)
    for _ in range(50):
        n_locations, n_steps = int(rng.integers(2, 5)), int(rng.integers(2, 4))
        prior, tolerance = random_prior(rng, n_locations), int(rng.integers(0, n_steps))
        sensors = random_sensors(rng, n_locations, n_steps, 2)
        scale = float(rng.choice([0.2, 1.0, 4.0]))
        truth = Enumeration(prior, n_steps)
        exact = truth.best_success(truth.discrete_laplace_channel(sensors, scale), tolerance)
        spent = [1 / scale if window else 0.0 for window in sensors]
        for noise, value in (("discrete_laplace", scale), ("pure_dp", spent), (None, None)):
            assert all(bound >= exact for bound in all_bounds(prior, sensors, tolerance, noise, value).values())


def test_five_locations_over_five_windows() -> None:
    prior = random_prior(np.random.default_rng(43), 5, stationary=False)
    sensors = [{1}, {0, 4}, set(), {2}, {1, 3}]
    truth = Enumeration(prior, 5)
    for tolerance in (0, 2):
        exact = truth.best_success(truth.raw_channel(sensors), tolerance)
        bounds = all_bounds(prior, sensors, tolerance)
        assert exact <= bounds["best"] <= 1.5 * exact


# one random sensor a window on the 1-D chain, T = 10, tau = .1: a run with other seeds, so orders of magnitude
TABLE = [
    (10, 5, {"loose": 1, "tight": 1, "first_moment": 0.68, "segment": 0.556}),
    (20, 5, {"loose": 0.98, "tight": 1, "first_moment": 0.287, "segment": 0.112}),
    (50, 5, {"loose": 0.64, "tight": 0.276, "first_moment": 0.096, "segment": 0.0042}),
    (100, 0, {"loose": 0.18, "tight": 0.025, "segment": 1.5e-11}),
    (100, 5, {"loose": 0.49, "tight": 0.096, "segment": 1.8e-4}),
    (100, 8, {"loose": 1, "tight": 0.346, "first_moment": 0.112, "segment": 0.040}),
]


@pytest.mark.parametrize(("n_locations", "tolerance", "expected"), TABLE)
def test_orders_of_magnitude_on_the_published_chain(
    n_locations: int, tolerance: int, expected: dict[str, float]
) -> None:
    sensors = [{int(cell)} for cell in np.random.default_rng(1).integers(0, n_locations, 10)]
    prior = chain_prior(n_locations, 0.1)
    for bound, value in expected.items():
        actual = success_upper_bound(prior, sensors, tolerance, bound=bound)  # type: ignore[arg-type]
        # our first moment also takes the posterior's genie ball, so it may be far smaller
        assert actual <= 4 * value
        if bound != "first_moment":
            assert actual >= value / 4


def test_a_trajectory_that_is_seen_is_reconstructed() -> None:
    prior = chain_prior(6, 0.2)
    for bound in BOUNDS:
        assert success_upper_bound(prior, [set(range(5))] * 4, 0, bound=bound) == 1.0


def test_without_observations_the_bounds_are_the_ball() -> None:
    prior = chain_prior(6, 0.2)
    ball = max_ball_probability(prior, 5, 2)
    for bound in ("tight", "leakage"):
        assert success_upper_bound(prior, [set()] * 5, 2, bound=bound) == pytest.approx(ball, rel=1e-9)
    genie = max_ball_probability(prior, 5, 2, "genie")
    assert success_upper_bound(prior, [set()] * 5, 2, bound="segment") <= genie * (1 + 1e-9)


def test_more_noise_never_helps_and_raw_counts_are_the_ceiling() -> None:
    prior, sensors = chain_prior(30, 0.1), [{3, 12}, {20}, {7}, {7, 8, 9}]
    for bound in ("tight", "leakage", "best"):
        raw = success_upper_bound(prior, sensors, 1, bound=bound, n_samples=0)
        for noise in ("gaussian", "laplace", "discrete_laplace", "discrete_gaussian", "pure_dp", "zcdp"):
            scales = (0.05, 0.5, 2.0, 20.0) if "p" not in noise[-1:] else (20.0, 2.0, 0.5, 0.05)
            noisy = [success_upper_bound(prior, sensors, 1, noise, scale, bound=bound, n_samples=0) for scale in scales]
            assert all(value <= raw * (1 + 1e-9) for value in noisy)
            assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(noisy))


def test_a_sampled_first_moment_is_above_the_exact_one() -> None:
    prior, sensors = chain_prior(10, 0.1), [{3}, {4}, {2}, {8}]
    exact = success_upper_bound(prior, sensors, 1, bound="first_moment")
    # noise this small hides nothing, but without the raw counts its first moment has to be sampled
    plan = HiddenMarkovModel.of(prior, sensors, "gaussian", 0.01)
    for seed in range(5):
        assert exact <= noisy_first_moment(plan, 1, 1000, seed, 0.9999) <= exact + 0.1
    assert exact <= noisy_first_moment(plan, 1, 8000, 0, 0.9999) <= exact + 0.02
    # noise never tells more than the raw counts, so their figure holds for it too
    for scale in (0.01, 0.5, 5.0):
        noisy = success_upper_bound(prior, sensors, 1, "gaussian", scale, bound="first_moment", n_samples=50)
        assert noisy <= exact


def test_raw_histories_too_many_to_enumerate_are_sampled() -> None:
    prior = chain_prior(8, 0.3)
    sensors = [{0, 3, 5}] * 9
    first = success_upper_bound(prior, sensors, 3, bound="first_moment", seed=1)
    second = success_upper_bound(prior, sensors, 3, bound="first_moment", seed=2)
    assert first != second
    assert abs(first - second) < 0.05


def test_the_upper_mean_covers_and_is_not_vacuous() -> None:
    rng = np.random.default_rng(44)
    misses = sum(upper_mean(rng.beta(0.1, 0.9, 200), 0.9) < 0.1 for _ in range(1000))
    # at most 10 % of the limits may miss; the plain mean would in about half of the runs
    assert misses <= 100
    assert sum(rng.beta(0.1, 0.9, 200).mean() < 0.1 for _ in range(1000)) > 400
    assert upper_mean(np.zeros(1000), 0.9999) < 0.011


def test_fano_in_its_kullback_leibler_form() -> None:
    for baseline, information in ((0.3, 0.2), (1e-9, 0.5), (1e-12, 1e-13), (0.999, 1e-6)):
        success = math.exp(largest_success(math.log(baseline), information))
        spent = success * math.log(success / baseline)
        spent += (1 - success) * math.log1p((baseline - success) / (1 - baseline))
        assert spent == pytest.approx(information, rel=1e-3)
    assert largest_success(-5000.0, 0.1) == pytest.approx(math.log(0.1 / 5000), abs=0.01)
    assert largest_success(math.log(0.2), 0.0) == math.log(0.2)
    assert largest_success(math.log(0.2), 2.0) == 0.0


def test_the_loose_bound_is_the_papers_inequality() -> None:
    prior, sensors, n_steps, tolerance = chain_prior(50, 0.1), [{5}, {20}, {40}, {1}, {9}, {30}], 6, 2
    success = success_upper_bound(prior, sensors, tolerance, bound="loose")
    near = sum(math.comb(n_steps, misses) * 49**misses for misses in range(tolerance + 1))
    error = 1 - success
    entropy_of_error = -error * math.log(error) - success * math.log(success)
    right = entropy_of_error + error * math.log((50**n_steps - near) / near) + math.log(near)
    left = trajectory_entropy(prior, n_steps) - information_bound(prior, sensors, order="exact")
    assert left == pytest.approx(right, rel=1e-9)


def test_long_horizons_and_many_locations() -> None:
    assert -1000 < log_loose(10_000, 1000, 500, 9000.0, 10.0) < -2
    prior = chain_prior(20, 0.2)
    sensors = [{int(cell)} for cell in np.random.default_rng(2).integers(0, 20, 120)]
    for bound in ("loose", "tight", "leakage", "segment"):
        assert 0 < success_upper_bound(prior, sensors, 12, bound=bound) <= 1  # type: ignore[arg-type]
    place = np.arange(10_000)
    ring = sparse.coo_array(
        (np.repeat([0.5, 0.5], 10_000), (np.tile(place, 2), np.concatenate([place, (place + 1) % 10_000]))),
        shape=(10_000, 10_000),
    )
    wide = MarkovPrior(np.full(10_000, 1e-4), ring)
    best = success_upper_bound(wide, [{t} for t in range(20)], 3, n_samples=0)
    assert 0 < best < 0.01


def test_a_segment_bound_that_forgets_the_sightings_is_caught() -> None:
    """Mutant: pretending that nothing is ever seen gives less than the best attack."""
    prior, sensors = chain_prior(4, 0.1), [{0}, {3}, {1}]
    truth = Enumeration(prior, 3)
    exact = truth.best_success(truth.raw_channel(sensors), 0)
    assert math.exp(log_segment(HiddenMarkovModel.of(prior, sensors), 0)) >= exact * (1 - 1e-12)
    assert math.exp(log_segment(HiddenMarkovModel.of(prior, [set()] * 3), 0)) < exact


def test_wrong_arguments_are_named() -> None:
    prior = chain_prior(3, 1.0)
    wrong = {
        "tolerance": -1,
        "bound": "magic",
        "ball": "magic",
        "confidence": 1.0,
        "n_samples": -1,
        "sensors": [],
    }
    for field, value in wrong.items():
        with pytest.raises(ParameterError) as caught:
            success_upper_bound(**{"prior": prior, "sensors": [{0}], "tolerance": 0, field: value})
        assert caught.value.field == field


def test_no_attack_has_a_larger_normalised_advantage() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        n_locations, n_steps = int(rng.integers(2, 4)), int(rng.integers(1, 5))
        prior, sensors = random_prior(rng, n_locations), random_sensors(rng, n_locations, n_steps, n_locations)
        truth = Enumeration(prior, n_steps)
        for tolerance in range(n_steps):
            blind, best = truth.ball(tolerance), truth.best_success(truth.raw_channel(sensors), tolerance)
            advantage = (best - blind) / (1 - blind) if blind < 1 - 1e-12 else 0.0
            for bound in ("loose", "tight", "leakage", "segment", "best"):
                actual = advantage_upper_bound(prior, sensors, tolerance, bound=bound, n_samples=0)  # type: ignore[arg-type]
                assert actual >= advantage - 1e-9


def test_the_loose_advantage_is_equation_1() -> None:
    prior, sensors = chain_prior(6, 0.3), [{0}, {3}, {5}]
    entropy, information = trajectory_entropy(prior, 3), information_bound(prior, sensors, order="exact")
    errors = np.linspace(1e-9, 1 - 1e-9, 2_000_001)
    fano = entr(errors) + entr(1 - errors) + errors * np.log(6**3 - 1)
    least = errors[np.argmax(entropy - information <= fano)]
    likeliest = Enumeration(prior, 3).weight.max()
    expected = (1 - least - likeliest) / (1 - likeliest)
    assert advantage_upper_bound(prior, sensors, bound="loose") == pytest.approx(expected, abs=1e-6)
