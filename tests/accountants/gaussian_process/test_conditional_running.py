"""The running loss never understates the loss given the whole trace, and state stays bounded."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.accountants.gaussian_process.kernels import GaussianProcess, named_family
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss
from penstock.accountants.gaussian_process.running import add_release, running_losses, start_trace
from penstock.mechanisms.core.plugin import ParameterError


def release_all(times, sigmas, prior, block):
    state = start_trace()
    for time, sigma in zip(times, sigmas):
        state = add_release(state, time, sigma, prior, block)
    return state


def test_equals_the_loss_of_the_trace_while_nothing_has_left():
    times, sigmas = np.array([0.0, 0.5, 2.0, 2.2]), np.array([1.0, 0.5, 2.0, 1.0])
    family = named_family("every_other", 4)
    for kernel in ("rbf", "matern32"):
        prior = GaussianProcess(length_scale=2.0, kernel=kernel, variance=2.0)
        figures = running_losses(release_all(times, sigmas, prior, 4), prior, family, radius=1.5, order=3.0)
        for secret, loss, independent in zip(family, figures.loss, figures.independent_loss):
            expected = conditional_inferential_loss(times, secret, sigmas, 2.0, 1.5, 3.0, kernel, variance=2.0)
            assert (loss, independent) == pytest.approx(expected, rel=1e-8)


def cases(seed, n_cases):
    """Random traces of 30 points and blocks of their last 6 to 19, with four random secrets each."""
    rng = np.random.default_rng(seed)
    for _ in range(n_cases):
        model = {
            "kernel": str(rng.choice(["rbf", "matern12", "matern32"])),
            "length_scale": 10 ** rng.uniform(-0.3, 0.5),
            "variance": 10 ** rng.uniform(-0.5, 0.5),
            "nugget": 1e-3,
        }
        times, sigmas = np.cumsum(rng.uniform(0.3, 1.5, 30)), rng.uniform(0.5, 2.0, 30)
        block = int(rng.integers(6, 20))
        family = [np.sort(rng.choice(block, int(rng.integers(1, 4)), replace=False)) for _ in range(4)]
        yield model, times, sigmas, block, family


def test_never_below_the_loss_given_the_whole_past():
    n_finite = 0
    for model, times, sigmas, block, family in cases(0, 60):
        prior = GaussianProcess(**model)
        figures = running_losses(release_all(times, sigmas, prior, block), prior, family, 1.0, 2.0)
        for secret, loss in zip(family, figures.loss):
            whole, _ = conditional_inferential_loss(times, secret + 30 - block, sigmas, radius=1.0, order=2.0, **model)
            assert loss >= whole * (1 - 1e-9)
            n_finite += np.isfinite(loss)
    assert n_finite > 120


def test_forgetting_what_left_the_block_would_understate():
    """Why the tail is there: the block alone gives less than the truth."""
    n_understated = 0
    for model, times, sigmas, block, family in cases(0, 60):
        prior = GaussianProcess(**model)
        state = release_all(times, sigmas, prior, block)
        forgetful = running_losses({**state, "past": np.zeros(1)}, prior, family, 1.0, 2.0)
        for secret, loss in zip(family, forgetful.loss):
            whole, _ = conditional_inferential_loss(times, secret + 30 - block, sigmas, radius=1.0, order=2.0, **model)
            n_understated += loss < whole * (1 - 1e-6)
    assert n_understated > 60


def test_intervals_never_above_those_of_the_whole_trace():
    for model, times, sigmas, block, family in cases(5, 20):
        prior = GaussianProcess(**model)
        figures = running_losses(release_all(times, sigmas, prior, block), prior, family, 1.0, 2.0)
        covariance = prior.covariance(times)
        posterior = covariance - covariance @ np.linalg.inv(covariance + np.diag(sigmas**2)) @ covariance
        whole = 2 * np.sqrt(posterior.diagonal())
        assert (figures.interval <= whole[-block:] * (1 + 1e-9)).all()


def test_a_long_block_is_sharp():
    prior = GaussianProcess(length_scale=1.0, kernel="matern12")
    times = np.arange(60.0)
    state = release_all(times, np.ones(60), prior, 24)
    loss = running_losses(state, prior, [np.array([20])], 1.0, 2.0).loss[0]
    whole, _ = conditional_inferential_loss(times, [56], 1.0, 1.0, 1.0, 2.0, kernel="matern12")
    assert whole * (1 - 1e-12) <= loss <= whole * (1 + 1e-6)


def test_a_block_too_short_is_reported_as_infinite():
    prior = GaussianProcess(length_scale=5.0, nugget=1e-3)
    state = release_all(np.arange(20.0), np.full(20, 0.5), prior, 3)
    assert np.isinf(running_losses(state, prior, named_family("singletons", 3), 1.0, 2.0).loss).all()


def test_state_is_bounded_flat_and_not_changed_in_place():
    prior = GaussianProcess(length_scale=2.0)
    state = start_trace()
    shapes = []
    for time in range(50):
        before = {name: value.copy() for name, value in state.items()}
        after = add_release(state, float(time), 1.0, prior, 7)
        assert all(np.array_equal(before[name], state[name]) for name in before)
        state = after
        shapes.append({name: value.shape for name, value in state.items()})
    assert shapes[10] == shapes[49]
    assert all(isinstance(value, np.ndarray) for value in state.values())


def test_the_past_is_the_exact_sum_for_an_exponential_kernel_and_a_bound_for_others():
    for kernel in ("matern12", "matern32", "rbf"):
        prior = GaussianProcess(length_scale=1.7, kernel=kernel)
        rng = np.random.default_rng(1)
        times, sigmas = np.cumsum(rng.uniform(0.1, 1.0, 12)), rng.uniform(0.5, 2.0, 12)
        state = release_all(times, sigmas, prior, 5)
        exact = (prior.envelope(times[7] - times[:7]) ** 2 / sigmas[:7] ** 2).sum()
        if kernel == "matern12":
            assert state["past"] == pytest.approx(exact)
        assert state["past"] >= exact * (1 - 1e-12)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"time": -1.0}, "time"),
        ({"time": np.nan}, "time"),
        ({"sigma": 0.0}, "sigma"),
    ],
)
def test_bad_releases_name_the_argument(arguments, field):
    prior = GaussianProcess(length_scale=1.0)
    state = add_release(start_trace(), 0.0, 1.0, prior, 2)
    with pytest.raises(ParameterError, match=f"^{field}: "):
        add_release(state, **{"time": 1.0, "sigma": 1.0, "prior": prior, "block": 2, **arguments})


def test_a_family_of_another_name_is_refused():
    with pytest.raises(ParameterError, match=r"^secrets: "):
        named_family("pairs", 3)
