"""Logistic regression that learns sample by sample, its memory a few flat arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.state import State

Array = NDArray[np.float64]


def start_learner(n_features: int) -> State:
    """A learner that has seen nothing: weights and intercept 0.

    Examples
    --------
    >>> sorted(start_learner(2))
    ['intercept', 'mean', 'seen', 'squares', 'weights']
    """
    return {
        "seen": np.asarray(0.0),
        "mean": np.zeros(n_features),
        "squares": np.zeros(n_features),
        "weights": np.zeros(n_features),
        "intercept": np.asarray(0.0),
    }


def learn(features: NDArray[Any], labels: NDArray[np.bool_], rate: float, state: State) -> State:
    """Take in labelled samples, one after the other.

    All of them first enter the running mean and deviation of every feature; then each standardised sample makes one
    step of stochastic gradient descent on the logarithmic loss.

    Parameters
    ----------
    features (n_samples, n_features)
        What was released.
    labels (n_samples,)
        Whether the target is in it.
    rate
        Learning rate of weights and intercept.
    state
        From `start_learner` or an earlier call; never changed.

    Notes
    -----
    O(n_samples·n_features). Equal to river's ``StandardScaler().learn_one`` on all samples followed by
    ``LogisticRegression(SGD(rate), intercept_lr=rate).learn_one`` on each, without a dictionary for every sample.

    Examples
    --------
    >>> state = learn(np.array([[0.0], [2.0]]), np.array([False, True]), 0.1, start_learner(1))
    >>> logits(np.array([[0.0], [2.0]]), state).round(2)
    array([-0.1,  0.1])
    """
    values = np.asarray(features, np.float64)
    state = _measured(values, state)
    rows, signs = _standardised(values, state), np.where(labels, 1.0, -1.0).tolist()
    weights, intercept = state["weights"].copy(), float(state["intercept"])
    for row, sign in zip(rows, signs):
        margin = sign * (float(row @ weights) + intercept)
        # −d loss/d logit = sign·σ(−margin), written so that neither exponential overflows.
        small = math.exp(-abs(margin))
        step = rate * sign * (small if margin > 0 else 1.0) / (1.0 + small)
        weights += step * row
        intercept += step
    return state | {"weights": weights, "intercept": np.asarray(intercept)}


def logits(features: NDArray[Any], state: State) -> Array:
    """Log-odds (n_samples,) that the target is in a sample, as learned so far."""
    scores: Array = _standardised(np.asarray(features, np.float64), state) @ state["weights"] + state["intercept"]
    return scores


def _measured(values: Array, state: State) -> State:
    """Mean and sum of squared deviations with more samples (Chan, Golub, LeVeque 1979)."""
    before, new = float(state["seen"]), len(values)
    mean = values.mean(axis=0)
    apart = mean - state["mean"]
    squares = state["squares"] + ((values - mean) ** 2).sum(axis=0) + apart**2 * (before * new / (before + new))
    return state | {
        "seen": np.asarray(before + new),
        "mean": state["mean"] + apart * (new / (before + new)),
        "squares": squares,
    }


def _standardised(values: Array, state: State) -> Array:
    """Mean 0 and deviation 1; 0 for features that have never varied."""
    deviations = np.sqrt(state["squares"] / max(float(state["seen"]), 1.0))
    # The mean of equal numbers is off by rounding; that must not look like a deviation.
    varies = deviations > 1e-12 * np.maximum(np.abs(state["mean"]), 1.0)
    return np.divide(values - state["mean"], deviations, out=np.zeros_like(values), where=varies)
