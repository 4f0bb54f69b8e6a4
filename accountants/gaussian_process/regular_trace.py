"""Noise for a trace without an end, with a point at every interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from accountants.gaussian_process.kernels import GaussianProcess
from accountants.gaussian_process.running import Future, endless_tail, running_losses
from accountants.gaussian_process.secrets import Indices
from mechanisms.core.errors import ParameterError

PRECISION = 1e-6


def regular_trace_loss(
    sigma: float,
    interval: float,
    n_points: int,
    secrets: Sequence[Indices],
    axes: Sequence[GaussianProcess],
    radius: float,
    order: float,
) -> float:
    """Bound on the largest loss of some secrets within a trace that has no beginning and no end.

    Parameters
    ----------
    sigma
        Standard deviation of the noise at every point.
    interval
        Time between two points.
    n_points
        Points that are treated exactly; those before and after are bounded (see ``running``).
    secrets
        Subsets of these points, as index arrays; best in the middle of them.
    axes, radius, order
        As in `running_losses`.

    Returns
    -------
    float
        Nats; infinite if ``n_points`` are too few for the length scale. O(n_points³) for each secret and axis.

    Examples
    --------
    >>> axes = (GaussianProcess(length_scale=1.0),)
    >>> [round(regular_trace_loss(1.0, 1.0, n, [np.array([n // 2])], axes, 1.0, 2.0), 4) for n in (9, 21, 41)]
    [1.5308, 1.5305, 1.5305]
    """
    state = {
        "times": interval * np.arange(n_points, dtype=np.float64),
        "noise_variance": np.full((n_points, len(axes)), sigma**2),
        "past": np.array([endless_tail(axis, interval) / sigma**2 for axis in axes]),
    }
    return float(running_losses(state, axes, secrets, radius, order, Future(interval, sigma)).loss.max())


def smallest_regular_sigma(
    goal: float,
    interval: float,
    n_points: int,
    secrets: Sequence[Indices],
    axes: Sequence[GaussianProcess],
    radius: float,
    order: float,
) -> float:
    """Least σ for which `regular_trace_loss` is at most ``goal``, found by bisection.

    Parameters
    ----------
    goal
        Nats, above 0.
    interval, n_points, secrets, axes, radius, order
        As in `regular_trace_loss`.

    Raises
    ------
    ParameterError
        If goal is not above 0, or no σ is enough because the prior never fades (``periodic``).

    Examples
    --------
    >>> axes = (GaussianProcess(length_scale=1.0),)
    >>> round(smallest_regular_sigma(1.0, 1.0, 41, [np.array([20])], axes, 1.0, 2.0), 4)
    1.2605
    """
    if not (math.isfinite(goal) and goal > 0):
        raise ParameterError("goal", goal, "a finite number above 0")
    if any(math.isinf(endless_tail(axis, interval)) for axis in axes):
        raise ParameterError("kernel", "periodic", "one that fades, for a trace without an end")

    def excess(log_sigma: float) -> float:
        """Nats above the goal."""
        return regular_trace_loss(math.exp(log_sigma), interval, n_points, secrets, axes, radius, order) - goal

    largest = max(len(indices) for indices in secrets)
    low = math.log(radius * math.sqrt(0.5 * order * largest / goal))
    if excess(low) <= 0:
        return math.exp(low)
    high = low + 1.0
    while excess(high) > 0:
        low, high = high, high + 1.0
    while high - low > PRECISION:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high)
