"""Certified fixed-point arithmetic with Python integers: exponentials and tail probabilities, rounded down exactly.

Every quantity is carried as a pair of integers that encloses it. A result is accepted only when both ends round
down to the same integer; otherwise it is computed again with more bits. No floating-point number takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import count

Interval = tuple[int, int]


def exponential_interval(exponent: Fraction, bits: int) -> Interval:
    """Integers that enclose 2**bits · exp(-exponent), a few units apart.

    Examples
    --------
    >>> low, high = exponential_interval(Fraction(1), 20)
    >>> low <= 2**20 * 0.36787944117144233 <= high
    True
    """
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
    """Tail probabilities of a geometric variable, or of its remainder by a modulus, rounded down.

    Parameters
    ----------
    rate
        P(G ≥ m) = exp(-rate · m).
    modulus
        None for G itself, K for G mod K (which is independent of G // K, again geometric).
    bits
        Entry m - 1 is the largest integer at most 2**bits · P(≥ m), for m = 1, 2, …; without a modulus the
        list ends with its first 0.
    """
    return _certified(lambda guard: _geometric(rate, modulus, bits, guard))


def laplace_thresholds(rate: Fraction, bits: int) -> list[int]:
    """Tail probabilities of the magnitude of a discrete Laplace variable of given sign, rounded down.

    The sign is a fair coin and 0 belongs to both signs by halves, hence P(magnitude ≥ m) = 2 a**m / (1 + a) with
    a = exp(-rate). The list (m = 1, 2, …) ends with its first 0.
    """
    return _certified(lambda guard: _laplace(rate, bits, guard))


def gaussian_thresholds(variance: Fraction, bits: int) -> list[int]:
    """Tail probabilities of the magnitude of a discrete Gaussian of given sign, rounded down.

    As for the discrete Laplace, P(magnitude ≥ m) = 2 Σ_{k ≥ m} g_k / S with
    g_k = exp(-k² / (2 variance)) and S = Σ over all integers. The list (m = 1, 2, …) ends with its first 0.
    """
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
    """Raise the number of guard bits until both ends of every interval agree.

    For geometric and Laplace tails this ends because exp of a non-zero rational is transcendental, so that none is an
    integer over 2**bits. For the Gaussian's sums no such theorem is known to us; were one to fail, this would not end,
    but never be wrong.
    """
    guard = 64
    while True:
        intervals = enclose(guard)
        if all(low == high for low, high in intervals):
            return [low for low, _ in intervals]
        guard *= 2
