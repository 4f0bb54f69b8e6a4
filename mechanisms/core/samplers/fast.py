"""Fast noise for simulations: double precision, but integers are corrected where rounding could matter.

An integer family computed here still has its exact distribution as long as ``log`` and ``exp`` are right to 40 bits:
a result closer to a decision than that is decided again in rational arithmetic. Integer noise is therefore the same
on every machine. Real-valued noise is as good as double precision and carries the known weakness of it (Mironov 2012).
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.samplers.bits import EXTENSION_BITS, Bits, Counts, Words
from penstock.mechanisms.core.samplers.exact import gaussian_exponent, is_below_exponential, tabled_gaussian

#: Relative error that ``log`` and ``exp`` are trusted to stay below (they are good to about 2**-50).
TRUST = 2.0**-40


def uniform(words: Words) -> NDArray[np.float64]:
    """Multiples of 2**-53 in [0, 1)."""
    return _leading_bits(words, 53) * 2.0**-53


def open_uniform(words: Words) -> NDArray[np.float64]:
    """Midpoints of the 2**53 parts of (0, 1), rounded: never 0, and 1 less often than once in 2**53."""
    return (_leading_bits(words, 53) + 0.5) * 2.0**-53


def exponential(words: Words) -> NDArray[np.float64]:
    """Standard exponential variables."""
    draws: NDArray[np.float64] = -np.log(open_uniform(words))
    return draws


def gaussian(words: Words) -> NDArray[np.float64]:
    """Standard normal variables by inversion."""
    from scipy.special import ndtri  # a tenth of a second that integer noise does without

    # 52 bits keep the midpoints exact, so that none rounds to 1 and becomes infinite.
    draws: NDArray[np.float64] = ndtri((_leading_bits(words, 52) + 0.5) * 2.0**-52)
    return draws


def discrete_laplace(bits: Bits, n_per_row: Counts, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Two-sided geometric noise: a fair sign times a magnitude found by inversion."""
    words = bits.words(0, n_per_row)
    signs: NDArray[np.int64] = 1 - 2 * (words.values & np.uint64(1)).astype(np.int64)
    return signs * laplace_magnitude(words, scales)


def laplace_magnitude(words: Words, scales: NDArray[np.float64]) -> NDArray[np.int64]:
    """Magnitudes with P(≥ m) = 2 a**m / (1 + a), a = exp(-1 / scale), from all but the last bit of each word."""
    # The number of m ≥ 1 with U < P(≥ m) is floor(scale · (ln(2 / (1 + a)) - ln U)).
    midpoints = _leading_bits(words, 53) + 0.5
    with np.errstate(over="ignore"):
        draws = -scales * (np.log1p(np.expm1(-1 / scales) / 2) + np.log(midpoints * 2.0**-53))
    # The nearest place where the floor changes, and how far U's unknown bits and rounding can move the draw.
    change = np.maximum(np.rint(draws), 1.0)
    doubt = 2 * scales / midpoints + draws * TRUST
    values: NDArray[np.int64] = draws.astype(np.int64)
    undecided = np.flatnonzero((np.abs(draws - change) <= doubt) | (midpoints < 1.0))
    for index in undecided.tolist():
        values[index] = _decided_magnitude(words, index, float(scales[index if len(scales) > 1 else 0]))
    return values


def discrete_gaussian(bits: Bits, n_per_row: Counts, sigmas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integer Gaussian noise by the exact tables; rejection, for large sigma, in double precision."""
    return tabled_gaussian(bits, n_per_row, sigmas, discrete_laplace, accept)


def accept(
    words: Words, candidates: NDArray[np.int64], sigmas: NDArray[np.float64], proposals: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """`exact.accept_exactly` in double precision, except for words too close to the probability."""
    exponents = (np.abs(candidates) / sigmas - sigmas / proposals) ** 2 / 2
    probabilities, draws = np.exp(-exponents), uniform(words)
    accepted: NDArray[np.bool_] = draws < probabilities
    for index in np.flatnonzero(np.abs(draws - probabilities) <= TRUST).tolist():
        exponent = gaussian_exponent(int(candidates[index]), float(sigmas[index]), float(proposals[index]))
        accepted[index] = is_below_exponential(int(words.values[index]), exponent, words, index)
    return accepted


def _leading_bits(words: Words, n_bits: int) -> NDArray[np.float64]:
    leading: NDArray[np.float64] = (words.values >> np.uint64(64 - n_bits)).astype(np.float64)
    return leading


def _decided_magnitude(words: Words, index: int, scale: float) -> int:
    """The same magnitude from as many bits of U as it takes; decimal exp and ln are correctly rounded."""
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
