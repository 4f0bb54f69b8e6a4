"""Calibrate epsilon to a goal for the total temporal privacy loss."""

from __future__ import annotations

import math

import numpy as np

from penstock.accountants.correlation.hull import Array
from penstock.accountants.correlation.leakage import Correlation, LeakageFunction, leakage_function
from penstock.mechanisms.core.plugin import ParameterError

_PRECISION = 1e-13  # relative; plans stay this far under the goal, so that rounding cannot pass it


def largest_epsilon(
    goal: float, backward: Correlation = None, forward: Correlation = None, horizon: int | None = None
) -> float:
    """Find the largest constant epsilon that keeps the total temporal loss within a goal at every release.

    Parameters
    ----------
    goal
        Bound on the total temporal loss of every release, in nats, above 0.
    backward, forward
        Matrices or leakage functions; None if the adversary knows none.
    horizon
        Number of releases; None for an endless stream.

    Returns
    -------
    float
        0 if no positive epsilon works: an endless stream in which some step reveals the one before.

    Notes
    -----
    About fifty suprema (endless), or fifty runs over the horizon. Rounded down, so that the loss stays under the goal.

    Examples
    --------
    >>> matrix = [[0.8, 0.2], [0.2, 0.8]]
    >>> round(largest_epsilon(1.0, matrix, matrix), 4), round(largest_epsilon(1.0, matrix, matrix, horizon=3), 4)
    (0.2598, 0.4573)
    >>> largest_epsilon(1.0, np.eye(2), np.eye(2)), round(largest_epsilon(1.0, np.eye(2), np.eye(2), horizon=4), 9)
    (0.0, 0.25)
    """
    if not 0 < goal < math.inf:
        raise ParameterError("goal", goal, "a finite number above 0 (nats)")
    if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1):
        raise ParameterError("horizon", horizon, "a whole number of at least 1, or None for an endless stream")
    before, after = leakage_function(backward), leakage_function(forward)

    def loss(epsilon: float) -> float:
        """Return the largest total loss at a constant epsilon. It increases with epsilon."""
        if horizon is None:
            return before.supremum(epsilon) + after.supremum(epsilon) - epsilon
        leak_on, leak_back = (_constant_leak(epsilon, horizon, leakage) for leakage in (before, after))
        return float((leak_on + leak_back[::-1]).max() + epsilon)

    if loss(goal) <= goal:
        return float(goal)
    safe, unsafe = 0.0, float(goal)
    while unsafe - safe > _PRECISION * unsafe and safe < (middle := 0.5 * (safe + unsafe)) < unsafe:
        if loss(middle) <= goal * (1.0 - _PRECISION):
            safe = middle
        else:
            unsafe = middle
    return safe


def _constant_leak(epsilon: float, horizon: int, leakage: LeakageFunction) -> Array:
    """Return the loss leaked into each of `horizon` releases at a constant epsilon, iterating until convergence."""
    values, incoming = [0.0], leakage(epsilon)
    while len(values) < horizon and incoming > values[-1]:
        values.append(incoming)
        incoming = leakage(incoming + epsilon)
    return np.pad(np.array(values), (0, horizon - len(values)), mode="edge")
