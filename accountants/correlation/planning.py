"""Choice of epsilons so that the total temporal privacy loss never exceeds a goal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from penstock.accountants.correlation.hull import Array
from penstock.accountants.correlation.leakage import Correlation, LeakageFunction, leakage_function
from penstock.mechanisms.core.plugin import ParameterError

_PRECISION = 1e-13  # relative; plans stay this far under the goal, so that rounding cannot pass it


def largest_epsilon(
    goal: float, backward: Correlation = None, forward: Correlation = None, horizon: int | None = None
) -> float:
    """Return the largest constant epsilon that keeps the total temporal loss at or below a goal at every release.

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
    _check(goal, horizon)
    before, after = leakage_function(backward), leakage_function(forward)
    if horizon is None:
        return _largest(goal, lambda epsilon: before.supremum(epsilon) + after.supremum(epsilon) - epsilon)
    return _largest(goal, lambda epsilon: _largest_total(epsilon, horizon, before, after))


def epsilon_schedule(goal: float, horizon: int, backward: Correlation = None, forward: Correlation = None) -> Array:
    """Return epsilons that keep the total loss of `horizon` releases at the goal. The first and the last are larger.

    The middle releases get the epsilon of an endless stream; the first, which has nothing before it, gets what the
    backward loss converges to, so that it is there at once, and the last what the forward loss converges to.

    `goal`: bound on the total temporal loss of every release, in nats, above 0. `backward`, `forward`: matrices or
    leakage functions; None if the adversary knows none.

    Returns (horizon,). Where no positive epsilon lasts for ever, the constant `largest_epsilon` of the
    horizon.

    Source: Cao et al., TKDE 2019, the allocation by quantification for finite series.

    >>> matrix = [[0.8, 0.2], [0.2, 0.8]]
    >>> epsilon_schedule(1.0, 4, matrix, matrix).round(4)
    array([0.6299, 0.2598, 0.2598, 0.6299])
    """
    _check(goal, horizon)
    before, after = leakage_function(backward), leakage_function(forward)
    epsilon = largest_epsilon(goal, before, after)
    if horizon == 1 or epsilon == 0.0:
        return np.full(horizon, largest_epsilon(goal, before, after, horizon))
    schedule = np.full(horizon, epsilon)
    schedule[0], schedule[-1] = before.supremum(epsilon), after.supremum(epsilon)
    return schedule


def _check(goal: float, horizon: int | None) -> None:
    if not 0 < goal < math.inf:
        raise ParameterError("goal", goal, "a finite number above 0 (nats)")
    if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1):
        raise ParameterError("horizon", horizon, "a whole number of at least 1, or None for an endless stream")


def _largest_total(epsilon: float, horizon: int, before: LeakageFunction, after: LeakageFunction) -> float:
    leak_on, leak_back = (_constant_leak(epsilon, horizon, leakage) for leakage in (before, after))
    return float((leak_on + leak_back[::-1]).max() + epsilon)


def _constant_leak(epsilon: float, horizon: int, leakage: LeakageFunction) -> Array:
    """Return the loss that leaks into each of `horizon` releases at a constant epsilon, computed until it converges."""
    values, incoming = [0.0], leakage(epsilon)
    while len(values) < horizon and incoming > values[-1]:
        values.append(incoming)
        incoming = leakage(incoming + epsilon)
    return np.pad(np.array(values), (0, horizon - len(values)), mode="edge")


def _largest(goal: float, loss: Callable[[float], float]) -> float:
    """Return the largest epsilon in [0, goal] with loss(epsilon) <= goal, rounded down. The loss must be increasing."""
    if loss(goal) <= goal:
        return float(goal)
    safe, unsafe = 0.0, float(goal)
    while unsafe - safe > _PRECISION * unsafe and safe < (middle := 0.5 * (safe + unsafe)) < unsafe:
        if loss(middle) <= goal * (1.0 - _PRECISION):
            safe = middle
        else:
            unsafe = middle
    return safe
