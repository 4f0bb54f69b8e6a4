"""Privacy audit in one run: how well a release tells who of many planted people is in it bounds its ε from below.

Many *canaries* are planted, each present by the toss of a coin of its own. The release is made once. An adversary who
knows everything but the coins guesses some of them and abstains from the others. Where every person's share of the
release is (ε, δ)-differentially private, each guess is right with probability e^ε/(1 + e^ε) at most, whatever the other
coins are, so that the number of right guesses is bounded by a binomial variable. More right guesses than that are
evidence of a larger ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from penstock.mechanisms.core.contract import Release

#: Shares of the canaries that are guessed, one half of them as present: the best one is reported, at a fair level.
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
#: ε above which no search goes: a release without noise is beyond every bound.
LARGEST = 64.0


@dataclass(frozen=True)
class OneRunBound:
    """Lower bound on ε from the guesses about one run."""

    epsilon: float  # ε that the release exceeds, at ``confidence``; 0 where the guesses show nothing
    # `n_canaries`, `n_guesses`, `n_right`: people planted, guesses of the share that gives the bound, and how
    # many of them were right
    n_canaries: int
    n_guesses: int
    n_right: int
    delta: float  # δ at which the bound holds
    confidence: float  # probability with which the bound is right


def evidence(release: Release, absent: NDArray[np.int64], present: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log-likelihood ratio of two count vectors given one release, cell by cell; 0 where nothing was published.

    Exact for real Laplace and Gaussian noise, and for discrete noise up to what is lost by taking it for real.

    `absent`, `present`: counts, of a shape that broadcasts against the released values.

    >>> noisy = Release(window=1, values=np.array([3.0, 1.0]), noise="laplace", scale=2.0)
    >>> evidence(noisy, np.array([2, 2]), np.array([3, 3])).tolist()
    [0.5, -0.5]
    """
    values = np.asarray(release.values, np.float64)
    published = np.asarray(release.action) == "published"
    scale = np.asarray(release.scale, np.float64)
    usable = np.isfinite(scale) & (scale > 0)
    width = np.where(usable, scale, 1.0)
    far, near = np.abs(values - absent), np.abs(values - present)
    gain = (far**2 - near**2) / (2 * width**2) if "gaussian" in release.noise else (far - near) / width
    known = np.isfinite(values) & (published[..., None] if published.ndim else published)
    return np.where(known, gain, 0.0)


def p_value(n_canaries: int, n_guesses: int, n_right: int, epsilon: float, delta: float = 0.0) -> float:
    """Largest probability with which an (ε, δ)-private release lets this many guesses be right.

    Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023, theorem 5.2.

    Examples
    --------
    >>> p_value(10, 10, 10, 0.0) == 0.5**10  # fair coins
    True
    >>> p_value(100, 100, 80, 1.0) < 0.1 < p_value(100, 100, 80, 1.3)
    True
    """
    right = float(expit(epsilon))
    tail = float(binom.sf(n_right - 1, n_guesses, right))
    if delta > 0:
        # What the tail gains if i guesses are given away, for the i that pays most; below the mass it gains nothing.
        lowest = math.floor(n_guesses * right - 12 * math.sqrt(n_guesses * right * (1 - right))) - 1
        fewer = np.arange(n_right - 1, max(min(lowest, n_right - 2), -1), -1)
        gained = np.cumsum(binom.pmf(fewer, n_guesses, right))
        tail += 2 * n_canaries * delta * float(np.max(gained / np.arange(1, len(fewer) + 1), initial=0.0))
    return min(tail, 1.0)


def least_epsilon(n_canaries: int, n_guesses: int, n_right: int, delta: float, level: float) -> float:
    """Largest ε whose `p_value` is at most ``level``: anything up to it is refuted. 0 where nothing is.

    Examples
    --------
    >>> round(least_epsilon(1000, 1000, 731, 0.0, 0.05), 2)  # ln(.731/.269) is 1
    0.88
    >>> least_epsilon(1000, 1000, 500, 0.0, 0.05)
    0.0
    """
    low, high = 0.0, LARGEST
    if p_value(n_canaries, n_guesses, n_right, low, delta) > level:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if p_value(n_canaries, n_guesses, n_right, middle, delta) <= level:
            low = middle
        else:
            high = middle
    return low


def one_run_bound(
    scores: NDArray[np.float64], present: NDArray[np.bool_], delta: float = 0.0, confidence: float = 0.95
) -> OneRunBound:
    """Lower bound on ε from the score of every canary, larger where it looks present.

    The most and the least suspicious are guessed. Which share of them is guessed is chosen afterwards among `SHARES`,
    each tested at its part of the level (Bonferroni), so that the bound holds at ``confidence``.

    `scores`, `present`: score of each canary and whether it was there, shape (n_canaries,).

    Examples
    --------
    >>> random = np.random.default_rng(1)
    >>> coins = random.random(2000) < 0.5
    >>> one, other = random.geometric(1 - np.exp(-1), (2, 2000))  # their difference is discrete Laplace noise, of ε = 1
    >>> bound = one_run_bound(np.sign(one - other + coins - 0.5), coins)
    >>> 0.7 < bound.epsilon < 1
    True
    """
    n_canaries = len(scores)
    order = np.argsort(scores, kind="stable")
    level = (1 - confidence) / len(SHARES)
    best = OneRunBound(0.0, n_canaries, 0, 0, delta, confidence)
    for half in sorted({max(1, int(share * n_canaries / 2)) for share in SHARES}):
        if 2 * half > n_canaries:
            continue
        n_right = int(present[order[-half:]].sum() + (~present[order[:half]]).sum())
        epsilon = least_epsilon(n_canaries, 2 * half, n_right, delta, level)
        if epsilon > best.epsilon or epsilon == 0.0 == best.epsilon:
            best = OneRunBound(epsilon, n_canaries, 2 * half, n_right, delta, confidence)
    return best
