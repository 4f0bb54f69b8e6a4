"""Exponential and logarithm functions that give bit-identical results on every machine.

Noise is keyed by the state of a mechanism, so that a step which is retried draws the same noise; a last bit that
differs on another kind of processor would be other noise. NumPy's and the C library's exponentials, logarithms and
powers have such last bits, and so have sums in BLAS. Addition, multiplication, division and square roots are rounded
correctly everywhere: what a mechanism that reads counts keeps in its state is worked out by these alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: ln 2 in two parts: the first has so few bits that a whole number of it is exact.
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")


def expm1(x: Any) -> Array:
    """Compute exp(x) − 1 to a few units in the last place, without losing precision near 0."""
    fraction, power = _reduce_range(x)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.isposinf(x), np.inf, np.ldexp(fraction, power) + (np.ldexp(1.0, power) - 1.0))


def exp(x: Any) -> Array:
    """Compute exp(x) to a few units in the last place."""
    fraction, power = _reduce_range(x)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.isposinf(x), np.inf, np.ldexp(1.0 + fraction, power))


def log(x: Any) -> Array:
    """Compute the natural logarithm of positive numbers to a few units in the last place."""
    mantissa, power = np.frexp(np.asarray(x, np.float64))
    is_small = mantissa < np.sqrt(0.5)
    mantissa, power = np.where(is_small, 2.0 * mantissa, mantissa), power - is_small
    # ln m = 2·artanh(s) with s = (m − 1)/(m + 1), below 0.172 in size: the terms beyond are smaller than 2⁻⁵⁶ of it.
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square, total = s * s, np.zeros_like(s)
    for n in range(21, 1, -2):
        total = square * (total + 1.0 / n)
    return np.asarray(power * _LN2_HIGH + (2.0 * s * (1.0 + total) + power * _LN2_LOW))


def in_order(matrix: Array, columns: Array) -> Array:
    """Multiply a matrix (n, k) by columns (..., k, m), summing over k in a fixed order for reproducible results.

    >>> in_order(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([[3.0], [4.0]])).tolist()
    [[11.0], [4.0]]
    """
    total = matrix[:, :1] * columns[..., :1, :]
    for k in range(1, matrix.shape[1]):
        total += matrix[:, k : k + 1] * columns[..., k : k + 1, :]
    return total


def millionths(values: Any) -> Array:
    """Round values computed by non-portable functions to a millionth before they enter a release or state.

    Values that differ by 10⁻¹³ from one processor to another are then the same but for one in ten million.

    >>> millionths(np.array([0.1 + 0.2, 1e9 + 1e-7])).tolist()
    [0.3, 1000000000.0]
    """
    return np.asarray(np.round(values, 6))


def _reduce_range(x: Any) -> tuple[Array, NDArray[np.int64]]:
    """Return exp(r) − 1 and k for x = k·ln 2 + r with abs(r) at most ln 2 / 2. Clamp x to a double's range."""
    x = np.clip(np.asarray(x, np.float64), -800.0, 800.0)
    power = np.rint(x / _LN2_HIGH)
    r = x - power * _LN2_HIGH - power * _LN2_LOW
    total = np.zeros_like(r)
    for n in range(16, 1, -1):
        total = (total + 1.0) * (r / n)
    return (total + 1.0) * r, power.astype(np.int64)
