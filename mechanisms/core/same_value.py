"""How far apart two noisy releases of the *same* value are expected to be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def expected_difference(family: str, scale: Any, other: Any) -> NDArray[np.float64]:
    """E|Z₁ − Z₂| of independent noise of two scales.

    Parameters
    ----------
    family
        ``laplace``: (b₁² + b₁b₂ + b₂²)/(b₁ + b₂), that is 1.5 b for equal scales. ``discrete_laplace``: the exact sum
        over integers, from the partial fractions of the two generating functions.
    scale, other
        Scales b₁ and b₂, numbers or arrays.

    Examples
    --------
    >>> float(expected_difference("laplace", 2.0, 2.0))
    3.0
    >>> round(float(expected_difference("discrete_laplace", 2.0, 2.0)), 4)
    2.9361
    """
    b, c = np.asarray(scale, np.float64), np.asarray(other, np.float64)
    if family == "laplace":
        total = b + c
        return np.where(total == 0, 0.0, (b * b + b * c + c * c) / np.where(total == 0, 1.0, total))
    # Equal scales are a removable singularity; pulling them apart by 1e-4 changes the result by 1e-9 of itself.
    middle = (b + c) / 2
    close = np.abs(b - c) < 1e-4 * middle
    p = _ratio(np.where(close, middle * (1 + 5e-5), b))
    q = _ratio(np.where(close, middle * (1 - 5e-5), c))
    gap = np.where(p == q, 1.0, (p - q) * (1 - p * q))
    value = 2 * (1 - p) ** 2 * (1 - q) ** 2 / gap * (_moment(p) - _moment(q))
    return np.where(p == q, 0.0, value)


def _ratio(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-1 / np.where(scale == 0, 1.0, scale)) * (scale > 0)


def _moment(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return p**2 / ((1 - p) ** 3 * (1 + p))
