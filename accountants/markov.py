"""Markov chains over a person's places: transition matrices, estimation, reversal, stationarity and priors.

A matrix is (n, n), its rows sum to 1: row x is the distribution of the next place given x (backward: of the previous
one). A prior is a matrix with the distribution of the first place.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.core.plugin import DataError, ParameterError, check_whole

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Matrices come from files with few digits; rows are rescaled to exactly 1.
SUM_TOLERANCE = 1e-6
_DENSE_SOLVE_LIMIT = 512
_DENSE_LIMIT = 256
_DENSE_SHARE = 0.15


def transition_matrix(matrix: Any, name: str = "matrix") -> FloatArray:
    """Validate a row-stochastic matrix and return a dense copy with rows renormalised."""
    checked = checked_matrix(matrix, name)
    return np.asarray(checked.toarray() if is_sparse(checked) else checked)


def checked_matrix(matrix: Any, name: str = "matrix") -> Any:
    """Validate a transition matrix. A sparse matrix stays sparse, in CSR format."""
    has_csr = is_sparse(matrix)
    if has_csr:
        from scipy import sparse  # takes longer than all that only reads a configuration
    try:
        checked: Any = sparse.csr_array(matrix, dtype=float, copy=True) if has_csr else np.array(matrix, dtype=float)
    except (TypeError, ValueError) as error:
        raise ParameterError(name, matrix, "a square matrix of numbers") from error
    if checked.ndim != 2 or checked.shape[0] != checked.shape[1] or checked.shape[0] == 0:
        raise ParameterError(name, f"shape {checked.shape}", "a square matrix, shape (n, n) with n at least 1")
    entries = checked.data if has_csr else checked.ravel()
    wrong = ~(np.isfinite(entries) & (entries >= 0))
    if wrong.any():
        entry = int(wrong.argmax())
        row = np.searchsorted(checked.indptr, entry, side="right") - 1 if has_csr else entry // len(checked)
        raise ParameterError(name, f"row {row} with entry {entries[entry]:g}", "finite and not negative everywhere")
    sums = np.asarray(checked.sum(axis=1)).ravel()
    row = int(np.abs(sums - 1.0).argmax())
    if abs(sums[row] - 1.0) > SUM_TOLERANCE:
        raise ParameterError(name, f"row {row} with sum {sums[row]:.9g}", "row-stochastic: every row sums to 1")
    return sparse.csr_array(sparse.diags_array(1.0 / sums) @ checked) if has_csr else checked / sums[:, None]


def is_sparse(matrix: Any) -> bool:
    """Return whether a matrix is a SciPy sparse matrix, without importing `scipy.sparse`."""
    return hasattr(matrix, "tocsr")


def read_matrix(path: str | os.PathLike[str]) -> FloatArray:
    """Read a transition matrix from a ``.npy`` file or a comma-separated ``.csv`` file without a header."""
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


def laplacian_smoothing_matrix(n: int, s: float) -> FloatArray:
    """Build an n-state matrix with weight 1 + s for staying and s for moving. A smaller s means stronger correlation.

    Source: Cao et al. (TKDE 2019), section on synthetic data: P_ij = (1[i=j] + s) / sum over k of (1[j=k] + s).

    >>> laplacian_smoothing_matrix(2, 1.0).round(3)
    array([[0.667, 0.333],
           [0.333, 0.667]])
    """
    check_whole({"n": n})
    if not 0 <= s < math.inf:
        raise ParameterError("s", s, "a finite number of at least 0")
    return (np.eye(n) + s) / (1.0 + n * s)


def chain_matrix(n: int, tau: float) -> FloatArray:
    """Build the matrix of a random walk on a line of n places, P[x, y] ∝ exp(-|x - y| / (tau·n)) (Koga et al.)."""
    check_whole({"n": n})
    if not 0 < tau < math.inf:
        raise ParameterError("tau", tau, "a finite number above 0")
    place = np.arange(n)
    weight = np.exp(-np.abs(place[:, None] - place) / (tau * n))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def count_transitions(states: ArrayLike, n_states: int) -> FloatArray:
    """Count transitions between consecutive windows in state series (n_series, n_windows), where -1 means unknown."""
    series = np.atleast_2d(np.asarray(states))
    if series.dtype.kind not in "iu" or not ((series >= -1) & (series < n_states)).all():
        raise ParameterError("states", states, f"integers from -1 (unknown) to {n_states - 1}")
    now, after = series[:, :-1].ravel(), series[:, 1:].ravel()
    known = (now >= 0) & (after >= 0)
    cell = now[known].astype(np.int64) * n_states + after[known]
    return np.bincount(cell, minlength=n_states * n_states).reshape(n_states, n_states).astype(float)


def estimated_matrix(counts: ArrayLike, smoothing: float) -> FloatArray:
    """Estimate a transition matrix from counts plus `smoothing`. Without it, an adversary rules out unseen moves."""
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


def stationary_distribution(matrix: Any, start: FloatArray | None = None) -> FloatArray:
    """Return the stationary distribution (the long-run fraction of time in each location), accurate in every entry.

    `start`: distribution that decides between several closed classes, which are refused without one. O(M^3) time per
    closed class of up to 512 locations, one sparse solve beyond.

    Source: Grassmann, Taksar, Heyman (1985): elimination without subtraction, so tiny probabilities keep their digits.
    """
    from scipy import sparse
    from scipy.sparse import csgraph  # with the solvers below a fifth of what starting a command takes
    from scipy.sparse import linalg as sparse_linalg

    chain = sparse.csr_array(checked_matrix(matrix))
    n_classes, label = csgraph.connected_components(chain, directed=True, connection="strong")
    if n_classes == 1:
        return _irreducible(chain)
    edges = chain.tocoo()
    is_open = np.zeros(n_classes, dtype=bool)
    is_open[label[edges.row[label[edges.row] != label[edges.col]]]] = True
    closed = np.flatnonzero(~is_open)
    if start is None and len(closed) > 1:
        raise ParameterError("matrix", f"{len(closed)} closed classes of states", "one closed class, or given a start")
    share = np.ones(n_classes)
    if start is not None:  # the probability of ending in each class, from the expected visits to transient locations
        landing, transient = np.array(start, float), np.flatnonzero(is_open[label])
        if transient.size:
            inner = sparse.eye_array(transient.size, format="csc") - chain[transient][:, transient].T.tocsc()
            visits = np.atleast_1d(sparse_linalg.spsolve(inner.tocsc(), landing[transient]))
            landing = landing + chain[transient].T @ visits
            landing[transient] = 0.0
        share = np.bincount(label, np.maximum(landing, 0.0), n_classes).astype(float)
    result = np.zeros(chain.shape[0])
    for closed_class in closed[share[closed] > 0]:
        members = np.flatnonzero(label == closed_class)
        result[members] = share[closed_class] * _irreducible(chain[members][:, members])
    return np.asarray(result / result.sum())


def _irreducible(matrix: Any) -> FloatArray:
    """Return the stationary distribution of one closed class."""
    n_locations = matrix.shape[0]
    if n_locations > _DENSE_SOLVE_LIMIT:
        from scipy import sparse
        from scipy.sparse import linalg as sparse_linalg

        balance = (sparse.eye_array(n_locations, format="csr") - matrix).T.tolil()
        balance[-1, :] = 1.0
        solution = sparse_linalg.spsolve(balance.tocsc(), np.eye(1, n_locations, n_locations - 1)[0])
        positive = np.maximum(solution, 0.0)
        return np.asarray(positive / positive.sum())
    rest = matrix.toarray()
    for last in range(n_locations - 1, 0, -1):
        rest[:last, last] /= rest[last, :last].sum()
        rest[:last, :last] += np.outer(rest[:last, last], rest[last, :last])
    result = np.ones(n_locations)
    for last in range(1, n_locations):
        result[last] = result[:last] @ rest[:last, last]
    return np.asarray(result / result.sum())


def backward_matrix(forward: ArrayLike) -> FloatArray:
    """Return Pr(previous = j given now = i) from Pr(next = j given now = i), under the stationary distribution.

    A state that is never reached gets a copy of a reached state's row, which adds no leakage.
    """
    transitions = transition_matrix(forward, "forward")
    joint = (stationary_distribution(transitions)[:, None] * transitions).T
    now = joint.sum(axis=1, keepdims=True)
    reached = now.ravel() > 0
    joint[~reached], now[~reached] = joint[now.argmax()], now.max()
    return np.asarray(joint / now)


def spectral_gap(transition: Any) -> float:
    """Return 1 minus the second largest absolute value of an eigenvalue.

    Parameters
    ----------
    transition
        (n_locations, n_locations), rows sum to 1; dense or SciPy sparse. A chain of one location has gap 1.

    Returns
    -------
    A number in [0, 1]; 0 for a chain that never forgets (several closed classes, or periodic). O(M^3), or the two
    leading eigenvalues by Arnoldi iteration above 512 locations.

    Examples
    --------
    >>> round(spectral_gap(np.array([[0.9, 0.1], [0.3, 0.7]])), 12)
    0.4
    """
    n_locations = transition.shape[0]
    if transition.shape != (n_locations, n_locations):
        raise ParameterError("transition", transition.shape, "a square matrix")
    if n_locations == 1:
        return 1.0
    if is_sparse(transition) and n_locations > _DENSE_SOLVE_LIMIT:
        from scipy.sparse import linalg as sparse_linalg

        moduli = np.abs(sparse_linalg.eigs(transition.astype(float), k=2, which="LM", return_eigenvectors=False))
    else:
        dense = transition.toarray() if is_sparse(transition) else np.asarray(transition, dtype=float)
        moduli = np.abs(np.linalg.eigvals(dense))
    return float(np.clip(1.0 - np.sort(moduli)[-2], 0.0, 1.0))


@dataclass(frozen=True, eq=False)
class MarkovPrior:
    """A Markov prior on a target's movement, with an initial distribution and one transition matrix.

    Parameters
    ----------
    initial
        (n_locations,) distribution of the location in the first window.
    transition
        (n_locations, n_locations); row x is the distribution of the next location given x. Dense or SciPy sparse;
        sums may be off by 1e-6 (they are normalised), negative or missing values are refused.

    Examples
    --------
    >>> prior = MarkovPrior([0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]])
    >>> prior.marginals(2)
    array([[0.5, 0.5],
           [0.6, 0.4]])

    Source: Koga, Meehan, Chaudhuri, "Measuring Privacy Loss in Distributed Spatio-Temporal Data", section 3.1.
    """

    initial: Any
    transition: Any

    def __post_init__(self) -> None:
        initial = np.array(self.initial, dtype=float)
        if initial.ndim != 1 or initial.size == 0:
            raise ParameterError("initial", f"shape {initial.shape}", "one probability per location")
        shape = np.shape(self.transition)
        if shape != (initial.size, initial.size):
            raise ParameterError("transition", f"shape {shape}", f"of shape ({initial.size}, {initial.size})")
        if not (np.isfinite(initial) & (initial >= 0)).all():
            raise ParameterError("initial", float(np.nanmin(initial)), "finite probabilities of at least 0")
        if abs(initial.sum() - 1.0) > SUM_TOLERANCE:
            raise ParameterError("initial", f"sum {initial.sum():g}", "probabilities that sum to 1")
        initial /= initial.sum()
        matrix = checked_matrix(self.transition, "transition")
        if is_sparse(matrix):
            matrix.sum_duplicates()
            matrix.eliminate_zeros()
        else:
            matrix.setflags(write=False)
        initial.setflags(write=False)
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "transition", matrix)

    @property
    def n_locations(self) -> int:
        """The number of locations, reachable or not."""
        return int(self.initial.size)

    def marginals(self, n_steps: int) -> FloatArray:
        """Return the location's distribution in each of the first ``n_steps`` windows, (n_steps, n_locations)."""
        result = np.empty((n_steps, self.n_locations))
        current = self.initial
        for step in range(n_steps):
            result[step] = current
            current = current @ self.transition
        return result

    @cached_property
    def reduced(self) -> tuple[MarkovPrior, IntArray]:
        """The prior restricted to reachable locations, and these locations in ascending order."""
        # Every bound is the same on it, and a user seen in ten places out of 10,000 costs ten places. The matrix is
        # dense when small (up to 256 reachable locations) or well filled, sparse otherwise.
        reached = self.initial > 0
        links = self.transition > 0
        while True:
            extended = reached | (reached @ links > 0)
            if np.array_equal(extended, reached):
                break
            reached = extended
        locations = np.flatnonzero(reached)
        matrix = self.transition
        if locations.size < self.n_locations:
            matrix = matrix[locations][:, locations]
        if is_sparse(matrix) and (locations.size <= _DENSE_LIMIT or matrix.nnz > _DENSE_SHARE * locations.size**2):
            matrix = matrix.toarray()
        if matrix is self.transition:
            return self, locations
        return MarkovPrior(self.initial[locations], matrix), locations

    def sample(self, n_trajectories: int, n_steps: int, rng: np.random.Generator) -> IntArray:
        """Draw independent trajectories (n_trajectories, n_steps). O(n_trajectories n_steps log M)."""
        from scipy import sparse

        matrix = sparse.csr_array(self.transition)
        cumulative = np.concatenate(([0.0], np.cumsum(matrix.data)))
        first, stop = matrix.indptr[:-1], matrix.indptr[1:]
        paths = np.empty((n_trajectories, n_steps), dtype=np.intp)
        support = np.flatnonzero(self.initial)
        paths[:, 0] = rng.choice(support, size=n_trajectories, p=self.initial[support] / self.initial[support].sum())
        for step in range(1, n_steps):
            row = paths[:, step - 1]
            low, high = cumulative[first[row]], cumulative[stop[row]]
            drawn = np.searchsorted(cumulative, low + rng.random(n_trajectories) * (high - low), side="right") - 1
            paths[:, step] = matrix.indices[np.clip(drawn, first[row], stop[row] - 1)]
        return paths


def chain_prior(n_locations: int, tau: float) -> MarkovPrior:
    """Build the one-dimensional test chain, where P(move over distance d) is proportional to exp(-d / (tau M)).

    Parameters
    ----------
    n_locations
        M, number of places on a line.
    tau
        Above 0; the larger, the more independent the windows are.

    Returns
    -------
    The prior, stationary: the weights are symmetric, so the stationary probability of a place is proportional to its
    row sum.

    Examples
    --------
    >>> chain_prior(3, 0.5).initial.round(4)
    array([0.3184, 0.3632, 0.3184])

    Source: Koga, Meehan, Chaudhuri, section 4.1.
    """
    matrix = chain_matrix(n_locations, tau)
    # Row sums of the weights: the weight of staying is 1 everywhere.
    row_sum = 1 / np.diag(matrix)
    return MarkovPrior(row_sum / row_sum.sum(), matrix)


def trajectory_entropy(prior: MarkovPrior, n_steps: int) -> float:
    """Return the Shannon entropy of the first ``n_steps`` locations in nats: H(X_1) + Σ_t H(X_t given X_{t−1}).

    Parameters
    ----------
    prior
        The target's Markov chain.
    n_steps
        Number of windows, at least 1. O(n_steps nnz) time.

    Examples
    --------
    >>> from math import log
    >>> uniform = MarkovPrior([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    >>> trajectory_entropy(uniform, 3) / log(2)
    3.0

    Source: chain rule; Koga, Meehan, Chaudhuri, section 3.3.1.
    """
    if n_steps < 1:
        raise ParameterError("n_steps", n_steps, "at least 1")
    from scipy.special import entr  # a fifth of what a small run takes

    matrix = prior.transition
    if is_sparse(matrix):
        rows = np.bincount(matrix.tocoo().row, entr(matrix.data), matrix.shape[0])
    else:
        rows = entr(matrix).sum(axis=1)
    visits = prior.marginals(n_steps - 1).sum(axis=0) if n_steps > 1 else np.zeros(prior.n_locations)
    return float(entr(prior.initial).sum() + visits @ rows)


def estimate_prior(
    trajectories: ArrayLike,
    n_locations: int,
    smoothing: float = 0.0,
    towards: FloatArray | None = None,
    initial: Literal["stationary", "empirical"] = "stationary",
) -> MarkovPrior:
    """Estimate the Markov prior of a target or a group of people from training trajectories.

    Row x is (moves from x to x′ + smoothing · towards[x′]) / (moves from x + smoothing), the posterior mean under
    a Dirichlet prior of total weight ``smoothing``. A row without moves and without smoothing gets the share of visits
    of each location, so that a place only seen last is left as if the walk started again.

    `trajectories`: (n_windows,) or (n_trajectories, n_windows) locations; negative where unknown, which breaks the
    sequence. `towards`: distribution of the pseudo-moves, one or one per row; uniform when left out.

    Source: Koga, Meehan, Chaudhuri, section 4.1 (which states no smoothing).
    """
    paths = np.atleast_2d(np.asarray(trajectories, dtype=np.intp))
    if paths.size == 0 or paths.max() >= n_locations or not (paths >= 0).any():
        raise ParameterError("trajectories", f"shape {paths.shape}", f"locations below {n_locations}, at least one")
    if not (smoothing >= 0 and np.isfinite(smoothing)):
        raise ParameterError("smoothing", smoothing, "at least 0")
    if initial not in ("stationary", "empirical"):
        raise ParameterError("initial", initial, "stationary or empirical")
    moves = count_transitions(np.maximum(paths, -1), n_locations)
    visits = np.bincount(paths[paths >= 0], minlength=n_locations).astype(float)
    base = np.full((1, n_locations), 1 / n_locations)
    if towards is not None:
        base = np.atleast_2d(np.asarray(towards, dtype=float))
        if base.shape not in ((1, n_locations), (n_locations, n_locations)) or not np.allclose(base.sum(axis=1), 1):
            expected = "distributions over the locations, one or one per row"
            raise ParameterError("towards", f"shape {base.shape}", expected)
    totals = moves.sum(axis=1, keepdims=True)
    if smoothing == 0:
        moves, totals = np.where(totals > 0, moves, visits), np.where(totals > 0, totals, visits.sum())
    transition = (moves + smoothing * base) / (totals + smoothing)
    start = (visits + smoothing * base.mean(axis=0)) / (visits.sum() + smoothing)
    return MarkovPrior(stationary_distribution(transition, start) if initial == "stationary" else start, transition)
