"""Rényi differential privacy of single events under add/remove at fixed orders."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.core.charges import concentrated_rho, parts_sampled, pure_epsilon
from penstock.mechanisms.core import concentrated, events
from penstock.mechanisms.core.plugin import UnsupportedEvent

ORDERS: NDArray[np.float64] = np.asarray(concentrated.ORDERS, np.float64)


def renyi(charge: tuple[events.Event, ...]) -> NDArray[np.float64]:
    """Return one release's Rényi DP at `ORDERS`, shape (n_orders,), summed over its events."""
    return np.asarray(np.sum([np.zeros(len(ORDERS)), *(_renyi(event) for event in charge)], axis=0), np.float64)


def from_renyi(curve: NDArray[np.float64], delta: float) -> float:
    """Return ε at δ for a Rényi curve at `ORDERS` (Canonne, Kamath, Steinke 2020, proposition 12)."""
    if not curve.any():
        return 0.0
    finite = np.isfinite(curve)
    return concentrated.epsilon_of_renyi(ORDERS[finite], curve[finite], delta)


def _renyi(event: events.Event) -> NDArray[np.float64]:
    match event:
        case events.Repeated() | events.Covered():
            return np.zeros(len(ORDERS))
        case events.Exact():
            return np.full(len(ORDERS), np.inf)
        case events.Additive(scale=scale) | events.Sampled(events.Additive(scale=scale)) if np.isinf(float(scale)):
            return np.zeros(len(ORDERS))  # nothing was published
        case events.Additive():
            sensitivity, scale = float(event.sensitivity), float(event.scale)
            if event.is_gaussian:
                # Both are (order · ρ)-RDP with the same ρ; for integers by Canonne, Kamath and Steinke 2020, theorem 4.
                return ORDERS * concentrated_rho([event])
            if event.family == "discrete_laplace":
                return _discrete_laplace(scale, int(np.ceil(sensitivity)))
            return _laplace(scale / sensitivity) if sensitivity else np.zeros(len(ORDERS))
        case events.PureDP():
            return _pure(float(event.epsilon))
        case events.ConcentratedDP():
            return ORDERS * float(event.rho)
        case events.Block():
            return _renyi(event.inner)
        case events.Linked():
            # Of k windows with one draw: no more than their ε together, nor (Bun and Steinke 2016, proposition 1.4)
            # than ρ.
            return np.minimum(pure_epsilon([event]), ORDERS * concentrated_rho([event]))
        case events.Sampled(inner):
            whole, n_parts = _renyi(inner), parts_sampled(event)
            if n_parts == 0:
                return whole
            if isinstance(inner, events.Additive) and inner.family == "gaussian" and float(inner.scale) > 0:
                multiplier = float(inner.scale) * np.sqrt(n_parts) / float(inner.sensitivity)
                return np.minimum(whole, n_parts * _sampled_gaussian(event.rate, multiplier))
            # For other noise the library has no sampled curve: that of the amplified pure ε, or the whole if smaller.
            return np.minimum(whole, n_parts * _pure(pure_epsilon([event]) / n_parts))
    raise UnsupportedEvent(f"no Rényi DP is known for {type(event).__name__}")


@cache
def _sampled_gaussian(rate: float, multiplier: float) -> NDArray[np.float64]:
    """Return a sampled Gaussian's Rényi curve, infinite below order 2, where the library's series may diverge."""
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent  # loads half of SciPy
    from dp_accounting.rdp import RdpAccountant

    is_regular = ORDERS >= 2
    accountant = RdpAccountant(orders=list(ORDERS[is_regular]))
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)))
    curve = np.full(len(ORDERS), np.inf)
    curve[is_regular] = accountant.rdp
    return curve


@cache
def _laplace(multiplier: float) -> NDArray[np.float64]:
    """Return the Rényi curve of Laplace noise (Mironov 2017, proposition 6)."""
    if multiplier == 0:
        return np.full(len(ORDERS), np.inf)
    epsilon = 1 / multiplier
    inner = (ORDERS - 1) * np.expm1(epsilon * (1 - 2 * ORDERS)) / (2 * ORDERS - 1)
    return np.asarray(epsilon + np.log1p(inner) / (ORDERS - 1), np.float64)


@cache
def _discrete_laplace(scale: float, shift: int) -> NDArray[np.float64]:
    """Return the exact curve if one coordinate is shifted by the full L1 sensitivity, which is the worst case."""
    if shift == 0:
        return np.zeros(len(ORDERS))
    if scale == 0:
        return np.full(len(ORDERS), np.inf)
    log_mass, loss = discrete_laplace_losses(scale, shift)
    exponent = log_mass[None, :] + np.outer(ORDERS - 1, loss)
    return np.asarray(np.logaddexp.reduce(exponent, axis=1) / (ORDERS - 1), np.float64)


def discrete_laplace_losses(scale: float, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return discrete Laplace noise's log mass per loss under a shift, and these losses in decreasing order."""
    rate = 1 / scale
    between = np.arange(1, shift)
    log_mass = -rate * np.concatenate([[0.0], between, [shift]])
    # Both tails are geometric; each holds P at 0 or at the shift times 1/(1 − e^−rate).
    log_mass += np.log(np.tanh(rate / 2))
    log_mass[[0, -1]] -= np.log(-np.expm1(-rate))
    return log_mass, rate * np.concatenate([[shift], shift - 2.0 * between, [-shift]])


@cache
def _pure(epsilon: float) -> NDArray[np.float64]:
    """Return the curve of randomised response, the worst ε-DP mechanism (Kairouz, Oh, Viswanath 2015)."""
    if not np.isfinite(epsilon):
        return np.full(len(ORDERS), np.inf)
    log_yes, log_no = -np.log1p(np.exp(-epsilon)), -np.log1p(np.exp(epsilon))
    terms = np.stack([log_yes + (ORDERS - 1) * epsilon, log_no - (ORDERS - 1) * epsilon])
    return np.asarray(np.logaddexp.reduce(terms, axis=0) / (ORDERS - 1), np.float64)
