"""Fano's inequality in its Kullback-Leibler form: how far information can lift the success of a guess."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp

from accountants.inference.ball import log_binomial

FloatArray = NDArray[np.float64]
_SLACK = 1e-12
_BISECTIONS = 60


def largest_success(log_baseline: float, information: float) -> float:
    """ln of the largest p ≥ B with p ln(p / B) + (1 − p) ln((1 − p) / (1 − B)) ≤ information, ln B given.

    Solved for ln p by a bracketing root finder, so that a probability of 1e-300 has as many digits as one of 0.1,
    and rounded up.

    >>> round(math.exp(largest_success(math.log(0.25), 0.1)), 6)
    0.456672
    """
    if information >= -log_baseline:
        return 0.0
    if information <= 0:
        return log_baseline
    baseline = math.exp(log_baseline)

    def divergence(log_success: float) -> float:
        """The left side of the inequality, where 1 − p and p − B keep their digits."""
        gain = log_success - log_baseline
        success = math.exp(log_success)
        above = baseline * math.expm1(gain) if gain < 1 else success - baseline
        return success * gain - math.expm1(log_success) * math.log1p(-above / (1 - baseline))

    budget = information * (1 + _SLACK)
    # at p just below 1 the divergence may still be under the budget; then 1 is right to rounding
    top = -1e-15
    if divergence(top) <= budget:
        return 0.0
    root = brentq(lambda log_success: divergence(log_success) - budget, log_baseline, top, xtol=1e-13, rtol=1e-14)
    return float(min(0.0, root + 1e-12))


def largest_successes(log_baseline: FloatArray, information: FloatArray) -> FloatArray:
    """`largest_success` for arrays, by bisection; the upper end is returned, so never too small."""
    low, high = log_baseline.copy(), np.zeros(log_baseline.shape)
    baseline = np.exp(log_baseline)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        success = np.exp(middle)
        gain = np.minimum(middle - log_baseline, 700.0)
        above = np.where(gain < 1, baseline * np.expm1(gain), success - baseline)
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = np.where(middle < 0, np.expm1(middle) * np.log1p(-above / (1 - baseline)), 0.0)
        fits = success * (middle - log_baseline) - rest <= information
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    settled = (information <= 0) | (log_baseline >= 0)
    return np.where(settled, log_baseline, np.where(information >= -log_baseline, 0.0, high))


def log_loose(n_locations: int, n_steps: int, tolerance: int, entropy: float, information: float) -> float:
    """ln of the largest success that Fano's inequality for a uniform prior allows (equation 3 of Koga et al.).

    With N the number of trajectories within the tolerance of a guess, the inequality reads: the divergence of the
    success from N / M^T is at most T ln M − H(X) + information. N and M^T stay in logarithms.
    """
    if n_locations == 1 or tolerance >= n_steps:
        return 0.0
    log_all = n_steps * math.log(n_locations)
    log_near = logsumexp(
        [log_binomial(n_steps, misses) + misses * math.log(n_locations - 1) for misses in range(tolerance + 1)]
    )
    return largest_success(min(0.0, float(log_near) - log_all), log_all - entropy + information)
