"""f(m): the largest prior probability that any m chosen windows are at any m chosen locations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accountants.inference.kernel import Kernel
from accountants.inference.prior import MarkovPrior

FloatArray = NDArray[np.float64]
_OPERATIONS = 2e6


def most_matches(prior: MarkovPrior, n_steps: int, max_skips: int) -> FloatArray:
    """ln f(n_steps − l) for l = 0 … max_skips.

    Only runs that skip few windows matter, so the state is (window matched last, windows skipped so far) and a gap is
    at most max_skips + 1 windows: O(n_steps max_skips² M²) instead of the paper's O(n_steps³ M²), and right for
    chains that do not start stationary.

    Parameters
    ----------
    prior
        The target's Markov chain; f is over its own start, window 1 to ``n_steps``.
    n_steps, max_skips
        Windows, and how many of them may stay unmatched, below n_steps.

    Returns
    -------
    (max_skips + 1,) logarithms.
    """
    kernels = _log_powers(prior, min(max_skips + 1, n_steps - 1))
    with np.errstate(divide="ignore"):
        leading = np.log(prior.marginals(max_skips + 1))
    matched: list[FloatArray] = []  # per window (skips so far + 1, M): the last max_skips + 1 windows
    result = np.full(max_skips + 1, -np.inf)
    for window in range(n_steps):
        current = np.full((min(window, max_skips) + 1, prior.n_locations), -np.inf)
        if window <= max_skips:
            current[window] = leading[window]
        for gap in range(1, min(max_skips + 1, window) + 1):
            before = matched[-gap][: max_skips + 2 - gap]
            reached = kernels[gap - 1].best_previous_log(before)
            part = current[gap - 1 : gap - 1 + len(before)]
            np.maximum(part, reached, out=part)
        matched = [*matched[-max_skips:], current] if max_skips else [current]
        trailing = n_steps - 1 - window
        if trailing <= max_skips:
            best = current[: max_skips + 1 - trailing].max(axis=1)
            np.maximum(result[trailing : trailing + best.size], best, out=result[trailing : trailing + best.size])
    return result


def few_matches(prior: MarkovPrior, n_steps: int, most: int) -> FloatArray:
    """ln f(1), ln f(2), … up to ``most``, f(3) and beyond only while they are cheap.

    f(2) takes n_steps products of a vector with a matrix, every further one n_steps² / 2.
    """
    if most < 1:
        return np.empty(0)
    with np.errstate(divide="ignore"):
        first = np.log(prior.marginals(n_steps))
    values = [first.max()]
    if most == 1:
        return np.array(values)
    kernels = _log_powers(prior, n_steps - 1)
    best_so_far = np.maximum.accumulate(first)
    pairs = [kernel.best_previous_log(best_so_far[None, -1 - gap]).max() for gap, kernel in enumerate(kernels, start=1)]
    values.append(np.max(pairs))
    each = n_steps**2 / 2 * prior.n_locations**2
    current = first
    for j in range(2, min(most, int(_OPERATIONS / each)) + 1):
        following = np.full_like(first, -np.inf)
        for gap, kernel in enumerate(kernels, start=1):
            if gap < n_steps - j + 2:
                following[gap:] = np.maximum(following[gap:], kernel.best_previous_log(current[:-gap]))
        current = following
        if j > 2:
            values.append(current.max())
    return np.array(values)


def consecutive_matches(prior: MarkovPrior, most: int) -> FloatArray:
    """ln of the largest probability of the first 1, 2, … ``most`` locations: at most ln f(1), ln f(2), …"""
    kernel = Kernel(prior.transition)
    with np.errstate(divide="ignore"):
        current = np.log(prior.initial)[None, :]
    values = [current.max()]
    for _ in range(most - 1):
        current = kernel.best_previous_log(current)
        values.append(current.max())
    return np.array(values)


def _log_powers(prior: MarkovPrior, highest: int) -> list[Kernel]:
    """Kernels of the first ``highest`` powers of the transition matrix."""
    powers = []
    power = prior.transition
    for exponent in range(1, highest + 1):
        powers.append(Kernel(power))
        if exponent < highest:
            power = power @ prior.transition
    return powers
