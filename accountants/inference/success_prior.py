"""The best guess's prior success: the largest prior probability of a ball of trajectories.

B = max over guesses x̂ of Pr[at most ``tolerance`` of ``n_steps`` locations differ from x̂]. All in logarithms.

With N the number of right guesses, T = ``n_steps``, s = ``tolerance``, r = T − s, and f(j) the largest probability of
j locations in j windows, B is at most

* *paper*: Σ_{l≤s} C(T, l) f(T − l), equation (5) of Koga, Meehan and Chaudhuri.
* *union*: C(T, s) f(T − s). *Proof.* At most s differ only if some set of exactly r windows is right; there are C(T,
  r) of them, each with probability at most f(r). ∎ It is one of the paper's terms, so never larger.
* *factorial*: min over 1 ≤ j ≤ r of C(T, j)/C(r, j) · f(j). *Proof.* C(N, j) counts the j-sets of right windows, so E
  C(N, j) ≤ C(T, j) f(j); N ≥ r implies C(N, j) ≥ C(r, j); Markov's inequality. ∎ j = r is the union bound. For j = 1,
  *best* uses Σ_t max_x Pr(X_t = x) ≤ T f(1).
* *genie*: the guesser learns each true location right after guessing it. This may be ignored, so the best success G
  is at least B. With a wrong guesses left, guessing x′ wins G_t(x′, a) if right and G_t(y, a − 1) if the truth is y ≠
  x′, so G_{t−1}(x, a) = Σ_y P[x, y] G_t(y, a−1) + max_{x′} P[x, x′] (G_t(x′, a) − G_t(x′, a−1)), with G_T(·, a) = 1
  for a ≥ 0 and 0 below. For a fixed x′ it is Σ_{y ≠ x′} P[x, y] G_t(y, a−1) + P[x, x′] G_t(x′, a), monotone in G_t,
  so rounding up keeps it a bound.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from scipy.special import gammaln, logsumexp

from penstock.accountants.inference.kernel import Kernel, genie_back, genie_step
from penstock.accountants.markov import FloatArray, MarkovPrior
from penstock.mechanisms.core.plugin import ParameterError, check_choice

Ball = Literal["genie", "factorial", "union", "paper", "best"]

_OPERATIONS = 2e6


def max_ball_probability(prior: MarkovPrior, n_steps: int, tolerance: int, bound: Ball = "best") -> float:
    """Bound the prior probability that the best guess has at most ``tolerance`` errors.

    Parameters
    ----------
    prior
        The target's Markov chain.
    n_steps, tolerance
        T windows, of which at most s may be guessed wrong; s ≥ T gives 1.
    bound
        genie: the guesser learns each true location after guessing it, O(T s M²), usually the sharpest.
        union: C(T, s) f(T − s), f(m) the largest probability of m chosen steps, O(T s² M²).
        paper: Σ_{l ≤ s} C(T, l) f(T − l), never below union.
        factorial: smallest C(T, j) / C(T − s, j) f(j); j = 1, 2 and T − s always, the others where they are cheap.
        best: the smallest of all, with j = 1 sharpened to the sum over windows of the likeliest location; genie and
        that one only on sparse priors with many reachable locations.

    Returns
    -------
    A number above 0. The formulas union, paper and factorial may exceed 1; genie and best do not.

    Examples
    --------
    >>> from penstock.accountants.markov import chain_prior
    >>> prior = chain_prior(20, 0.01)
    >>> [round(max_ball_probability(prior, 10, 5, bound), 2) for bound in ("union", "factorial", "genie")]
    [12.19, 0.1, 1.0]

    Source: Koga, Meehan, Chaudhuri, equation (5) and theorem 1 (paper); the others: docs/reconstruction.md.
    """
    check_choice("bound", bound, get_args(Ball))
    check_horizon(n_steps, tolerance)
    return probability(log_ball(prior, n_steps, tolerance, bound))


def check_horizon(n_steps: int, tolerance: int) -> None:
    """Raise an error if the horizon is empty or the tolerance is negative."""
    if n_steps < 1:
        raise ParameterError("n_steps", n_steps, "at least 1")
    if tolerance < 0 or tolerance != int(tolerance):
        raise ParameterError("tolerance", tolerance, "an integer of at least 0")


def probability(log_value: float) -> float:
    """Exponentiate a logarithm. Underflow is rounded up to the smallest positive float."""
    return float(np.exp(log_value)) or float(np.nextafter(0.0, 1.0) if log_value > -np.inf else 0.0)


def log_ball(prior: MarkovPrior, n_steps: int, tolerance: int, bound: Ball = "best") -> float:
    """Return the logarithm of `max_ball_probability`."""
    if tolerance >= n_steps:
        return 0.0
    prior = prior.reduced[0]
    kernel = Kernel(prior.transition)
    if bound == "genie":
        return log_genie(prior.initial, kernel, n_steps, tolerance)
    if bound == "best":
        # the mean number of hits is at most the sum of the marginals' largest entries, no more than n_steps f(1)
        mean_hits = float(prior.marginals(n_steps).max(axis=1).sum())
        value = min(log_genie(prior.initial, kernel, n_steps, tolerance), math.log(mean_hits / (n_steps - tolerance)))
        return value if kernel.is_sparse else min(value, _log_factorial(prior, n_steps, tolerance, value))
    if bound == "factorial":
        return _log_factorial(prior, n_steps, tolerance)
    log_f = most_matches(prior, n_steps, tolerance)
    terms = [log_binomial(n_steps, misses) + log_f[misses] for misses in range(tolerance + 1)]
    return float(terms[-1] if bound == "union" else logsumexp(terms))


def _log_factorial(prior: MarkovPrior, n_steps: int, tolerance: int, enough: float = np.inf) -> float:
    """Return the log of the smallest Markov bound on C(hits, j); j = n_steps − tolerance is the union bound."""
    # Those that certainly exceed `enough`, because already j windows in a row are too likely, are not computed.
    n_hits = n_steps - tolerance
    moments = np.array([log_binomial(n_steps, j) - log_binomial(n_hits, j) for j in range(1, n_hits + 1)])
    kernel = Kernel(prior.transition)
    with np.errstate(divide="ignore"):
        current = np.log(prior.initial)[None, :]
    in_a_row = [current.max()]
    for _ in range(n_hits - 1):
        current = kernel.best_previous_log(current)
        in_a_row.append(current.max())
    useful = np.flatnonzero(moments + np.array(in_a_row) < enough) + 1
    values = [np.inf]
    if n_hits in useful and n_hits > 2:
        values.append(moments[-1] + most_matches(prior, n_steps, tolerance)[-1])
    below = useful[useful < max(n_hits, 3)]
    if below.size:
        log_f = few_matches(prior, n_steps, int(below[-1]))
        values.extend(moments[: log_f.size] + log_f)
    return float(min(values))


def log_binomial(n: int, k: int) -> float:
    """Return ln C(n, k)."""
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def log_genie(initial: FloatArray, kernel: Kernel, n_steps: int, tolerance: int) -> float:
    """Return the logarithm of the success of a guesser who learns each true location after guessing it."""
    values, log_scale = genie_back(kernel, np.ones((tolerance + 1, kernel.n_from)), n_steps - 1)
    start = Kernel(initial[None, :])
    return min(0.0, float(np.log(genie_step(start, values)[-1, 0]) + log_scale))


def most_matches(prior: MarkovPrior, n_steps: int, max_skips: int) -> FloatArray:
    """Return ln f(n_steps − l) for l = 0 … max_skips, where f(m) is the largest prior probability of any m windows."""
    # Only runs that skip few windows matter, so the state is (window matched last, windows skipped so far) and a gap is
    # at most max_skips + 1 windows: O(n_steps max_skips² M²) instead of the paper's O(n_steps³ M²), and right for
    # chains that do not start stationary.
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


def few_matches(prior: MarkovPrior, n_steps: int, maximum: int) -> FloatArray:
    """Return ln f(1), ln f(2), … up to ``maximum``. From f(3) onward, stop once it becomes expensive."""
    # f(2) takes n_steps products of a vector with a matrix, every further one n_steps² / 2.
    if maximum < 1:
        return np.empty(0)
    with np.errstate(divide="ignore"):
        first = np.log(prior.marginals(n_steps))
    values = [first.max()]
    if maximum == 1:
        return np.array(values)
    kernels = _log_powers(prior, n_steps - 1)
    best_so_far = np.maximum.accumulate(first)
    pairs = [kernel.best_previous_log(best_so_far[None, -1 - gap]).max() for gap, kernel in enumerate(kernels, start=1)]
    values.append(np.max(pairs))
    each = n_steps**2 / 2 * prior.n_locations**2
    current = first
    for j in range(2, min(maximum, int(_OPERATIONS / each)) + 1):
        following = np.full_like(first, -np.inf)
        for gap, kernel in enumerate(kernels, start=1):
            if gap < n_steps - j + 2:
                following[gap:] = np.maximum(following[gap:], kernel.best_previous_log(current[:-gap]))
        current = following
        if j > 2:
            values.append(current.max())
    return np.array(values)


def _log_powers(prior: MarkovPrior, highest: int) -> list[Kernel]:
    """Return kernels for the first ``highest`` powers of the transition matrix."""
    powers = []
    power = prior.transition
    for exponent in range(1, highest + 1):
        powers.append(Kernel(power))
        if exponent < highest:
            power = power @ prior.transition
    return powers
