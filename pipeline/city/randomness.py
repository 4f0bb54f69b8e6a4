"""Randomness that can be looked up: the same seed, purpose and step always give the same numbers."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What random numbers are for; different purposes are independent."""

    LAYOUT = 0
    HOME = 1
    WORK = 2
    START = 3
    RESTART = 4
    MOVE = 5
    ERRAND = 6
    NUMBER = 7
    TIME = 8
    LATITUDE = 9
    LONGITUDE = 10
    DUPLICATE = 11
    DELAY = 12


def uniforms(seed: int, purpose: Purpose, step: int, n: int) -> NDArray[np.float64]:
    """Draw ``n`` numbers from [0, 1) that depend on the arguments only, shape (n,).

    Counter-based: any step costs the same, whatever was drawn before.

    References
    ----------
    J. Salmon, M. Moraes, R. Dror, D. Shaw. Parallel random numbers: as easy as 1, 2, 3. SC 2011 (Philox).

    Examples
    --------
    >>> bool((uniforms(7, Purpose.MOVE, 3, 2) == uniforms(7, Purpose.MOVE, 3, 5)[:2]).all())
    True
    """
    bits = np.random.Philox(key=np.array([seed, purpose], np.uint64), counter=np.array([0, 0, 0, step], np.uint64))
    return np.random.Generator(bits).random(n)


def choose(cumulative: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Index drawn by inverting a cumulative distribution of shape (k,), one for each uniform number."""
    return np.minimum(np.searchsorted(cumulative, uniform, side="right"), len(cumulative) - 1)
