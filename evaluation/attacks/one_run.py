"""Lower bounds on privacy loss, computed from guesses about people who were planted at random.

Many *canaries* are planted in what is released, each present by a coin of its own. An adversary who knows all but the
coins guesses them from the releases. What a mechanism claims bounds how often a guess can be right; more right guesses
than that refute the claim, and how much larger it would have to be is bounded from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp
from scipy.stats import binom

Array = NDArray[np.float64]

#: Shares of the guesses that are counted, those with the largest scores: the best share is reported, at a fair level.
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
#: Shares of the capital that are set on a round, as many bets at a time.
BETS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
#: Multiple of a claim above which no search goes, and the smallest claim that there is a multiple of.
LARGEST, SMALLEST_CLAIM = 1024.0, 1e-9


@dataclass(frozen=True)
class Guesses:
    """Guesses about whether planted people are present, with one entry per person.

    ``scores``: log-likelihood ratio of presence and absence; its sign is the guess, its size how sure, 0: no guess.
    ``claims``: the loss claimed of that person, in ε or ρ: a function of what was released before (in ε: of all that
    was released). ``rounds``: the stretch of one run in which the person was planted, from 0; people of a round are
    planted, and released, together.
    """

    scores: Array
    present: NDArray[np.bool_]
    claims: Array
    rounds: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[Guesses]) -> Guesses:
        """Concatenate the guesses made in several runs."""
        before = np.cumsum([0, *(int(run.rounds.max(initial=-1)) + 1 for run in runs)])
        return cls(
            np.concatenate([run.scores for run in runs]),
            np.concatenate([run.present for run in runs]),
            np.concatenate([run.claims for run in runs]),
            np.concatenate([run.rounds + first for run, first in zip(runs, before)]),
        )

    @property
    def correct(self) -> Array:
        """The score of each guess: 1 if it is correct, 0 if it is wrong, and 1/2 for an abstention."""
        return np.where(self.scores == 0, 0.5, (self.scores > 0) == self.present)


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on the privacy loss, expressed as a multiple of the claimed loss."""

    factor: float  # above 1 the claims are refuted at ``confidence``; 0 where the guesses show nothing
    claim: float  # the largest claim, in ε or ρ
    # `n_canaries`, `n_guesses`, `n_right`: people planted, guesses that gave the bound, and how many were right
    n_canaries: int
    n_guesses: int
    n_right: int
    confidence: float  # probability with which the bound is right

    @property
    def amount(self) -> float:
        """The lower bound on the loss of people with the largest claim, if all claims are off by the same factor."""
        return self.factor * self.claim


def log_ratio(far: NDArray[Any], near: NDArray[Any], scale: Any, is_gaussian: bool) -> Array:
    """Return the log-likelihood ratio between two possible values of the noise, ``near`` and ``far``.

    Exact for real Laplace and Gaussian noise, and for discrete noise up to what is lost by taking it for real.
    """
    if is_gaussian:
        return np.asarray((far**2 - near**2) / (2 * np.square(scale)))
    return np.asarray((np.abs(far) - np.abs(near)) / scale)


def largest_accuracy(claims: Array, concentrated: bool) -> Array:
    """Return the highest probability with which a fair coin can be guessed from an output whose privacy loss is ε or ρ.

    Under ε the odds of presence, 1 before, are at most e^ε afterwards. Under ρ let p and q be the probabilities with
    which a guess of presence is made of somebody present and absent. Turning the coin round as well gives a guess with
    1 − q and 1 − p; of both in equal parts the accuracy a = (1 + p − q)/2 is the same and, Rényi divergence being
    convex, the loss no larger. So a and 1 − a have a Kullback-Leibler divergence, the Rényi divergence of order 1, of
    at most ρ: e·tanh(e/2) ≤ ρ for e = ln(a/(1 − a)).
    """
    if not concentrated:
        return np.asarray(expit(claims))
    low, high = np.zeros(len(claims)), (claims + np.sqrt(claims**2 + 8 * claims)) / 2  # tanh x ≥ x/(1 + x)
    for _ in range(50):
        middle = (low + high) / 2
        fits = middle * np.tanh(middle / 2) <= claims
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.asarray(expit(high))


def lower_bound(guesses: Guesses, concentrated: bool = False, confidence: float = 0.999) -> LowerBound:
    """Compute a lower bound on the privacy loss, as a factor f by which the claims are multiplied.

    Let H(f) say that nobody loses more than f times the claim. Where H(f) holds it is refuted with probability
    1 − ``confidence`` at most, and what refutes it refutes every smaller f. So the largest f that is refuted, which is
    returned, is above the smallest that holds with no larger probability, however releases depend on each other.

    *In ε.* Given all that was released and the coins of others, the odds of each coin are within e^±fε: Bayes' theorem
    on two inputs that differ in one person. Which coins are guessed, and how, is a function of the releases. One after
    the other each guess is right with probability π = e^fε/(1 + e^fε) at most, whatever the guesses before it were, so
    the number of right ones is no larger than a sum of independent coins of the probabilities π (Steinke, Nasr and
    Jagielski 2023, theorem 5.2). Where it is at least 1 above the mean of that sum, the tail is no larger than that of
    the binomial law of the same mean (Hoeffding 1956, theorem 4). Of the `SHARES` of the guesses, surest first, each
    is tested at its part of the level.

    *In ρ.* No such statement holds for many coins at once, since ρ bounds losses on the average. But the share of right
    guesses in a round has an expectation of at most `largest_accuracy` given the rounds before, since each guess has,
    however they depend on each other. Hence a bet of a part s of one's capital on a round, which pays
    1 − s + s · (share that is right)/(largest accuracy), is not favourable, and the mean of some capitals of 1 is 20 in
    the end with a probability of 1/20 at most (Ville 1939; Waudby-Smith and Ramdas 2024).

    Examples
    --------
    >>> random = np.random.default_rng(1)
    >>> coins = random.random(2000) < 0.5
    >>> one, other = random.geometric(1 - np.exp(-1), (2, 2000))  # their difference is discrete Laplace noise, of ε = 1
    >>> scores = np.sign(one - other + coins - 0.5)
    >>> 0.7 < lower_bound(Guesses(scores, coins, np.ones(2000), np.arange(2000))).factor < 1
    True
    """
    claims = np.maximum(guesses.claims, SMALLEST_CLAIM)
    n_guessed, correct = int(np.count_nonzero(guesses.scores)), guesses.correct
    factor, n_guesses, n_right = 0.0, n_guessed, int((correct == 1).sum())
    if concentrated:
        factor = _of_rounds(correct, claims, guesses.rounds, 1 - confidence)
    else:
        by_confidence = np.argsort(-np.abs(guesses.scores), kind="stable")
        for n in sorted({max(1, int(share * n_guessed)) for share in SHARES if n_guessed}):
            n_correct = int(correct[by_confidence[:n]].sum())
            bound = _of_independent(n_correct, claims[by_confidence[:n]], (1 - confidence) / len(SHARES))
            if bound > factor:
                factor, n_guesses, n_right = bound, n, n_correct
    return LowerBound(factor, float(claims.max(initial=0.0)), len(claims), n_guesses, n_right, confidence)


def _of_independent(n_right: int, claims: Array, level: float) -> float:
    """Return the largest multiple of the claims in ε that is refuted by the number of correct guesses."""
    different, often = np.unique(claims, return_counts=True)
    n = len(claims)

    def is_refuted(factor: float) -> bool:
        """Return whether the number of correct guesses is too large to be explained by this factor."""
        mean = float(largest_accuracy(factor * different, False) @ often / n)
        return n_right >= n * mean + 1 and bool(binom.sf(n_right - 1, n, mean) <= level)

    return _largest(is_refuted)


def _of_rounds(correct: Array, claims: Array, rounds: NDArray[np.int64], level: float) -> float:
    """Return the largest multiple of the claims in ρ against which betting on the rounds wins at least 1/``level``."""
    sizes = np.bincount(rounds)
    shares = (np.bincount(rounds, correct) / np.maximum(sizes, 1))[sizes > 0]
    largest = np.zeros(len(sizes))
    np.maximum.at(largest, rounds, claims)
    different, position = np.unique(largest[sizes > 0], return_inverse=True)

    def is_refuted(factor: float) -> bool:
        """Return whether the total winnings over all rounds rule this factor out."""
        paid = shares / largest_accuracy(factor * different, True)[position]
        with np.errstate(divide="ignore"):
            wealth = [np.log1p(bet * (paid - 1)).sum() for bet in BETS]
        return bool(logsumexp(wealth) - np.log(len(BETS)) >= -np.log(level))

    return _largest(is_refuted)


def _largest(is_refuted: Any) -> float:
    """Return the largest factor such that it and all smaller factors are refuted, or 0 if there is none."""
    low, high = 0.0, LARGEST
    if not is_refuted(low):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
