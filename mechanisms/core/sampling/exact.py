"""Exact integer noise: the stated distribution bit for bit, from integer arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sampling.bits import EXTENSION_BITS, Bits, Words
from mechanisms.core.sampling.fixed_point import exponential_interval, gaussian_thresholds, geometric_thresholds
from mechanisms.core.sampling.inversion import InversionTable
from mechanisms.core.sampling.rejection import until_accepted

#: Digits of a geometric variable are taken in this base; the leading digit may be larger.
DIGIT = 256
LEADING_DIGIT = 512
#: A table of the discrete Gaussian has about 7 entries per unit of sigma; above this it is drawn by rejection.
LARGEST_TABLED_SIGMA = 1024.0
#: exp(-22) < 2**-31: a geometric variable beyond 22 scales is rarer than one 32-bit word.
REACH = 22

Counts = int | NDArray[np.int64]
LaplaceSampler = Callable[[Bits, Counts, NDArray[np.float64]], NDArray[np.int64]]
#: From (words, candidates, sigmas, proposal scales) to which candidates are kept.
Acceptance = Callable[[Words, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]


@lru_cache(maxsize=256)
def geometric_digits(scale: float) -> tuple[tuple[int, InversionTable], ...]:
    """Weights and samplers of the digits of G, P(G ≥ m) = exp(-m / scale); the digits are independent.

    >>> [weight for weight, _ in geometric_digits(5000.0)]
    [1, 256]
    """
    rate, digits = 1 / Fraction(scale), []
    for level in count():
        weight = DIGIT**level
        leading = REACH * scale <= LEADING_DIGIT * weight
        digits.append((weight, _geometric_table(rate * weight, None if leading else DIGIT)))
        if leading:
            return tuple(digits)
    raise AssertionError("every float has a leading digit")


@lru_cache(maxsize=256)
def gaussian_magnitude(sigma: float) -> InversionTable:
    """Sampler of the magnitude of a discrete Gaussian of given sign, from 31 bits: the last one is the sign."""
    variance = Fraction(sigma) ** 2
    return InversionTable(lambda bits: gaussian_thresholds(variance, bits), bits=31)


def discrete_laplace(bits: Bits, n_per_row: Counts, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Two-sided geometric noise, P(z) ∝ exp(-abs(z) / scale), as the difference of two geometric variables.

    Parameters
    ----------
    bits
        Source of uniform words.
    n_per_row
        Values in each row.
    scales
        Flat scales, all positive, one per value; or one for all, shape (1,).
    """
    groups = [(geometric_digits(scale), where) for scale, where in groups_of(scales)]
    result: NDArray[np.int64] | None = None
    for level in range(max(len(digits) for digits, _ in groups)):
        for sign in (1, -1):
            words = bits.words(2 * level + (sign < 0), n_per_row, "<u4")
            if result is None:
                result = np.zeros(words.values.size, dtype=np.int64)
            for digits, where in groups:
                if level < len(digits):
                    weight, table = digits[level]
                    result[where] += sign * weight * table.invert(words, where)
    assert result is not None
    return result


def discrete_gaussian(bits: Bits, n_per_row: int, sigmas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integer Gaussian noise, P(z) ∝ exp(-z² / (2 sigma²)).

    Parameters as for `discrete_laplace`; by table up to sigma 1024, beyond it by rejection (15 µs a value).
    """
    return tabled_gaussian(bits, n_per_row, sigmas, discrete_laplace, accept_exactly)


def tabled_gaussian(
    bits: Bits, n_per_row: int, sigmas: NDArray[np.float64], laplace: LaplaceSampler, accept: Acceptance
) -> NDArray[np.int64]:
    """Discrete Gaussian by table where sigma is small enough, else by rejection with the given parts.

    The rejection keeps y, discrete Laplace of scale t = floor(sigma) + 1, with probability
    exp(-(abs(y) - sigma²/t)² / (2 sigma²)).

    Source: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, algorithm 3.
    """

    def propose(fork: Bits, counts: Counts, where: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        sigma = all_sigmas[where]
        proposal = np.floor(sigma) + 1
        candidates = laplace(fork.fork(0), counts, proposal)
        return candidates, accept(fork.words(0, counts), candidates, sigma, proposal)

    all_sigmas = np.broadcast_to(sigmas, (len(bits.seeds) * n_per_row,))
    words = bits.words(0, n_per_row, "<u4")
    signs = 1 - 2 * (words.values & 1).astype(np.int64)
    result = until_accepted(bits, n_per_row, propose, all_sigmas > LARGEST_TABLED_SIGMA)
    for sigma, where in groups_of(sigmas):
        if sigma <= LARGEST_TABLED_SIGMA:
            result[where] = signs[where] * gaussian_magnitude(sigma).invert(words, where)
    return result


def accept_exactly(
    words: Words, candidates: NDArray[np.int64], sigmas: NDArray[np.float64], proposals: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether each word is below exp(-(abs(y) - sigma²/t)² / (2 sigma²)), in rational arithmetic (10 µs a value)."""
    rows = zip(words.values.tolist(), candidates.tolist(), sigmas.tolist(), proposals.tolist())
    return np.array(
        [
            is_below_exponential(word, gaussian_exponent(candidate, sigma, proposal), words, index)
            for index, (word, candidate, sigma, proposal) in enumerate(rows)
        ],
        dtype=np.bool_,
    )


def gaussian_exponent(candidate: int, sigma: float, proposal: float) -> Fraction:
    """The exponent of the acceptance probability as the rational number it is."""
    variance = Fraction(sigma) ** 2
    return (abs(candidate) - variance / int(proposal)) ** 2 / (2 * variance)


def is_below_exponential(prefix: int, exponent: Fraction, words: Words, index: int) -> bool:
    """Whether the uniform number that starts with a 64-bit word is below exp(-exponent)."""
    bits, extension = 64, words.extension(index)
    while exponent:
        low, high = exponential_interval(exponent, bits)
        if prefix + 1 <= low:
            return True
        if prefix >= high:
            return False
        prefix, bits = prefix << EXTENSION_BITS | next(extension), bits + EXTENSION_BITS
    return True


def groups_of(scales: NDArray[np.float64]) -> list[tuple[float, Any]]:
    """Distinct scales with the flat positions of each; everything at once where there is one."""
    if scales.size == 1 or (scales == scales[0]).all():
        return [(float(scales[0]), slice(None))]
    distinct, which = np.unique(scales, return_inverse=True)
    order = np.argsort(which, kind="stable")
    return list(zip(distinct.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1])))


def _geometric_table(rate: Fraction, modulus: int | None) -> InversionTable:
    return InversionTable(lambda bits: geometric_thresholds(rate, modulus, bits), bits=32)
