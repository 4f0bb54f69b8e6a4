"""Exact integer noise: the stated distribution bit for bit, from integer arithmetic alone.

Inversion compares lazily drawn bits of one uniform number with tail probabilities. These come from certified
fixed-point arithmetic: every quantity is a pair of Python integers that encloses it, and a result is accepted only when
both ends round down to the same integer; otherwise it is computed again with more bits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.samplers.bits import EXTENSION_BITS, Bits, Counts, Words, until_accepted

#: A first look takes 31 bits of a 32-bit word; the last bit is the sign.
FIRST_BITS = 31


#: Beyond 22 scales a discrete Laplace variable is rarer than one in 2**31.
REACH = 22


#: Tables of magnitudes reach this far; beyond, Laplace variables are made of digits in this base.
TABLED_SCALE, DIGIT = 24.0, 256


#: A table of the discrete Gaussian has about 7 entries per unit of sigma; beyond this it is drawn by rejection.
TABLED_SIGMA = 1024.0
Interval = tuple[int, int]
LaplaceSampler = Callable[[Bits, Counts, NDArray[np.float64]], NDArray[np.int64]]


#: From (words, candidates, sigmas, proposal scales) to which candidates are kept.
Acceptance = Callable[[Words, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]


def discrete_laplace(bits: Bits, n_per_row: Counts, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Two-sided geometric noise, P(z) ∝ exp(-abs(z) / scale); flat positive scales, one per value or one for all."""
    # By table up to scale 24. Beyond, a fair sign times a geometric variable, redrawn where it is "minus 0" (Canonne,
    # Kamath, Steinke 2020, algorithm 2); the geometric variable is put together from its independent digits.

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
    """Integer Gaussian noise, P(z) ∝ exp(-z² / (2 sigma²)): by table, above sigma 1024 by rejection (15 µs each)."""
    return tabled_gaussian(bits, n_per_row, sigmas, discrete_laplace, accept_exactly)


def tabled_gaussian(
    bits: Bits, n_per_row: Counts, sigmas: NDArray[np.float64], laplace: LaplaceSampler, accept: Acceptance
) -> NDArray[np.int64]:
    """Discrete Gaussian by table where sigma is small enough, else by rejection with the given parts."""
    # The rejection keeps y, discrete Laplace of scale t = floor(sigma) + 1, with probability exp(-(abs(y) - sigma²/t)²
    # / (2 sigma²)): Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, algorithm
    # 3.

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


# Inversion.


@dataclass(frozen=True, eq=False)
class InversionTable:
    """Sampler of an integer M ≥ 0 from `thresholds`, which rounds 2**bits · P(M ≥ m) down exactly for m = 1, 2, …."""

    # A uniform number U in [0, 1) whose first bits are the integer w satisfies U < P(M ≥ m) surely if w is below the
    # rounded tail and surely not if w is above it; only w *equal* to a tail needs more bits, which are drawn then. The
    # result, the number of m with U < P(M ≥ m), therefore has exactly the distribution of M (Devroye 1986, section
    # II.2; lazily drawn bits after Knuth and Yao 1976). Tails decrease and end with the first 0 if M has no largest
    # value; the first look takes `bits` bits.

    thresholds: Callable[[int], list[int]]
    bits: int

    @cached_property
    def ascending(self) -> NDArray[np.uint32]:
        """The tails for the first look, smallest first."""
        return np.array(self.thresholds(self.bits)[::-1], dtype=np.uint32)

    def invert(self, words: Words, where: Any) -> NDArray[np.int64]:
        """One value for each of the 32-bit words at the flat positions `where`, from their upper bits."""
        prefixes = words.values[where] >> (32 - self.bits)
        above = self.ascending.searchsorted(prefixes, side="right")
        values: NDArray[np.int64] = len(self.ascending) - above
        undecided = np.flatnonzero(self.ascending[above - 1] == prefixes)
        if undecided.size:
            positions = np.arange(words.values.size)[where]
            for index in undecided.tolist():
                values[index] = self._resolve(int(prefixes[index]), words.extension(int(positions[index])))
        return values

    def _resolve(self, prefix: int, extension: Iterator[int]) -> int:
        bits = self.bits
        for more in extension:
            prefix, bits = prefix << EXTENSION_BITS | more, bits + EXTENSION_BITS
            tails = self.thresholds(bits)[::-1]
            above = bisect_right(tails, prefix)
            if above == 0 or tails[above - 1] != prefix:
                return len(tails) - above
        raise AssertionError("an extension never ends")


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
    """Weights and samplers of the independent digits of G, P(G ≥ m) = exp(-m / scale)."""
    rate, digits = 1 / Fraction(scale), []
    for level in count():
        weight = DIGIT**level
        leading = REACH * scale <= 2 * DIGIT * weight
        thresholds = partial(geometric_thresholds, rate * weight, None if leading else DIGIT)
        digits.append((weight, InversionTable(thresholds, FIRST_BITS)))
        if leading:
            return tuple(digits)
    raise AssertionError("every float has a leading digit")


# Certified tail probabilities.


def exponential_interval(exponent: Fraction, bits: int) -> Interval:
    """Integers that enclose 2**bits · exp(-exponent), a few units apart."""
    if exponent >= bits:
        return 0, 1
    # exp(-x) = exp(-x / 2**halvings) ** (2**halvings); the series is short below 1/16.
    halvings = int(exponent).bit_length() + 4
    precision = bits + 2 * halvings + 16
    scaled = (exponent.numerator << precision) // (exponent.denominator << halvings)
    term = total = 1 << precision
    for n in count(1):
        term = term * scaled // (n << precision)
        total += -term if n % 2 else term
        if not term:
            break
    slack = 2 * n + 4  # under two units a term, one for the argument, one for the rest of the series
    low, high = total - slack, total + slack
    for _ in range(halvings):
        low, high = low * low >> precision, (high * high >> precision) + 1
    extra = precision - bits
    return low >> extra, (high >> extra) + 1


def geometric_thresholds(rate: Fraction, modulus: int | None, bits: int) -> list[int]:
    """Tail probabilities of a geometric variable G, or of G mod `modulus`, rounded down."""
    # P(G ≥ m) = exp(-rate · m); G mod K is independent of G // K, which is again geometric. Entry m - 1 is the largest
    # integer at most 2**bits · P(≥ m), for m = 1, 2, …; without a modulus the list ends with its first 0.
    return _certified(lambda guard: _geometric(rate, modulus, bits, guard))


def laplace_thresholds(rate: Fraction, bits: int) -> list[int]:
    """Tail probabilities of the magnitude of a discrete Laplace variable of given sign, rounded down."""
    # The sign is a fair coin and 0 belongs to both signs by halves, hence P(magnitude ≥ m) = 2 a**m / (1 + a) with a =
    # exp(-rate). The list (m = 1, 2, …) ends with its first 0.
    return _certified(lambda guard: _laplace(rate, bits, guard))


def gaussian_thresholds(variance: Fraction, bits: int) -> list[int]:
    """Tail probabilities of the magnitude of a discrete Gaussian of given sign, rounded down."""
    # As for the discrete Laplace, P(magnitude ≥ m) = 2 Σ_{k ≥ m} g_k / S with g_k = exp(-k² / (2 variance)) and S = Σ
    # over all integers. The list (m = 1, 2, …) ends with its first 0.
    return _certified(lambda guard: _gaussian(variance, bits, guard))


def _geometric(rate: Fraction, modulus: int | None, bits: int, guard: int) -> list[Interval]:
    precision = bits + guard
    one = 1 << precision
    ratio = exponential_interval(rate, precision)
    last = (0, 0) if modulus is None else exponential_interval(rate * modulus, precision)
    # (a**m - a**K) / (1 - a**K), which is a**m without a modulus.
    bottom = one - last[1], one - last[0]
    power = (one, one)
    tails: list[Interval] = []
    while modulus is None or len(tails) < modulus - 1:
        power = _times(power, ratio, precision)
        low = (max(power[0] - last[1], 0) << bits) // bottom[1]
        high = ((power[1] - last[0]) << bits) // max(bottom[0], 1)
        tails.append((low, high))
        if modulus is None and high == 0:
            break
    return tails


def _laplace(rate: Fraction, bits: int, guard: int) -> list[Interval]:
    precision = bits + guard
    one = 1 << precision
    ratio = exponential_interval(rate, precision)
    power, tails = ratio, []
    while True:
        low, high = (2 * power[0] << bits) // (one + ratio[1]), (2 * power[1] << bits) // (one + ratio[0])
        tails.append((low, high))
        if high == 0:
            return tails
        power = _times(power, ratio, precision)


def _gaussian(variance: Fraction, bits: int, guard: int) -> list[Interval]:
    precision = bits + guard
    one = 1 << precision
    ratio = exponential_interval(1 / (2 * variance), precision)
    square = _times(ratio, ratio, precision)
    weight, weights = (one, one), []
    while weight[0]:
        weight = _times(weight, ratio, precision)  # g_m = g_{m-1} · q**(2m-1)
        ratio = _times(ratio, square, precision)
        weights.append(weight)
    # What lies beyond the last weight is less than a geometric series with its ratio.
    low, high = 0, weight[1] * one // (one - ratio[1]) + 1
    sums = []
    for weight in reversed(weights):
        low, high = low + weight[0], high + weight[1]
        sums.append((low, high))
    total = one + 2 * low, one + 2 * high
    tails = [((2 * s[0] << bits) // total[1], (2 * s[1] << bits) // total[0]) for s in reversed(sums)]
    return tails[: next(m for m, tail in enumerate(tails) if tail[1] == 0) + 1]


def _times(left: Interval, right: Interval, precision: int) -> Interval:
    return left[0] * right[0] >> precision, (left[1] * right[1] >> precision) + 1


def _certified(enclose: Callable[[int], list[Interval]]) -> list[int]:
    """Rounded-down values, with guard bits doubled until both ends of every interval agree."""
    # For geometric and Laplace tails this ends because exp of a non-zero rational is transcendental, so that none is an
    # integer over 2**bits. For the Gaussian's sums no such theorem is known to us; were one to fail, this would not
    # end, but never be wrong.
    guard = 64
    while True:
        intervals = enclose(guard)
        if all(low == high for low, high in intervals):
            return [low for low, _ in intervals]
        guard *= 2
