"""The risk realised by the releases made so far: what each target's adversary believes now.

Pure functions on a flat state of arrays: a forward filter keeps every target's belief for the last windows, and
a backward pass over this horizon revises it with what came later (fixed-lag smoothing).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accountants.inference.prior import MarkovPrior
from accountants.inference.targets import Targets
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
State = dict[str, NDArray[Any]]
_LEAK = 1e-150


def start_beliefs(targets: Targets, horizon: int) -> State:
    """State before the first window.

    Parameters
    ----------
    targets
        The priors, shipped once and not part of the state.
    horizon
        Windows T that are kept: an attack is on the last T locations, and later windows are smoothed into them.

    Returns
    -------
    ``belief`` and ``likelihood`` (horizon, n_targets, n_places), newest window last, and ``n_windows``. Its size
    never changes.
    """
    if horizon < 1:
        raise ParameterError("horizon", horizon, "at least 1")
    shape = (horizon, targets.n_targets, targets.locations.shape[1])
    return {"belief": np.zeros(shape), "likelihood": np.ones(shape), "n_windows": np.zeros((), dtype=np.int64)}


def observe(targets: Targets, state: State, log_likelihood: FloatArray) -> State:
    """Forward filter: take in one window's release.

    Parameters
    ----------
    targets, state
        As from `start_beliefs`; the state is not changed.
    log_likelihood
        (n_targets, n_places) from `Targets.log_likelihood`; all equal when nothing was observed.

    Returns
    -------
    The next state. O(n_targets n_places²) time. A release that a prior excludes restarts that target's belief from
    the release alone.

    Examples
    --------
    >>> targets = Targets.of([MarkovPrior([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])])
    >>> state = start_beliefs(targets, horizon=2)
    >>> state = observe(targets, state, targets.log_likelihood({1}, np.array([1])))
    >>> state = observe(targets, state, targets.log_likelihood(set(), np.array([1])))
    >>> state["belief"][:, 0]
    array([[0. , 1. ],
           [0.1, 0.9]])
    """
    belief, likelihood = np.asarray(state["belief"]), np.asarray(state["likelihood"])
    top = log_likelihood.max(axis=1, keepdims=True)
    weight = np.exp(log_likelihood - np.where(np.isfinite(top), top, 0.0))
    weight[~np.isfinite(top[:, 0])] = 1.0  # seen where the prior never is: the place is known, but has no entry here
    predicted = predict(targets, state)
    joint = (predicted + _LEAK * (targets.locations >= 0)) * weight
    newest = joint / joint.sum(axis=1, keepdims=True)
    return {
        "belief": np.concatenate([belief[1:], newest[None]]),
        "likelihood": np.concatenate([likelihood[1:], weight[None]]),
        "n_windows": np.asarray(state["n_windows"] + 1),
    }


def predict(targets: Targets, state: State) -> FloatArray:
    """Belief about the coming window before its release, (n_targets, n_places).

    A bound on what the coming releases can tell must start here, never from the prior alone: earlier releases may
    have told a lot.
    """
    if int(state["n_windows"]) == 0:
        return targets.initial
    return targets.forward(np.asarray(state["belief"])[-1][:, None, :])[:, 0]


def coming_prior(targets: Targets, state: State, target: int) -> MarkovPrior:
    """Prior of one target for the coming windows, on all locations, to bound what they can tell."""
    known = np.flatnonzero(targets.locations[target] >= 0)
    where = targets.locations[target, known]
    initial = np.zeros(targets.n_locations)
    initial[where] = predict(targets, state)[target, known]
    matrix = np.eye(targets.n_locations)
    own = targets.transition[target if len(targets.transition) > 1 else 0]
    matrix[np.ix_(where, where)] = own[np.ix_(known, known)]
    return MarkovPrior(initial, matrix)


def realised_risk(targets: Targets, state: State, tolerance: int) -> dict[str, FloatArray]:
    """What every adversary can now get right about the last T locations, given the releases made.

    Parameters
    ----------
    targets, state
        After at least one `observe`; T is the horizon, or the windows so far if fewer.
    tolerance
        Wrong guesses that still count as a success.

    Returns
    -------
    ``high`` (n_targets,): bound on the posterior success of any guess, the smallest of Markov's inequality and the
    posterior's genie ball. ``low``: the exact posterior success of guessing each window's most probable location.
    ``guess`` (n_targets, T): that guess, as locations. ``expected_hits``: how many of them are right on average.
    ``marginals`` (n_targets, T, n_places): smoothed beliefs. Later windows still revise all but the oldest rows.
    O(n_targets T tolerance n_places²) time.

    Examples
    --------
    >>> targets = Targets.of([MarkovPrior([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])])
    >>> state = start_beliefs(targets, horizon=2)
    >>> for place in (0, 1):                       # not seen by sensor 1, then seen by it
    ...     state = observe(targets, state, targets.log_likelihood({1} if place else set(), np.array([place])))
    >>> risk = realised_risk(targets, state, tolerance=0)
    >>> risk["marginals"][0].round(3).tolist(), risk["low"].round(3).tolist(), risk["high"].round(3).tolist()
    ([[0.1, 0.9], [0.0, 1.0]], [0.9], [0.9])
    """
    n_steps = min(int(state["n_windows"]), len(state["belief"]))
    if n_steps < 1:
        raise ParameterError("state", "no window observed", "a state after at least one window")
    if tolerance < 0:
        raise ParameterError("tolerance", tolerance, "at least 0")
    belief = np.asarray(state["belief"])[-n_steps:]
    likelihood = np.asarray(state["likelihood"])[-n_steps:]
    marginals, high = _smooth(targets, belief, likelihood, tolerance)
    best = marginals.argmax(axis=-1)
    guess = targets.locations[np.arange(targets.n_targets)[:, None], best]
    expected_hits = marginals.max(axis=-1).sum(axis=-1)
    if tolerance < n_steps:
        high = np.minimum(high, expected_hits / (n_steps - tolerance))
    low = _success_of_guess(targets, belief, likelihood, best, tolerance)
    return {
        "high": np.maximum(np.minimum(high, 1.0), low),
        "low": low,
        "guess": guess,
        "expected_hits": expected_hits,
        "marginals": marginals,
    }


def _smooth(
    targets: Targets, belief: FloatArray, likelihood: FloatArray, tolerance: int
) -> tuple[FloatArray, FloatArray]:
    """Smoothed marginals and the posterior's genie ball in one backward pass.

    ``values`` has one row per number of wrong guesses left, then the probability of the later releases.
    """
    n_steps, n_targets, n_places = belief.shape
    values = np.ones((n_targets, tolerance + 2, n_places))
    marginals = np.empty((n_targets, n_steps, n_places))
    for step in range(n_steps - 1, 0, -1):
        marginals[:, step] = belief[step] * values[:, -1]
        after = values * likelihood[step][:, None, :]
        wrong = _one_wrong(after)
        gain = np.maximum(after - wrong, 0.0)[:, :-1]
        useful = gain.any(axis=(0, 2))
        values = targets.expected(wrong)
        values[:, :-1][:, useful] += targets.best_next(np.ascontiguousarray(gain[:, useful]))
        values = _rescaled(values)
    marginals[:, 0] = belief[0] * values[:, -1]
    after = values * belief[0][:, None, :]
    wrong = _one_wrong(after)
    best = wrong.sum(axis=-1) + np.maximum(after - wrong, 0.0).max(axis=-1)
    return marginals / marginals.sum(axis=-1, keepdims=True), best[:, -2] / best[:, -1]


def _success_of_guess(
    targets: Targets, belief: FloatArray, likelihood: FloatArray, guess: NDArray[np.intp], tolerance: int
) -> FloatArray:
    """Exact posterior probability that a fixed guess has at most ``tolerance`` wrong locations, (n_targets,)."""
    n_steps, n_targets, n_places = belief.shape
    rows = np.arange(n_targets)
    values = np.ones((n_targets, tolerance + 2, n_places))
    for step in range(n_steps - 1, -1, -1):
        after = values * (likelihood[step] if step else belief[0])[:, None, :]
        reached = _one_wrong(after)
        reached[rows, :, guess[:, step]] = after[rows, :, guess[:, step]]
        values = _rescaled(targets.expected(reached)) if step else reached
    total = values.sum(axis=-1)
    return np.asarray(total[:, -2] / total[:, -1])


def _one_wrong(after: FloatArray) -> FloatArray:
    """Values after a wrong guess: one fewer left, none at all if none was left; the total stays."""
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-2], after[:, -1:]], axis=1)


def _rescaled(values: FloatArray) -> FloatArray:
    """Largest total 1 per target, and nothing exactly 0."""
    values += _LEAK
    return np.asarray(values / values[:, -1].max(axis=1)[:, None, None])
