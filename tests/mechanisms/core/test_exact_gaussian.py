"""The exact ε of Gaussian noise: privacy curves by brute force, for continuous and for discrete noise."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from penstock.accountants.core.charges import gaussian_amount
from penstock.mechanisms import get
from penstock.mechanisms.core.concentrated import (
    delta_of_gaussian,
    epsilon_of,
    epsilon_of_gaussian,
    gaussian_of,
    rho_of,
)
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.events import Additive, Block, Covered, Linked, PureDP, Repeated, Sampled
from penstock.mechanisms.core.noise_family import NOISE_FAMILIES
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.run import choose_noise
from penstock.mechanisms.core.sensitivity import Sensitivity

EPSILONS, DELTAS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0), (1e-3, 1e-6, 1e-9)
DISCRETE = replace(NOISE_FAMILIES["discrete_gaussian"], measure="gaussian")


def sum_of(n: int, sigma: float) -> NDArray[np.float64]:
    """Probabilities of sums of n discrete Gaussians, from −m to m, m so far out that next to nothing is beyond."""
    each = np.arange(-math.ceil(12 * sigma) - 2, math.ceil(12 * sigma) + 3)
    one = np.exp(-(each**2) / (2 * sigma**2))
    one /= one.sum()
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, one)
    return total


def shifted(p: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Probabilities of the sum where n counts are larger by 1."""
    return np.concatenate([np.zeros(n), p[:-n]]) if n else p


def curve(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    """δ at ε of two distributions: what P has above e^ε times Q."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


@pytest.mark.parametrize(("mu", "epsilon"), list(itertools.product((0.05, 0.3, 1.0, 3.0), (0.0, 0.1, 1.0, 4.0))))
def test_delta_is_the_integral_of_what_one_density_has_above_the_other(mu, epsilon):
    threshold = epsilon / mu + mu / 2  # of N(μ, 1) against N(0, 1)

    def above(z: float) -> float:
        return stats.norm.pdf(z - mu) - math.exp(epsilon) * stats.norm.pdf(z)

    by_hand = integrate.quad(above, threshold, threshold + 15, epsabs=0, epsrel=1e-10, limit=500)[0]
    assert delta_of_gaussian(mu**2 / 2, epsilon) == pytest.approx(by_hand, rel=1e-6, abs=1e-300)


@pytest.mark.parametrize(("epsilon", "delta"), list(itertools.product(EPSILONS, DELTAS)))
def test_the_amount_keeps_epsilon_at_delta_and_is_more_than_the_one_in_rho(epsilon, delta):
    amount = gaussian_of(epsilon, delta)
    assert delta_of_gaussian(amount, epsilon) <= delta
    assert delta_of_gaussian(amount * 1.00001, epsilon) > delta
    assert 1.05 * rho_of(epsilon, delta) < amount < 1.5 * rho_of(epsilon, delta)
    assert epsilon_of_gaussian(amount, delta) <= epsilon
    assert epsilon_of_gaussian(amount, delta) < epsilon_of(amount, delta)


def test_the_standard_deviation_is_the_share_of_that_by_rho_that_balle_and_wang_give():
    shares = [math.sqrt(rho_of(e, 1e-6) / gaussian_of(e, 1e-6)) for e in (0.5, 1.0, 2.0, 5.0, 10.0)]
    assert shares == pytest.approx([0.929, 0.932, 0.936, 0.943, 0.949], abs=6e-4)


@pytest.mark.parametrize(
    ("n", "epsilon", "delta"),
    list(itertools.product((1, 2, 3, 12, 40), (0.3, 1.0, 3.0, 10.0, 30.0), (1e-2, 1e-4, 1e-6))),
)
def test_the_curve_of_discrete_noise_on_n_counts_keeps_delta(n, epsilon, delta):
    sigma = float(DISCRETE.scale(gaussian_of(epsilon, delta), Sensitivity(n, n)))
    p = sum_of(n, sigma)
    # Whoever is in n counts, and in fewer of them, in whatever direction.
    for k in {1, (n + 1) // 2, n}:
        for one, other in ((p, shifted(p, k)), (shifted(p, k), p)):
            assert curve(one, other, epsilon) <= delta
    assert curve(p, shifted(p, n), 0.98 * epsilon) > 0.2 * delta or sigma < 12  # little is given away


@pytest.mark.parametrize(("n", "share", "epsilon"), list(itertools.product((3, 5), (0.15, 0.5, 0.8), (1.0, 2.0, 8.0))))
def test_two_runs_that_share_an_amount_keep_delta_together(n, share, epsilon):
    # The second run has another bound and another scale; together they are charged the amount and no more.
    delta, amount = 1e-4, gaussian_of(epsilon, 1e-4)
    pairs = []
    for moved, part in ((n, share), (2 * n + 1, 1 - share)):
        sigma = float(DISCRETE.scale(part * amount, Sensitivity(moved, moved)))
        charged = gaussian_amount([Additive("discrete_gaussian", math.sqrt(moved), sigma)])
        assert charged == pytest.approx(part * amount)
        p = sum_of(moved, sigma)
        pairs.append((p, shifted(p, moved)))
    together = [np.multiply.outer(one, other) for one, other in zip(*pairs)]
    assert curve(*together, epsilon) <= delta
    assert curve(*reversed(together), epsilon) <= delta


def test_the_same_scale_at_the_price_of_continuous_noise_would_understate():
    # Why discrete noise costs more: one count with little noise.
    epsilon, delta = 10.0, 1e-2
    sigma = math.sqrt(1 / (2 * gaussian_of(epsilon, delta)))
    p = sum_of(1, sigma)
    assert max(curve(p, shifted(p, 1), e) - delta_of_gaussian(1 / (2 * sigma**2), e) for e in np.arange(0, 10, 0.1)) > 0


def test_no_amount_is_claimed_of_anything_but_gaussian_noise():
    gaussian, discrete = Additive("gaussian", 3.0, 6.0), Additive("discrete_gaussian", 3.0, 6.0)
    assert gaussian_amount([gaussian]) == 0.125
    assert gaussian_amount([discrete]) == 9 / 34 / 2
    assert gaussian_amount([Block(discrete, 1, 4), Covered(1), Repeated(2)]) == 9 / 34 / 2
    assert gaussian_amount([Sampled(gaussian, 0.5)]) == 0.125
    for other in (
        Additive("discrete_laplace", 1.0, 1e6),
        PureDP(1e-9),
        Linked(gaussian),
        Additive("discrete_gaussian", 1.0, 1.4),
        Additive("gaussian", 1e4, 1e9),
    ):
        assert gaussian_amount([gaussian, other]) == math.inf
    assert gaussian_amount([Additive("discrete_gaussian", 1.0, math.inf)]) == 0.0


FIXED = {"period_uniform": {}, "landmark_uniform": {}, "landmark_skip": {}, "w_event_uniform": {"w": 6}}
FIXED["w_event_sample"] = {"w": 6}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_amounts_are_divided_exactly_and_promise_epsilon_at_delta(name):
    facts = Facts(n_cells=500, max_cells=60, n_windows=24, landmarks=(3, 9))
    given = get(name)(epsilon=1.0, delta=1e-6, noise="discrete_gaussian", **FIXED[name])
    exact = choose_noise(given, facts, facts.windows()).schedule
    assert exact.accounting == "gaussian"
    share = exact.deviation(facts, facts.windows()) / given.deviation(facts, facts.windows())
    assert 0.93 < share < 0.945
    words = exact.guarantee.words
    assert "Gaussian differential privacy" in words.statement
    assert words.statement.endswith("hence ε = 1 at δ = 1e-06")
    assert "Balle, Wang 2018" in words.theorem


def test_small_noise_and_amounts_that_follow_releases_stay_with_rho():
    one = Facts(n_cells=5, max_cells=1, n_windows=4)
    little = get("w_event_uniform")(epsilon=20.0, delta=1e-6, noise="discrete_gaussian", w=2)
    assert choose_noise(little, one, one.windows()).schedule.accounting == "rho"
    for name in ("w_event_bd", "w_event_ba", "rescue_dp"):
        adaptive = get(name)(epsilon=1.0, delta=1e-6, noise="discrete_gaussian", w=6)
        assert adaptive.candidates == (adaptive,)
        with pytest.raises(ParameterError, match="accounting"):
            get(name)(epsilon=1.0, delta=1e-6, noise="discrete_gaussian", w=6, accounting="gaussian")


@pytest.mark.parametrize(
    "given",
    [
        {"epsilon": 1.0, "accounting": "gaussian"},
        {"rho": 1.0, "noise": "discrete_gaussian", "accounting": "gaussian"},
        {"epsilon": 1.0, "delta": 1e-6, "noise": "planar_gaussian", "accounting": "gaussian"},
        {"epsilon": 1.0, "delta": 1e-6, "noise": "discrete_gaussian", "accounting": "renyi"},
    ],
)
def test_accounting_that_makes_no_sense_is_refused(given):
    with pytest.raises(ParameterError) as caught:
        get("landmark_uniform")(**given)
    assert caught.value.field == "accounting"
