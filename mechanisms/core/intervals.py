"""Intervals for counts: convert between a standard deviation and the shortest 95 % interval."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Probability that a stated interval holds the count; quantile of a normal distribution that belongs to it.
LEVEL, QUANTILE = 0.95, 1.959964
#: Variance of the rounding to whole numbers, by which that of the normal that stands for a count is larger (Sheppard).
ROUNDING = 1.0 / 12.0
#: Standard deviation from which on an interval reaches one person.
LEAST = 0.225
#: The least that a value, and a variance, are taken to be where they divide.
TINY = 1e-6


def margin(value: Array, deviation: Array) -> Array:
    """Return the half-width of a count's shortest 95 % interval, given its released value and standard deviation.

    The count is normal with both, given that it is not negative (the highest-density interval of a truncated normal).
    It is a whole number: the normal that stands for it has a variance larger by 1/12 (Sheppard 1898). The interval is
    symmetric around a value that is far from 0, else from 0 to ``value + margin``. It reaches at least one person far,
    unless the deviation alone rules out that an error of one is as likely as 5 %.

    ``value``, ``deviation``: at least 0, of one shape; NaN: not known.
    """
    stated = deviation
    deviation = np.where(stated > 0, np.sqrt(np.square(stated) + ROUNDING), stated)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(deviation > 0, value / deviation, np.inf)
    half = deviation * _quantile(distance)
    # An error of one person or more is rarer than 5 % for sure only where its mean square is below that (Chebyshev).
    return np.asarray(np.where(np.square(stated) > 1 - LEVEL, np.maximum(half, 1.0), half))


def deviation_of(value: Array, half: Array) -> Array:
    """Return the standard deviation for a given half-width. This is the inverse of `margin`."""
    distances, ratios = _half_widths()
    ratio = half / np.maximum(value, TINY)
    distance = np.exp(np.interp(-np.log(np.maximum(ratio, TINY)), -np.log(ratios), np.log(distances)))
    # Near 0 and far from it the interval is as wide as without a bound at 0.
    is_between = (ratio < ratios[0]) & (ratio > ratios[-1])
    deviation = np.where(is_between, np.maximum(value, TINY) / distance, half / QUANTILE)
    return np.asarray(np.sqrt(np.maximum(np.square(deviation) - ROUNDING, 0.0)))


@cache
def _half_widths() -> tuple[Array, Array]:
    """Return a grid of values in standard deviations, and the ratio of half-width to value at each of them."""
    distances = np.geomspace(1e-2, 10.0, 20_000)
    return distances, _quantile(distances) / distances


def _quantile(distance: Array) -> Array:
    """Return the half-width of an interval given the value's distance from 0, both in standard deviations."""
    from scipy.special import ndtr, ndtri  # loaded where a deviation is stated

    below = ndtr(-distance)
    symmetric = -ndtri((1.0 - LEVEL * (1.0 - below)) / 2.0)
    return np.asarray(np.where(symmetric <= distance, symmetric, ndtri(LEVEL + (1.0 - LEVEL) * below)))
