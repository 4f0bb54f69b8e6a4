"""Transition matrices: checked, read, built, estimated, and reversed in time."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from penstock.accountants.correlation.hull import Array
from penstock.mechanisms.core.plugin import DataError, ParameterError

if TYPE_CHECKING:
    from scipy import sparse


ROW_SUM_TOLERANCE = 1e-6  # matrices come from files with few digits; rows are rescaled to exactly 1


def transition_matrix(matrix: ArrayLike | sparse.sparray | sparse.spmatrix, name: str = "matrix") -> Array:
    """Checked dense copy of a row-stochastic matrix, rows rescaled so that they sum to 1 to rounding.

    `matrix`: shape (n, n), dense or scipy sparse; rows sum to 1 within 1e-6.

    Examples
    --------
    >>> transition_matrix([[0.5, 0.5], [0.0, 1.0]])
    array([[0.5, 0.5],
           [0. , 1. ]])
    >>> transition_matrix([[0.5, 0.6], [0.0, 1.0]], "forward")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: forward: 'row 0 with sum 1.1' is not allowed; it must be ...
    """
    checked = checked_matrix(matrix, name)
    return np.asarray(checked.toarray() if _is_sparse(checked) else checked)


def checked_matrix(matrix: Any, name: str = "matrix") -> Any:
    """As `transition_matrix`, but a sparse matrix stays sparse (CSR)."""
    if is_sparse := _is_sparse(matrix):
        from scipy import sparse  # takes longer than all that only reads a configuration
    try:
        checked: Any = sparse.csr_array(matrix, dtype=float) if is_sparse else np.array(matrix, dtype=float)
    except (TypeError, ValueError) as error:
        raise ParameterError(name, matrix, "a square matrix of numbers") from error
    if checked.ndim != 2 or checked.shape[0] != checked.shape[1] or checked.shape[0] == 0:
        raise ParameterError(name, f"shape {checked.shape}", "a square matrix, shape (n, n) with n at least 1")
    entries = checked.data if is_sparse else checked.ravel()
    wrong = ~(np.isfinite(entries) & (entries >= 0))
    if wrong.any():
        entry = int(wrong.argmax())
        row = np.searchsorted(checked.indptr, entry, side="right") - 1 if is_sparse else entry // len(checked)
        raise ParameterError(name, f"row {row} with entry {entries[entry]:g}", "finite and not negative everywhere")
    sums = np.asarray(checked.sum(axis=1)).ravel()
    row = int(np.abs(sums - 1.0).argmax())
    if abs(sums[row] - 1.0) > ROW_SUM_TOLERANCE:
        raise ParameterError(name, f"row {row} with sum {sums[row]:.9g}", "row-stochastic: every row sums to 1")
    return sparse.csr_array(sparse.diags_array(1.0 / sums) @ checked) if is_sparse else checked / sums[:, None]


def _is_sparse(matrix: Any) -> bool:
    """`scipy.sparse.issparse`, without loading it."""
    return hasattr(matrix, "tocsr")


def read_matrix(path: str | os.PathLike[str]) -> Array:
    """Transition matrix from a ``.npy`` file or a comma-separated ``.csv`` file without header."""
    path = Path(path)
    try:
        if path.suffix == ".npy":
            matrix = np.load(path, allow_pickle=False)
        elif path.suffix == ".csv":
            matrix = np.loadtxt(path, delimiter=",", ndmin=2)
        else:
            raise DataError(f"{path}: a matrix file must end in .npy or .csv")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable matrix of numbers: {error}") from error
    return transition_matrix(matrix, name=str(path))


def laplacian_smoothing_matrix(n: int, s: float) -> Array:
    """Matrix of n states that stay with weight 1 + s and move with weight s: the smaller s, the stronger.

    Source: Cao et al. (TKDE 2019), section on synthetic data: P_ij = (1[i=j] + s) / sum over k of (1[j=k] + s).

    >>> laplacian_smoothing_matrix(2, 1.0).round(3)
    array([[0.667, 0.333],
           [0.333, 0.667]])
    """
    _check_size("n", n)
    if not 0 <= s < math.inf:
        raise ParameterError("s", s, "a finite number of at least 0")
    return (np.eye(n) + s) / (1.0 + n * s)


def chain_matrix(n: int, tau: float) -> Array:
    """Matrix of a walk on a line of n places: P[x, y] proportional to exp(-|x - y| / (tau·n)).

    Source: Koga et al., the one-dimensional chain of the experiments.

    >>> chain_matrix(2, 1.0).round(3)
    array([[0.622, 0.378],
           [0.378, 0.622]])
    """
    _check_size("n", n)
    if not 0 < tau < math.inf:
        raise ParameterError("tau", tau, "a finite number above 0")
    place = np.arange(n)
    weight = np.exp(-np.abs(place[:, None] - place) / (tau * n))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def count_transitions(states: ArrayLike, n_states: int) -> Array:
    """Number of steps from state i to state j in a training part, shape (n_states, n_states).

    `states`: integer state of each series (a user's cell, or a cell's level) in each window, shape (n_series,
    n_windows) or (n_windows,); -1 where unknown. Only steps between two known neighbouring windows count.

    >>> count_transitions([[0, 1, 1, -1, 0, 0]], 2)
    array([[1., 1.],
           [0., 1.]])
    """
    _check_size("n_states", n_states)
    series = np.atleast_2d(np.asarray(states))
    if series.dtype.kind not in "iu" or not ((series >= -1) & (series < n_states)).all():
        raise ParameterError("states", states, f"integers from -1 (unknown) to {n_states - 1}")
    now, after = series[:, :-1].ravel(), series[:, 1:].ravel()
    known = (now >= 0) & (after >= 0)
    cell = now[known].astype(np.int64) * n_states + after[known]
    return np.bincount(cell, minlength=n_states * n_states).reshape(n_states, n_states).astype(float)


def estimated_matrix(counts: ArrayLike, smoothing: float) -> Array:
    """Transition matrix from counts, each entry raised by `smoothing` before its row is scaled to 1.

    The smoothing is part of the adversary model: at 0 the adversary excludes what the training part never showed.

    >>> estimated_matrix([[3, 1], [0, 0]], smoothing=0.5)
    array([[0.7, 0.3],
           [0.5, 0.5]])
    """
    table = np.asarray(counts, dtype=float)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not (np.isfinite(table) & (table >= 0)).all():
        raise ParameterError("counts", f"shape {table.shape}", "a square matrix of counts of at least 0")
    if not 0 <= smoothing < math.inf:
        raise ParameterError("smoothing", smoothing, "a finite number of at least 0")
    smoothed = table + smoothing
    totals = smoothed.sum(axis=1, keepdims=True)
    if not totals.all():
        row = int(totals.ravel().argmin())
        raise ParameterError("smoothing", smoothing, f"above 0, since the training part never leaves state {row}")
    return np.asarray(smoothed / totals)


def _check_size(field: str, n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ParameterError(field, n, "a whole number of at least 1")


def stationary_distribution(matrix: ArrayLike) -> Array:
    """The one distribution that a step leaves unchanged, shape (n,); O(n³), without cancellation.

    Source: W. Grassmann, M. Taksar, D. Heyman, Operations Research 1985 (GTH elimination), on the closed class.

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

    `forward`: forward transition matrix, shape (n, n). `distribution`: probability of each state one step earlier,
    shape (n,); the stationary one if None.

    Returns (n, n). A state that is never reached gets a copy of a reached state's row: no adversary ever
    conditions on it, and a repeated row adds no leakage.

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


def disjoint_rows(matrix: Any) -> bool:
    """Whether two rows of a checked matrix have no state in common, so that one step reveals everything."""
    if _is_sparse(matrix):
        pattern = (matrix > 0).astype(np.int32)
        return bool((pattern @ pattern.T).nnz < matrix.shape[0] ** 2)
    pattern = (matrix > 0).astype(np.float32)
    return bool((pattern @ pattern.T == 0).any())
