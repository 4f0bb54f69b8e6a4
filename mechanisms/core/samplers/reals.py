"""Real-valued noise in double precision, which has the known weakness of floating-point noise (Mironov 2012)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core.samplers.bits import Words


def uniform(words: Words) -> NDArray[np.float64]:
    """Return uniform multiples of 2**-53 in [0, 1)."""
    return leading_bits(words, 53) * 2.0**-53


def open_uniform(words: Words) -> NDArray[np.float64]:
    """Return rounded midpoints of 2**53 equal parts of (0, 1): never 0, and 1 less often than once in 2**53."""
    return (leading_bits(words, 53) + 0.5) * 2.0**-53


def exponential(words: Words) -> NDArray[np.float64]:
    """Return standard exponential variables."""
    draws: NDArray[np.float64] = -np.log(open_uniform(words))
    return draws


def gaussian(words: Words) -> NDArray[np.float64]:
    """Return standard normal variables, by inversion."""
    from scipy.special import ndtri  # a tenth of a second that integer noise does without

    # 52 bits keep the midpoints exact, so that none rounds to 1 and becomes infinite.
    draws: NDArray[np.float64] = ndtri((leading_bits(words, 52) + 0.5) * 2.0**-52)
    return draws


def leading_bits(words: Words, n_bits: int) -> NDArray[np.float64]:
    """Return the leading bits of every 64-bit word, as a whole number."""
    leading: NDArray[np.float64] = (words.values >> np.uint64(64 - n_bits)).astype(np.float64)
    return leading
