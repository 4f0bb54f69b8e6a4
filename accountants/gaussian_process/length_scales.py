"""A class of priors: every length scale up to a maximum.

Meehan and Chaudhuri (2021) take the longest length scale for the worst. That holds for single secret points as far as
we could see, and not for sets of them: see ``docs/conditional_inferential.md``. So the class is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from accountants.gaussian_process.kernels import CORRELATIONS, Array
from accountants.gaussian_process.noise import checked_times
from mechanisms.core.errors import ParameterError

POINTS_PER_FACTOR_E = 8
STEEPNESS = 2.0
MOST_EVALUATIONS = 10_000


def shortest_length_scale(times: ArrayLike, maximum: float, kernel: str = "rbf", period: float | None = None) -> float:
    """Length scale below which no two points of a trace are related any more (correlation under e⁻³⁰).

    Parameters
    ----------
    times, kernel, period
        As in `conditional_inferential_loss`.
    maximum
        Returned when no two points differ, and never exceeded.

    Examples
    --------
    >>> shortest_length_scale([0.0, 3.0, 33.0], maximum=10.0)
    0.1
    """
    if kernel not in CORRELATIONS:
        raise ParameterError("kernel", kernel, "one of " + ", ".join(CORRELATIONS))
    points = checked_times(times)
    lags = np.abs(np.subtract.outer(points, points))
    if kernel == "periodic":
        lags = np.abs(np.sin(np.pi * lags / (period or math.nan)))
    apart = lags[lags > 1e-9 * lags.max(initial=0.0)]
    return min(float(apart.min()) / 30.0, maximum) if apart.size else maximum


def worst_length_scale(
    quantity: Callable[[float], float],
    times: ArrayLike,
    maximum: float,
    kernel: str = "rbf",
    period: float | None = None,
    tolerance: float = 1e-3,
) -> tuple[float, float]:
    """Largest value of a positive quantity over all length scales up to ``maximum``.

    The scale is laid out in logarithms, eight points to a factor e, and every interval is halved that could still
    hide a value more than ``tolerance`` above the best one, if the quantity is nowhere more than twice as steep as
    seen around the interval. The figure returned has the tolerance added.

    Parameters
    ----------
    quantity
        Function of the length scale: a loss, or the σ for a goal.
    times, kernel, period
        As in `conditional_inferential_loss`; they say where the scale may start (`shortest_length_scale`).
    maximum
        Longest length scale of the class, above 0.
    tolerance
        Relative allowance, above 0.

    Returns
    -------
    value, length_scale
        (1 + tolerance) times the largest value seen, and where it was seen. About a hundred evaluations.

    Raises
    ------
    ParameterError
        If maximum or tolerance is not above 0.

    Examples
    --------
    Two secret points side by side: the longest length scale is not the worst.

    >>> from accountants.gaussian_process.loss import conditional_inferential_loss
    >>> def loss(length_scale):
    ...     return conditional_inferential_loss([0, 1, 2, 3], [1, 2], 1.5, length_scale, 1.0, 2.0, nugget=0.01)[0]
    >>> value, length_scale = worst_length_scale(loss, [0, 1, 2, 3], maximum=15.0)
    >>> length_scale < 4.0 and value > 3.0 * loss(15.0)
    True
    """
    if not (math.isfinite(maximum) and maximum > 0):
        raise ParameterError("maximum", maximum, "a finite number above 0")
    if not (0 < tolerance < 1):
        raise ParameterError("tolerance", tolerance, "a number between 0 and 1")
    start = math.log(shortest_length_scale(times, maximum, kernel, period))
    end = math.log(maximum)
    logs = np.linspace(start, end, max(2, math.ceil(POINTS_PER_FACTOR_E * (end - start)) + 1)) if start < end else [end]
    at = np.asarray(logs, dtype=np.float64)
    values = np.array([quantity(_length_scale(log, maximum)) for log in at])
    while len(at) < MOST_EVALUATIONS:
        doubtful = np.flatnonzero(_possible(at, values) > (1.0 + tolerance) * values.max())
        if not doubtful.size:
            break
        middles = 0.5 * (at[doubtful] + at[doubtful + 1])
        values = np.insert(values, doubtful + 1, [quantity(_length_scale(log, maximum)) for log in middles])
        at = np.insert(at, doubtful + 1, middles)
    best = int(np.argmax(values))
    return (1.0 + tolerance) * float(values[best]), _length_scale(float(at[best]), maximum)


def _length_scale(log: float, maximum: float) -> float:
    return min(math.exp(log), maximum)


def _possible(at: Array, values: Array) -> Array:
    """What each interval could hold at most, given the slopes around it."""
    widths = np.diff(at)
    slopes = np.abs(np.diff(values)) / widths
    padded = np.pad(slopes, 1)
    around = np.maximum(np.maximum(padded[:-2], padded[1:-1]), padded[2:]) if slopes.size else slopes
    highest: Array = 0.5 * (values[:-1] + values[1:] + STEEPNESS * around * widths)
    return np.maximum(highest, np.maximum(values[:-1], values[1:]))
