"""Zero-concentrated differential privacy as (ε, δ) and back, by the tight conversion of Rényi DP."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

__all__ = ["ORDERS", "epsilon_of", "epsilon_of_renyi", "rho_of"]

#: Rényi orders at which curves are kept: those of the library dp-accounting.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)


def epsilon_of_renyi(orders: Iterable[float], curve: Iterable[float], delta: float) -> float:
    """ε at δ of Rényi DP at some orders above 1 (Canonne, Kamath and Steinke 2020, proposition 12).

    As dp-accounting converts it, bit for bit. That library takes a second to load, and any budget with a δ needs this.

    >>> round(epsilon_of_renyi([2.0, 8.0], [0.2, 0.8], 1e-6), 3)
    2.343
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
    """ε at δ of everything that is ρ-zero-concentrated differentially private.

    >>> [round(epsilon_of(rho, 1e-6), 2) for rho in (0.0, 0.024, 0.46)]
    [0.0, 0.99, 4.98]

    ρ-zCDP is (α, α·ρ)-Rényi DP at every order α, which `epsilon_of_renyi` converts at the best one: less than
    ρ + 2·√(ρ·ln(1/δ)).
    """
    if rho == 0 or not np.isfinite(rho):
        return float(rho)
    # The best order is near 1 + √(ln(1/δ)/ρ); further orders around it only make the figure smaller.
    best = 1 + np.sqrt(np.log(1 / delta) / rho)
    orders = np.unique([*ORDERS, *(1 + (best - 1) * np.geomspace(0.5, 2, 33))])
    return epsilon_of_renyi(orders, orders * rho, delta)


@lru_cache(maxsize=4096)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest ρ of 32 bits whose (ε, δ) is at most the given one: `epsilon_of` turned round.

    Further bits would not be the same on every processor, and budgets are part of a state, by which noise is keyed.

    >>> [round(rho_of(epsilon, 1e-6), 3) for epsilon in (1.0, 2.0, 5.0)]
    [0.024, 0.088, 0.463]
    """
    if not np.isfinite(epsilon):
        return float(epsilon)
    low, high = 0.0, epsilon - math.log(delta)  # a larger ρ would only be of use at a δ that protects no one
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    mantissa, power = math.frexp(low)
    return math.ldexp(math.floor(math.ldexp(mantissa, 32)), power - 32)
