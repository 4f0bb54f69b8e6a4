"""Zero-concentrated differential privacy as (ε, δ) and back, by the accounting library's tight conversion."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

__all__ = ["epsilon_of", "rho_of"]


@lru_cache(maxsize=4096)
def epsilon_of(rho: float, delta: float) -> float:
    """ε at δ of everything that is ρ-zero-concentrated differentially private.

    >>> [round(epsilon_of(rho, 1e-6), 2) for rho in (0.0, 0.024, 0.46)]
    [0.0, 0.99, 4.98]

    ρ-zCDP is (α, α·ρ)-Rényi DP at every order α, which the library converts at the best one (Canonne, Kamath and
    Steinke 2020, proposition 12): less than ρ + 2·√(ρ·ln(1/δ)).
    """
    if rho == 0 or not np.isfinite(rho):
        return float(rho)
    from dp_accounting.rdp import compute_epsilon
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    # The best order is near 1 + √(ln(1/δ)/ρ); further orders around it only make the figure smaller.
    best = 1 + np.sqrt(np.log(1 / delta) / rho)
    orders = np.unique([*DEFAULT_RDP_ORDERS, *(1 + (best - 1) * np.geomspace(0.5, 2, 33))])
    return float(compute_epsilon(orders, orders * rho, delta)[0])


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
