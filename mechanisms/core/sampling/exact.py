"""Exact integer noise: the stated distribution bit for bit, from integer arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sampling.bits import EXTENSION_BITS, Bits, Counts, Words
from mechanisms.core.sampling.fixed_point import (
    exponential_interval,
    gaussian_thresholds,
    geometric_thresholds,
    laplace_thresholds,
)
from mechanisms.core.sampling.inversion import InversionTable
from mechanisms.core.sampling.rejection import until_accepted

#: A first look takes 31 bits of a 32-bit word; the last bit is the sign.
FIRST_BITS = 31
#: Beyond 22 scales a discrete Laplace variable is rarer than one in 2**31.
REACH = 22
#: Tables of magnitudes reach this far; beyond, Laplace variables are made of digits in this base.
TABLED_SCALE, DIGIT = 24.0, 256
#: A table of the discrete Gaussian has about 7 entries per unit of sigma; beyond this it is drawn by rejection.
TABLED_SIGMA = 1024.0

LaplaceSampler = Callable[[Bits, Counts, NDArray[np.float64]], NDArray[np.int64]]
#: From (words, candidates, sigmas, proposal scales) to which candidates are kept.
Acceptance = Callable[[Words, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]


@lru_cache(maxsize=256)
def laplace_magnitude(scale: float) -> InversionTable:
    """Sampler of the magnitude of a discrete Laplace variable of given sign."""
    rate = 1 / Fraction(scale)
    return InversionTable(lambda bits: laplace_thresholds(rate, bits), FIRST_BITS)


@lru_cache(maxsize=256)
def gaussian_magnitude(sigma: float) -> InversionTable:
    """Sampler of the magnitude of a discrete Gaussian variable of given sign."""
    variance = Fraction(sigma) ** 2
    return InversionTable(lambda bits: gaussian_thresholds(variance, bits), FIRST_BITS)


@lru_cache(maxsize=256)
def geometric_digits(scale: float) -> tuple[tuple[int, InversionTable], ...]:
    """Weights and samplers of the digits of G, P(G ≥ m) = exp(-m / scale); the digits are independent.

    >>> [weight for weight, _ in geometric_digits(5000.0)]
    [1, 256]
    """
    rate, digits = 1 / Fraction(scale), []
    for level in count():
        weight = DIGIT**level
        leading = REACH * scale <= 2 * DIGIT * weight
        digits.append((weight, _digit(rate * weight, None if leading else DIGIT)))
        if leading:
            return tuple(digits)
    raise AssertionError("every float has a leading digit")


def discrete_laplace(bits: Bits, n_per_row: Counts, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Two-sided geometric noise, P(z) ∝ exp(-abs(z) / scale).

    Parameters
    ----------
    bits
        Source of uniform words.
    n_per_row
        Values in each row.
    scales
        Flat scales, all positive, one per value; or one for all, shape (1,).

    Notes
    -----
    By table up to scale 24. Beyond, a fair sign times a geometric variable, redrawn where it is "minus 0" (Canonne,
    Kamath, Steinke 2020, algorithm 2); the geometric variable is put together from its independent digits.
    """

    def propose(fork: Bits, counts: Counts, where: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A signed geometric variable, refused where it is "minus 0"."""
        groups = [(geometric_digits(scale), places) for scale, places in groups_of(of_all[where])]
        first = fork.words(0, counts, "<u4")
        signs, values = _signs(first), np.zeros(where.size, dtype=np.int64)
        for level in range(max(len(digits) for digits, _ in groups)):
            words = fork.words(level, counts, "<u4") if level else first
            for digits, places in groups:
                if level < len(digits):
                    weight, table = digits[level]
                    values[places] += weight * table.invert(words, places)
        return signs * values, (signs > 0) | (values > 0)

    of_all = np.broadcast_to(scales, (_size(bits, n_per_row),))
    result = until_accepted(bits, n_per_row, propose, of_all > TABLED_SCALE)
    _fill_from_tables(result, bits.words(0, n_per_row, "<u4"), scales, laplace_magnitude, TABLED_SCALE)
    return result


def discrete_gaussian(bits: Bits, n_per_row: Counts, sigmas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integer Gaussian noise, P(z) ∝ exp(-z² / (2 sigma²)).

    Parameters as for `discrete_laplace`; by table up to sigma 1024, beyond it by rejection (15 µs a value).
    """
    return tabled_gaussian(bits, n_per_row, sigmas, discrete_laplace, accept_exactly)


def tabled_gaussian(
    bits: Bits, n_per_row: Counts, sigmas: NDArray[np.float64], laplace: LaplaceSampler, accept: Acceptance
) -> NDArray[np.int64]:
    """Discrete Gaussian by table where sigma is small enough, else by rejection with the given parts.

    The rejection keeps y, discrete Laplace of scale t = floor(sigma) + 1, with probability
    exp(-(abs(y) - sigma²/t)² / (2 sigma²)).

    Source: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, algorithm 3.
    """

    def propose(fork: Bits, counts: Counts, where: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A discrete Laplace variable of scale floor(sigma) + 1, kept by algorithm 3."""
        sigma = of_all[where]
        proposal = np.floor(sigma) + 1
        candidates = laplace(fork.fork(0), counts, proposal)
        return candidates, accept(fork.words(0, counts), candidates, sigma, proposal)

    of_all = np.broadcast_to(sigmas, (_size(bits, n_per_row),))
    result = until_accepted(bits, n_per_row, propose, of_all > TABLED_SIGMA)
    _fill_from_tables(result, bits.words(0, n_per_row, "<u4"), sigmas, gaussian_magnitude, TABLED_SIGMA)
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


def _fill_from_tables(
    result: NDArray[np.int64],
    words: Words,
    scales: NDArray[np.float64],
    table_of: Callable[[float], InversionTable],
    largest: float,
) -> None:
    signs = _signs(words)
    for scale, places in groups_of(scales):
        if scale <= largest:
            result[places] = signs[places] * table_of(scale).invert(words, places)


def _signs(words: Words) -> NDArray[np.int64]:
    """Fair signs from the last bit of each word, which no first look uses."""
    return 1 - 2 * (words.values & 1).astype(np.int64)


def _size(bits: Bits, n_per_row: Counts) -> int:
    return int(np.broadcast_to(n_per_row, (len(bits.seeds),)).sum())


def _digit(rate: Fraction, modulus: int | None) -> InversionTable:
    return InversionTable(lambda bits: geometric_thresholds(rate, modulus, bits), FIRST_BITS)
