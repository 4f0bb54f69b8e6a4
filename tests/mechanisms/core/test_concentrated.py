"""Conversion between ρ and (ε, δ): figures of the library, exact curves, round trip."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from scipy.stats import norm

from penstock.accountants.core.renyi import ORDERS, from_renyi
from penstock.mechanisms.core import concentrated
from penstock.mechanisms.core.concentrated import epsilon_of, rho_of


@pytest.mark.parametrize(("epsilon", "rho"), [(1, 0.024), (2, 0.088), (5, 0.46), (10, 1.54), (20, 4.79)])
def test_known_figures(epsilon, rho):
    assert rho_of(float(epsilon), 1e-6) == pytest.approx(rho, rel=0.02)


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-2])
@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.3, 2.0, 30.0])
def test_it_covers_the_exact_curve_of_gaussian_noise_and_is_tighter_than_the_simple_formula(rho, delta):
    mu, epsilon = np.sqrt(2 * rho), epsilon_of(rho, delta)
    # Balle and Wang 2018, theorem 8.
    exact = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
    assert exact <= delta
    assert epsilon < rho + 2 * np.sqrt(rho * np.log(1 / delta))
    assert epsilon <= from_renyi(ORDERS * rho, delta) * (1 + 1e-12)


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-2])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0, 50.0])
def test_the_budget_kept_is_never_more_than_the_one_given(epsilon, delta):
    rho = rho_of(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert epsilon_of(rho * (1 + 1e-6), delta) > epsilon * (1 - 1e-9)


def test_nothing_and_everything():
    assert epsilon_of(0.0, 1e-6) == 0.0
    assert epsilon_of(np.inf, 1e-6) == rho_of(np.inf, 1e-6) == np.inf


def test_the_conversion_of_renyi_curves_is_that_of_the_library_bit_for_bit():
    assert list(concentrated.ORDERS) == list(DEFAULT_RDP_ORDERS)
    rng = np.random.default_rng(1)
    for _ in range(300):
        orders = np.unique([*DEFAULT_RDP_ORDERS, *(1 + 10 ** rng.uniform(-3, 3, 5))])
        curve = orders * 10 ** rng.uniform(-14, 3) * rng.uniform(0.5, 2, len(orders))
        delta = 10 ** rng.uniform(-12, -1)
        assert concentrated.epsilon_of_renyi(orders, curve, delta) == compute_epsilon(orders, curve, delta)[0]
