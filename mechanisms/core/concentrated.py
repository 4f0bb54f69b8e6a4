"""Convert budgets to and from (ε, δ): zero-concentrated DP via Rényi DP, and Gaussian noise exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

#: Rényi orders at which curves are kept: those of the library dp-accounting.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)


def epsilon_of_renyi(orders: Iterable[float], curve: Iterable[float], delta: float) -> float:
    """Return ε at δ for a Rényi curve at orders above 1 (Canonne, Kamath, Steinke 2020, proposition 12).

    Bit for bit that of dp-accounting, which takes a second to load; any budget with a δ needs this.
    """
    epsilons = [math.inf]
    for order, loss in zip(orders, curve):
        if delta**2 + math.expm1(-loss) > 0:  # by the Kullback-Leibler divergence alone
            return 0.0
        if order > 1.01:
            epsilons.append(loss + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return float(max(0.0, min(epsilons)))


@lru_cache(maxsize=4096)
def epsilon_of(rho: float, delta: float) -> float:
    """Return an ε at δ that is valid for every ρ-zCDP release, by its Rényi loss at the best order."""
    if rho == 0 or not np.isfinite(rho):
        return float(rho)
    # The best order is near 1 + √(ln(1/δ)/ρ); further orders around it only make the figure smaller.
    best = 1 + np.sqrt(np.log(1 / delta) / rho)
    orders = np.concatenate([ORDERS, 1 + (best - 1) * np.geomspace(0.5, 2, 33)])
    return epsilon_of_renyi(orders.tolist(), (orders * rho).tolist(), delta)


@lru_cache(maxsize=4096)
def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest ρ, to 32 significant bits, that satisfies (ε, δ)-DP. This is the inverse of `epsilon_of`.

    Further bits would not be the same on every processor, and budgets are part of a state, by which noise is keyed.
    """
    if not np.isfinite(epsilon):
        return float(epsilon)
    largest = epsilon - math.log(delta)  # a larger ρ would only be of use at a δ that protects no one
    return _round_down_32_bits(_bisect(0.0, largest, lambda rho: epsilon_of(rho, delta) <= epsilon)[0])


def _bisect(low: float, high: float, is_below: Callable[[float], bool]) -> tuple[float, float]:
    """Halve an interval 60 times. Return both ends; the lower end is below the value sought."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


def _round_down_32_bits(value: float) -> float:
    """Round a value down to 32 significant bits."""
    mantissa, power = math.frexp(value)
    return math.ldexp(math.floor(math.ldexp(mantissa, 32)), power - 32)


# Gaussian noise alone, exactly. An amount is half of μ², where μ is that of Gaussian differential privacy (Dong, Roth,
# Su 2022): l2²/(2σ²) of one vector, which is its ρ. Amounts add, and who chooses them after earlier releases, within
# a bound set beforehand, gains nothing by it (Smith, Thakurta 2022): noise of amounts a₁, a₂, … is a Brownian motion
# with drift watched for the times 2·a₁, 2·a₂, … in turn, so that all releases together are a function of the motion
# until the bound, which is one Gaussian mechanism.

#: Variance that discrete Gaussian noise has more than the continuous noise that it is as private as.
SMOOTHING = 2.0
#: Coordinates in which neighbours differ, at most, and what covers them and rounding: in ε, and as a share of δ.
MAX_COORDINATES = 1e7
SPARE_EPSILON, SPARE_DELTA = 1e-9, 1e-6
# For an integer x let z be drawn around y, itself drawn from N(x, σ² − s²), with P(z) ∝ exp(−(z − y)²/(2s²)). Of the
# integers, P(z) is the density of N(x, σ²) at z times a mean of √(2π)·s/Σₖ exp(−(k − y)²/(2s²)), each of which lies
# within 1 ± η, η = 2·Σₖ exp(−2π²s²k²) (Poisson summation). So does that of the discrete Gaussian around x, and the two
# differ by a factor within exp(±3η), η < 1.5e-17 for s² = 2. Drawing z is post-processing of y; for n coordinates P and
# Q of the discrete noise hence keep P ≤ exp(ε + 6nη)·Q + exp(3nη)·δ where those of the continuous one keep (ε, δ).


def delta_of_gaussian(amount: float, epsilon: float) -> float:
    """Return δ at ε for Gaussian noise (Balle and Wang 2018, theorem 8)."""
    mu = math.sqrt(2 * amount)
    if not 0 < mu < math.inf:
        return 0.0 if mu == 0 else 1.0
    above, below = ((sign * mu / 2 - epsilon / mu) / math.sqrt(2) for sign in (1, -1))
    rest = math.erfc(-below) / 2
    # What is too small for an exact number is left out, which makes δ larger.
    return math.erfc(-above) / 2 - (math.exp(epsilon + math.log(rest)) if rest > 1e-300 else 0.0)


@lru_cache(maxsize=4096)
def epsilon_of_gaussian(amount: float, delta: float) -> float:
    """Return the smallest ε at δ for continuous or discrete Gaussian noise, given its amount μ²/2."""
    if amount == 0 or not math.isfinite(amount):
        return float(amount)
    largest = epsilon_of(amount, delta)  # the same amount in ρ
    limit = delta * (1 - SPARE_DELTA)
    return _bisect(0.0, largest, lambda epsilon: delta_of_gaussian(amount, epsilon) > limit)[1] + SPARE_EPSILON


@lru_cache(maxsize=4096)
def gaussian_of(epsilon: float, delta: float) -> float:
    """Return the largest amount μ²/2, to 32 significant bits, for which Gaussian noise satisfies (ε, δ)-DP."""
    if not math.isfinite(epsilon):
        return float(epsilon)
    rho, at, limit = rho_of(epsilon, delta), epsilon - SPARE_EPSILON, delta * (1 - SPARE_DELTA)
    return _round_down_32_bits(_bisect(rho, 2 * rho, lambda amount: delta_of_gaussian(amount, at) <= limit)[0])


def epsilon_at(measure: str | None, amount: float, delta: float) -> float:
    """Return ε at δ for an amount in any of the measures ``epsilon``, ``rho`` and ``gaussian``."""
    if measure == "gaussian":
        return epsilon_of_gaussian(amount, delta)
    return epsilon_of(amount, delta) if measure == "rho" else amount
