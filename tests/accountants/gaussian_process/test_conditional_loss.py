"""Conditional inferential loss against a dense transcription, and against densities integrated numerically."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.accountants.gaussian_process.kernels import secret_family, secret_indices
from penstock.accountants.gaussian_process.loss import conditional_inferential_loss, worst_pair
from penstock.mechanisms.core.plugin import ParameterError

KERNELS = ("rbf", "matern12", "matern32", "periodic")


def dense_covariance(times, kernel, length_scale, variance, nugget):
    lag = np.abs(np.subtract.outer(times, times))
    correlation = {
        "rbf": np.exp(-(lag**2) / (2 * length_scale**2)),
        "matern12": np.exp(-lag / length_scale),
        "matern32": (1 + math.sqrt(3) * lag / length_scale) * np.exp(-math.sqrt(3) * lag / length_scale),
        "periodic": np.exp(-2 * np.sin(np.pi * lag / 5.0) ** 2 / length_scale**2),
    }[kernel]
    return variance * correlation + nugget * np.eye(len(times))


def dense_matrix(prior, noise, secret):
    """METHODS: Σ_g,SS⁻¹ + (A−B)ᵀ(Σ_u|S + Σ_g,uu − B·Σ_g,Su)⁻¹(A−B), with plain inverses."""
    rest = np.setdiff1d(np.arange(len(prior)), secret)
    ss, us, uu = np.ix_(secret, secret), np.ix_(rest, secret), np.ix_(rest, rest)
    a, b = prior[us] @ np.linalg.inv(prior[ss]), noise[us] @ np.linalg.inv(noise[ss])
    middle = prior[uu] - a @ prior[us].T + noise[uu] - b @ noise[us].T
    return np.linalg.inv(noise[ss]) + (a - b).T @ np.linalg.inv(middle) @ (a - b)


def random_case(rng):
    n_points = int(rng.integers(2, 9))
    times = np.cumsum(rng.uniform(0.4, 2.0, n_points))
    secret = np.sort(rng.choice(n_points, int(rng.integers(1, n_points + 1)), replace=False))
    model = {
        "length_scale": rng.uniform(0.3, 2.0),
        "kernel": str(rng.choice(KERNELS)),
        "variance": rng.uniform(0.5, 3.0),
        "nugget": 0.02,
    }
    return times, secret, model, rng.uniform(0.5, 3.0), rng.uniform(1.0, 8.0)


def with_period(model):
    return {**model, "period": 5.0 if model["kernel"] == "periodic" else None}


@pytest.mark.parametrize("noise_kind", ["white", "per_point", "general"])
def test_equals_the_dense_transcription(noise_kind):
    rng = np.random.default_rng(11)
    for _ in range(60):
        times, secret, model, radius, order = random_case(rng)
        n_points = len(times)
        root = rng.normal(size=(n_points, n_points))
        noise = {
            "white": 0.7**2 * np.eye(n_points),
            "per_point": np.diag(rng.uniform(0.2, 2.0, n_points) ** 2),
            "general": root @ root.T + 0.1 * np.eye(n_points),
        }[noise_kind]
        general = noise_kind == "general"
        loss, independent = conditional_inferential_loss(
            times,
            secret,
            None if general else (0.7 if noise_kind == "white" else np.sqrt(noise.diagonal())),
            radius=radius,
            order=order,
            noise_covariance=noise if general else None,
            **with_period(model),
        )
        prior = dense_covariance(times, **model)
        weight = order / 2 * len(secret) * radius**2
        expected = weight * np.linalg.eigvalsh(dense_matrix(prior, noise, secret))[-1]
        unrelated = weight * np.linalg.eigvalsh(dense_matrix(np.diag(prior.diagonal()), noise, secret))[-1]
        assert loss == pytest.approx(expected, rel=1e-8)
        assert independent == pytest.approx(unrelated, rel=1e-8)


def test_white_noise_separates_into_alpha_and_the_independent_loss():
    times, secret, sigma = np.arange(10.0), np.arange(0, 10, 2), 0.8
    prior, rest = dense_covariance(times, "rbf", 1.5, 1.0, 0.0), np.arange(1, 10, 2)
    a = prior[np.ix_(rest, secret)] @ np.linalg.inv(prior[np.ix_(secret, secret)])
    conditional = prior[np.ix_(rest, rest)] - a @ prior[np.ix_(secret, rest)]
    alpha = np.linalg.eigvalsh(a.T @ np.linalg.inv(conditional + sigma**2 * np.eye(5)) @ a)[-1]
    loss, independent = conditional_inferential_loss(times, secret, sigma, 1.5, radius=2.0, order=3.0)
    assert loss == pytest.approx(1.5 * 5 * 4 * (alpha + 1 / sigma**2), rel=1e-10)
    assert independent == pytest.approx(1.5 * 5 * 4 / sigma**2, rel=1e-12)


def test_eigenvalues_of_the_two_terms_do_not_add_with_noise_per_point():
    times, secret, sigma = [0.0, 1.0, 2.0], [0, 2], np.array([0.5, 1.0, 3.0])
    loss, independent = conditional_inferential_loss(times, secret, sigma, 1.0, 1.0, 2.0)
    prior = dense_covariance(np.array(times), "rbf", 1.0, 1.0, 0.0)
    rest_term = dense_matrix(prior, np.diag(sigma**2), np.array(secret)) - np.diag(1 / sigma[[0, 2]] ** 2)
    assert loss < 2 * (np.linalg.eigvalsh(rest_term)[-1] + 1 / 0.5**2) - 1e-3
    assert loss > independent


def marginal_density(grid, secret_value, rho, sigma):
    """Density of (z_0, z_1) given x_0, by integrating x_1 out on a grid: no Gaussian algebra."""
    inner = np.linspace(-9.0, 9.0, 721)
    step = inner[1] - inner[0]

    def normal(x, mean, scale):
        return np.exp(-0.5 * ((x - mean) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))

    prior = normal(inner, rho * secret_value, math.sqrt(1 - rho**2))
    second = (normal(grid[:, None], inner[None, :], sigma) * prior).sum(axis=1) * step
    return np.multiply.outer(normal(grid, secret_value, sigma), second)


def test_equals_the_renyi_divergence_of_integrated_densities_on_two_axes():
    sigma, order, rhos = 0.9, 2.5, (math.exp(-0.5), math.exp(-0.5 / 0.7**2))
    difference = np.array([0.6, -0.5])
    grid = np.linspace(-7.0, 7.0, 57)
    step = grid[1] - grid[0]
    densities = [
        [marginal_density(grid, sign * delta / 2, rho, sigma).ravel() for rho, delta in zip(rhos, difference)]
        for sign in (1.0, -1.0)
    ]
    p, q = (np.multiply.outer(*axes) for axes in densities)
    divergence = math.log((p**order * q ** (1 - order)).sum() * step**4) / (order - 1)
    expected = 0.0
    for length_scale, delta in zip((1.0, 0.7), difference):
        loss, _ = conditional_inferential_loss([0.0, 1.0], [0], sigma, length_scale, radius=abs(delta), order=order)
        expected += loss
    assert divergence == pytest.approx(expected, rel=1e-6)


def test_worst_pair_attains_the_loss_and_no_other_does_better():
    rng = np.random.default_rng(5)
    for _ in range(30):
        times, secret, model, radius, order = random_case(rng)
        sigma = rng.uniform(0.3, 2.0, len(times))
        loss, _ = conditional_inferential_loss(times, secret, sigma, radius=radius, order=order, **with_period(model))
        direction = worst_pair(times, secret, sigma, **with_period(model))
        matrix = dense_matrix(dense_covariance(times, **model), np.diag(sigma**2), secret)
        scale = order / 2 * len(secret) * radius**2
        assert np.linalg.norm(direction) == pytest.approx(1.0)
        assert scale * direction @ matrix @ direction == pytest.approx(loss, rel=1e-8)
        others = rng.normal(size=(200, len(secret)))
        others /= np.linalg.norm(others, axis=1)[:, None]
        assert (scale * np.einsum("ki,ij,kj->k", others, matrix, others) <= loss * (1 + 1e-9)).all()


def test_expected_change_of_log_odds_is_the_loss_over_its_order():
    rng = np.random.default_rng(2)
    sigma, order = 0.9, 3.0
    loss, _ = conditional_inferential_loss([0.0, 1.0], [0], sigma, 1.0, radius=0.8, order=order)
    rho, n_samples = math.exp(-0.5), 400_000
    mean, covariance = np.array([1.0, rho]), np.diag([sigma**2, 1 - rho**2 + sigma**2])
    z = 0.4 * mean + rng.normal(size=(n_samples, 2)) * np.sqrt(covariance.diagonal())
    distances = [(((z - centre * mean) ** 2) / covariance.diagonal()).sum(axis=1) for centre in (0.4, -0.4)]
    change = 0.5 * (distances[1] - distances[0])
    assert abs(change.mean() - loss / order) < 4 * change.std() / math.sqrt(n_samples)


def test_the_order_of_points_does_not_matter():
    times, secret = np.array([0.0, 0.7, 1.9, 3.0]), np.array([True, False, True, False])
    shuffled = np.array([2, 0, 3, 1])
    assert conditional_inferential_loss(times, secret, 1.0, 1.0, 1.0, 2.0) == pytest.approx(
        conditional_inferential_loss(times[shuffled], secret[shuffled], 1.0, 1.0, 1.0, 2.0)
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"times": [0.0, math.nan]}, "times"),
        ({"times": [[0.0, 1.0]]}, "times"),
        ({"secret": []}, "secret"),
        ({"secret": [2]}, "secret"),
        ({"secret": [0, -2]}, "secret"),
        ({"secret": [True, False, True]}, "secret"),
        ({"secret": [0.5]}, "secret"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": [1.0, 1.0, 1.0]}, "sigma"),
        ({"sigma": None}, "sigma"),
        ({"sigma": math.inf}, "sigma"),
        ({"noise_covariance": np.eye(2)}, "sigma"),
        ({"sigma": None, "noise_covariance": np.eye(3)}, "noise_covariance"),
        ({"sigma": None, "noise_covariance": [[1.0, 2.0], [2.0, 1.0]]}, "noise_covariance"),
        ({"sigma": None, "noise_covariance": [[1.0, 0.5], [0.0, 1.0]]}, "noise_covariance"),
        ({"length_scale": 0.0}, "length_scale"),
        ({"kernel": "cosine"}, "kernel"),
        ({"kernel": "periodic"}, "period"),
        ({"period": 3.0}, "period"),
        ({"variance": -1.0}, "variance"),
        ({"length_scale": [1.0, 2.0]}, "length_scale"),
        ({"radius": 0.0}, "radius"),
        ({"order": 0.5}, "order"),
        ({"nugget": -0.1}, "nugget"),
    ],
)
def test_bad_input_names_the_argument(change, field):
    good = {"times": [0.0, 1.0], "secret": [0], "sigma": 1.0, "length_scale": 1.0, "radius": 1.0, "order": 2.0}
    with pytest.raises(ParameterError, match=f"^{field}: "):
        conditional_inferential_loss(**{**good, **change})


def test_a_prior_that_is_singular_to_rounding_is_refused_and_a_nugget_helps():
    times, secret = np.linspace(0.0, 1.0, 12), np.arange(6)
    with pytest.raises(ParameterError, match=r"^nugget: "):
        conditional_inferential_loss(times, secret, 1.0, 50.0, 1.0, 2.0)
    assert conditional_inferential_loss(times, secret, 1.0, 50.0, 1.0, 2.0, nugget=1e-3)[0] > 0


def test_secret_indices_and_families():
    assert secret_indices(range(3), 4).tolist() == [0, 1, 2]
    assert [list(s) for s in secret_family(np.eye(2, dtype=bool), 2)] == [[0], [1]]
    assert [list(s) for s in secret_family(0, 2)] == [[0]]
    with pytest.raises(ParameterError):
        secret_family([], 3)
