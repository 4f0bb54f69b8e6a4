"""Exact samplers for the discrete Laplace and discrete Gaussian distributions.

Double precision proposes, rational arithmetic decides. A draw is worked out by additions, multiplications and divisions
alone (`portable`), which IEEE 754 rounds correctly on every machine, so that its error has a proved bound; wherever a
decision is nearer than that, it is made from as many further bits as it takes, in arithmetic with certified ends. No
accuracy of a mathematical library is relied upon, and the noise is the same on every machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import portable
from penstock.mechanisms.core.samplers.bits import (
    EXTENSION_BITS,
    Bits,
    Counts,
    Words,
    leading_bits,
    uniform,
    until_accepted,
)

#: Decisions nearer than this are made in rational arithmetic. `portable.log` and `portable.exp` are right to 2**-48 of
#: their value (a handful of roundings of 2**-53 each); what is derived from them below is right to a quarter of this.
RELATIVE_ERROR = 2.0**-44

#: A first look at a table takes 31 bits of a 32-bit word; the last bit is the sign.
FIRST_BITS = 31

#: A table of the discrete Gaussian has about 7 entries per unit of sigma; beyond this it is drawn by rejection.
TABLED_SIGMA = 1024.0
Interval = tuple[int, int]


# Discrete Laplace, by inversion.


def discrete_laplace(bits: Bits, n_per_row: Counts, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw two-sided geometric noise, P(z) ∝ exp(-abs(z) / scale), with one positive scale per value or for all."""
    words = bits.words(0, n_per_row)
    signs: NDArray[np.int64] = 1 - 2 * (words.values & np.uint64(1)).astype(np.int64)
    return signs * laplace_magnitude(words, scales)


def laplace_magnitude(words: Words, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw magnitudes, P(≥ m) = 2 a**m / (1 + a), a = exp(-1 / scale), from a word's bits but the last (the sign)."""
    # The number of m ≥ 1 with U < P(≥ m) is floor(scale · (ln(2 / (1 + a)) - ln U)), where U in [k, k + 1) · 2**-53.
    # The midpoint is off by half a part and half a rounding, 1.25 parts at most, which 2 / midpoint exceeds. The shift
    # is right to 1.8 · 2**-48 (2**-48 of expm1 and of the logarithm), the logarithm to 2**-48 · abs(ln U) with
    # scale · abs(ln U) ≤ draw + scale · ln 2; product and sum are rounded once each. Together that is less than
    # (scale + draw) · 2**-46, a quarter of the doubt.
    midpoints = leading_bits(words, 53) + 0.5
    shift = _shift_of_one(float(scales[0])) if len(scales) == 1 else _shift(scales)
    draws = -scales * (shift + portable.log(midpoints * 2.0**-53))
    change = np.maximum(np.rint(draws), 1.0)  # the nearest place where the floor changes
    doubt = scales * (2 / midpoints + RELATIVE_ERROR) + draws * RELATIVE_ERROR
    values: NDArray[np.int64] = draws.astype(np.int64)
    undecided = np.flatnonzero((np.abs(draws - change) <= doubt) | (midpoints < 1.0))
    for index in undecided.tolist():
        values[index] = _decided_magnitude(words, index, float(scales[index if len(scales) > 1 else 0]))
    return values


def _shift(scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln((1 + a) / 2) with a = exp(-1 / scale)."""
    with np.errstate(over="ignore"):
        return portable.log(1.0 + portable.expm1(-1 / scales) / 2)


@lru_cache(maxsize=256)
def _shift_of_one(scale: float) -> float:
    return float(_shift(np.array([scale]))[0])


def _decided_magnitude(words: Words, index: int, scale: float) -> int:
    """Compute the same magnitude from as many bits of U as needed. Decimal's exp and ln are correctly rounded."""
    prefix, bits = int(words.values[index]) >> 1, 63
    for more in words.extension(index):
        prefix, bits = prefix << EXTENSION_BITS | more, bits + EXTENSION_BITS
        if prefix == 0:
            continue
        with localcontext(Context(prec=bits)):  # far more decimal digits than the prefix has
            b = Decimal(scale)
            shift = (2 / (1 + (-1 / b).exp())).ln()
            margin = b.scaleb(5 - bits // 2)
            low, high = (b * (shift - (Decimal(end) / (1 << bits)).ln()) for end in (prefix + 1, prefix))
            ends = [end.to_integral_value(ROUND_FLOOR) for end in (low - margin, high + margin)]
        if max(ends[0], Decimal(0)) == ends[1]:
            return int(ends[1])
    raise AssertionError("an extension never ends")


# Discrete Gaussian, by table or by rejection.


def discrete_gaussian(bits: Bits, n_per_row: Counts, sigmas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw integer Gaussian noise, P(z) ∝ exp(-z² / (2 sigma²)), from a table or, above sigma 1024, by rejection."""
    # The rejection keeps y, discrete Laplace of scale t = floor(sigma) + 1, with probability exp(-(abs(y) - sigma²/t)²
    # / (2 sigma²)): Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, algorithm
    # 3.

    def propose(fork: Bits, counts: Counts, where: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Propose discrete Laplace variables with scale floor(sigma) + 1 for acceptance by algorithm 3."""
        sigma = of_all[where]
        proposal = np.floor(sigma) + 1
        candidates = discrete_laplace(fork.fork(0), counts, proposal)
        return candidates, accept(fork.words(0, counts), candidates, sigma, proposal)

    of_all = np.broadcast_to(sigmas, (int(np.broadcast_to(n_per_row, (len(bits.seeds),)).sum()),))
    result = until_accepted(bits, n_per_row, propose, of_all > TABLED_SIGMA)
    words = bits.words(0, n_per_row, "<u4")
    signs = 1 - 2 * (words.values & 1).astype(np.int64)  # by a bit that no first look at a table uses
    for sigma, places in _groups_of(sigmas):
        if sigma <= TABLED_SIGMA:
            result[places] = signs[places] * gaussian_magnitude(sigma).invert(words, places)
    return result


def accept(
    words: Words, candidates: NDArray[np.int64], sigmas: NDArray[np.float64], proposals: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return whether each word is below exp(-(abs(y) - sigma²/t)² / (2 sigma²))."""
    # With x = abs(y)/sigma - sigma/t the difference is off by less than (x + 2) · 2**-52, hence the probability by
    # less than x (x + 2) exp(-x²/2) · 2**-52 < 2**-50, beside 2**-48 of itself for the exponential and 2**-53 for U.
    exponents = (np.abs(candidates) / sigmas - sigmas / proposals) ** 2 / 2
    probabilities, draws = portable.exp(-exponents), uniform(words)
    accepted: NDArray[np.bool_] = draws < probabilities
    for index in np.flatnonzero(np.abs(draws - probabilities) <= RELATIVE_ERROR).tolist():
        exponent = gaussian_exponent(int(candidates[index]), float(sigmas[index]), float(proposals[index]))
        accepted[index] = is_below_exponential(int(words.values[index]), exponent, words, index)
    return accepted


def gaussian_exponent(candidate: int, sigma: float, proposal: float) -> Fraction:
    """Return the acceptance probability's exponent as an exact rational number."""
    variance = Fraction(sigma) ** 2
    return (abs(candidate) - variance / int(proposal)) ** 2 / (2 * variance)


def is_below_exponential(prefix: int, exponent: Fraction, words: Words, index: int) -> bool:
    """Return whether a uniform number that starts with the given 64-bit word is below exp(-exponent)."""
    bits, extension = 64, words.extension(index)
    while exponent:
        low, high = exponential_interval(exponent, bits)
        if prefix + 1 <= low:
            return True
        if prefix >= high:
            return False
        prefix, bits = prefix << EXTENSION_BITS | next(extension), bits + EXTENSION_BITS
    return True


@dataclass(frozen=True, eq=False)
class GaussianTable:
    """A sampler for a discrete Gaussian's magnitude M given its sign, which inverts the rounded tail probabilities."""

    # A uniform number U in [0, 1) whose first bits are the integer w satisfies U < P(M ≥ m) surely if w is below the
    # rounded tail and surely not if w is above it; only w *equal* to a tail needs more bits, which are drawn then. The
    # result, the number of m with U < P(M ≥ m), therefore has exactly the distribution of M (Devroye 1986, section
    # II.2; lazily drawn bits after Knuth and Yao 1976). The first look takes `bits` bits.

    variance: Fraction
    bits: int = FIRST_BITS

    @cached_property
    def ascending(self) -> NDArray[np.uint32]:
        """The tail probabilities for the first lookup, in ascending order."""
        return np.array(gaussian_tails(self.variance, self.bits)[::-1], dtype=np.uint32)

    def invert(self, words: Words, where: Any) -> NDArray[np.int64]:
        """Convert the 32-bit words at flat positions `where` to magnitudes by inverting their upper bits."""
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
            tails = gaussian_tails(self.variance, bits)[::-1]
            above = bisect_right(tails, prefix)
            if above == 0 or tails[above - 1] != prefix:
                return len(tails) - above
        raise AssertionError("an extension never ends")


@lru_cache(maxsize=256)
def gaussian_magnitude(sigma: float) -> GaussianTable:
    """Return the cached sampler for the magnitude of a discrete Gaussian given its sign."""
    return GaussianTable(Fraction(sigma) ** 2)


def _groups_of(sigmas: NDArray[np.float64]) -> list[tuple[float, Any]]:
    """Return each distinct sigma with its flat positions."""
    if sigmas.size == 1 or (sigmas == sigmas[0]).all():
        return [(float(sigmas[0]), slice(None))]
    distinct, group = np.unique(sigmas, return_inverse=True)
    order = np.argsort(group, kind="stable")
    return list(zip(distinct.tolist(), np.split(order, np.cumsum(np.bincount(group))[:-1])))


# Certified arithmetic: every quantity is a pair of Python integers that encloses it, and a result is accepted only when
# both ends round down to the same integer; otherwise it is computed again with more bits.


def exponential_interval(exponent: Fraction, bits: int) -> Interval:
    """Return integer bounds on 2**bits · exp(-exponent) that are a few units apart."""
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


def gaussian_tails(variance: Fraction, bits: int) -> list[int]:
    """Return the tails of a discrete Gaussian's magnitude given its sign, times 2**bits, rounded down."""
    # The sign is a fair coin and 0 belongs to both signs by halves, hence P(magnitude ≥ m) = 2 Σ_{k ≥ m} g_k / S with
    # g_k = exp(-k² / (2 variance)) and S = Σ over all integers. The list (m = 1, 2, …) ends with its first 0. Guard
    # bits are doubled until both ends of every interval agree. No theorem known to us says that none of the tails is
    # an integer over 2**bits; were one, this would not end, but never be wrong.
    guard = 64
    while True:
        intervals = _gaussian(variance, bits, guard)
        if all(low == high for low, high in intervals):
            return [low for low, _ in intervals]
        guard *= 2


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
