"""The stationary distribution of a chain, and the chain seen backwards in time by Bayes' rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from accountants.correlation.hull import Array
from accountants.correlation.matrices import ROW_SUM_TOLERANCE, transition_matrix
from mechanisms.core.errors import ParameterError


def stationary_distribution(matrix: ArrayLike) -> Array:
    """The one distribution that a step leaves unchanged, shape (n,); O(n³), without cancellation.

    Source: W. Grassmann, M. Taksar, D. Heyman, Operations Research 1985 (GTH elimination), on the closed class.

    Raises
    ------
    ParameterError
        More than one set of states is closed, so that there is no single such distribution.

    Examples
    --------
    >>> stationary_distribution([[0.8, 0.2], [0.1, 0.9]]).round(6)
    array([0.333333, 0.666667])
    """
    from scipy.sparse.csgraph import connected_components  # takes longer than all that only reads a configuration

    transitions = transition_matrix(matrix)
    n_classes, label = connected_components(transitions > 0, connection="strong")
    leaving = np.zeros(n_classes, dtype=bool)
    source, target = np.nonzero(transitions)
    leaving[label[source[label[source] != label[target]]]] = True
    if n_classes - leaving.sum() != 1:
        raise ParameterError("matrix", f"{n_classes - leaving.sum()} closed classes of states", "one closed class")
    closed = np.flatnonzero(label == np.flatnonzero(~leaving)[0])
    distribution = np.zeros(len(transitions))
    distribution[closed] = _irreducible_distribution(transitions[np.ix_(closed, closed)])
    return distribution


def _irreducible_distribution(transitions: Array) -> Array:
    """Fold the last state into the others until one is left, then unfold: sums of positive terms only."""
    work = transitions.copy()
    for last in range(len(work) - 1, 0, -1):
        work[:last, last] /= work[last, :last].sum()
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    weight = np.ones(len(work))
    for state in range(1, len(work)):
        weight[state] = weight[:state] @ work[:state, state]
    return np.asarray(weight / weight.sum())


def backward_matrix(forward: ArrayLike, distribution: ArrayLike | None = None) -> Array:
    """Pr(previous = j given now = i) from Pr(next = j given now = i) and the distribution of the previous state.

    Parameters
    ----------
    forward
        Forward transition matrix, shape (n, n).
    distribution
        Probability of each state one step earlier, shape (n,); the stationary one if None.

    Returns
    -------
    Array
        Shape (n, n). A state that is never reached gets a copy of a reached state's row: no adversary ever conditions
        on it, and a repeated row adds no leakage.

    Examples
    --------
    >>> backward_matrix([[0.8, 0.2], [0.1, 0.9]])
    array([[0.8, 0.2],
           [0.1, 0.9]])
    """
    transitions = transition_matrix(forward, "forward")
    if distribution is None:
        before = stationary_distribution(transitions)
    else:
        before = np.asarray(distribution, dtype=float)
        if before.shape != (len(transitions),) or not (before >= 0).all() or abs(before.sum() - 1) > ROW_SUM_TOLERANCE:
            raise ParameterError("distribution", distribution, f"{len(transitions)} probabilities that sum to 1")
    joint = (before[:, None] * transitions).T
    now = joint.sum(axis=1, keepdims=True)
    reached = now.ravel() > 0
    joint[~reached], now[~reached] = joint[now.argmax()], now.max()
    return np.asarray(joint / now)
