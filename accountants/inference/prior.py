"""Markov priors over locations: transition kernels, long-run behaviour, entropy, and estimation from data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import entr

from penstock.mechanisms.core.plugin import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


#: Entries of a product that stays in the processor's cache.
BLOCK_ENTRIES = 1 << 15
_DENSE_SOLVE_LIMIT = 512
_SUM_TOLERANCE = 1e-6
_DENSE_LIMIT = 256
_DENSE_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class MarkovPrior:
    """A target's movement: a distribution over first locations and one transition matrix.

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
        initial = _normalised("initial", initial, initial, initial.sum())
        if sparse.issparse(self.transition):
            matrix = sparse.csr_array(self.transition, dtype=float, copy=True)
            matrix.sum_duplicates()
            sums = matrix.sum(axis=1)
            matrix.data = _normalised("transition", matrix.data, sums, np.repeat(sums, np.diff(matrix.indptr)))
            matrix.eliminate_zeros()
        else:
            matrix = np.array(self.transition, dtype=float)
            sums = matrix.sum(axis=1, keepdims=True)
            matrix = _normalised("transition", matrix, sums, sums)
            matrix.setflags(write=False)
        initial.setflags(write=False)
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "transition", matrix)

    @classmethod
    def stationary(cls, transition: Any, start: FloatArray | None = None) -> MarkovPrior:
        """Prior that begins in the long-run distribution of its own transition matrix.

        >>> MarkovPrior.stationary(np.array([[0.9, 0.1], [0.3, 0.7]])).initial
        array([0.75, 0.25])
        """
        matrix = transition if sparse.issparse(transition) else np.asarray(transition, dtype=float)
        return cls(stationary_distribution(matrix, start), matrix)

    @property
    def n_locations(self) -> int:
        """Number of locations, reachable or not."""
        return int(self.initial.size)

    def marginals(self, n_steps: int) -> FloatArray:
        """Distribution of the location in each of the first ``n_steps`` windows, (n_steps, n_locations)."""
        result = np.empty((n_steps, self.n_locations))
        current = self.initial
        for step in range(n_steps):
            result[step] = current
            current = current @ self.transition
        return result

    @cached_property
    def reduced(self) -> tuple[MarkovPrior, IntArray]:
        """The same prior on its reachable locations only, and which locations those are (ascending)."""
        # Every bound is the same on it, and a user seen in ten places out of 10,000 costs ten places. The matrix is
        # dense when small (up to 256 reachable locations) or well filled, sparse otherwise.
        reached = self.initial > 0
        links = self.transition > 0
        while True:
            grown = reached | (reached @ links > 0)
            if np.array_equal(grown, reached):
                break
            reached = grown
        locations = np.flatnonzero(reached)
        matrix = self.transition
        if locations.size < self.n_locations:
            matrix = matrix[locations][:, locations]
        if sparse.issparse(matrix) and (
            locations.size <= _DENSE_LIMIT or matrix.nnz > _DENSE_SHARE * locations.size**2
        ):
            matrix = matrix.toarray()
        if matrix is self.transition:
            return self, locations
        return MarkovPrior(self.initial[locations], matrix), locations

    def sample(self, n_trajectories: int, n_steps: int, rng: np.random.Generator) -> IntArray:
        """Independent trajectories, (n_trajectories, n_steps) location indices; O(n_trajectories n_steps log M)."""
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


def _normalised(field: str, values: FloatArray, sums: FloatArray, divisor: Any) -> FloatArray:
    totals = values.sum() if field == "initial" else sums
    if values.size and not (np.isfinite(values).all() and values.min() >= 0):
        raise ParameterError(field, float(np.nanmin(values)), "finite probabilities of at least 0")
    worst = float(np.max(np.abs(totals - 1.0)))
    if worst > _SUM_TOLERANCE:
        raise ParameterError(field, f"sums off by {worst:g}", "probabilities that sum to 1 (rows, for a transition)")
    return np.asarray(values / divisor)


def chain_prior(n_locations: int, tau: float) -> MarkovPrior:
    """One-dimensional test chain: a move over distance d has probability proportional to exp(-d / (tau M)).

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
    if n_locations < 1:
        raise ParameterError("n_locations", n_locations, "at least 1")
    if not tau > 0:
        raise ParameterError("tau", tau, "a number above 0")
    place = np.arange(n_locations)
    weight = np.exp(-np.abs(place[:, None] - place[None, :]) / (tau * n_locations))
    row_sum = weight.sum(axis=1)
    return MarkovPrior(row_sum / row_sum.sum(), weight / row_sum[:, None])


def trajectory_entropy(prior: MarkovPrior, n_steps: int) -> float:
    """Shannon entropy of the first ``n_steps`` locations, in nats: H(X_1) + Σ_t H(X_t given X_{t−1}).

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
    matrix = prior.transition
    if sparse.issparse(matrix):
        rows = sparse.csr_array((entr(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape).sum(axis=1)
    else:
        rows = entr(matrix).sum(axis=1)
    visits = prior.marginals(n_steps - 1).sum(axis=0) if n_steps > 1 else np.zeros(prior.n_locations)
    return float(entr(prior.initial).sum() + visits @ rows)


# Estimation from data.


def estimate_prior(
    trajectories: ArrayLike,
    n_locations: int,
    smoothing: float = 0.0,
    towards: FloatArray | None = None,
    initial: Literal["stationary", "empirical"] = "stationary",
) -> MarkovPrior:
    """Markov prior of one target (or of people alike) from training trajectories.

    Row x is (moves from x to x′ + smoothing · towards[x′]) / (moves from x + smoothing), the posterior mean under
    a Dirichlet prior of total weight ``smoothing``. A row without moves and without smoothing gets the share of visits
    of each location, so that a place only seen last is left as if the walk started again.

    `trajectories`: (n_windows,) or (n_trajectories, n_windows) locations; negative where unknown, which breaks the
    sequence. `towards`: (n_locations,) distribution of the pseudo-moves, or (n_locations, n_locations) one per row;
    uniform when left out. A population's transition matrix is a good choice for a person with few data.

    Returns the prior; its matrix is sparse when there is no smoothing. O(visits + M²), or O(visits) when sparse.

    Examples
    --------
    >>> prior = estimate_prior([0, 0, 1, 0, 0, 1], 3, smoothing=0.0, initial="empirical")
    >>> prior.transition.toarray().round(2).tolist()
    [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.67, 0.33, 0.0]]

    Source: Koga, Meehan, Chaudhuri, section 4.1 (which states no smoothing).
    """
    paths = np.atleast_2d(np.asarray(trajectories, dtype=np.intp))
    if paths.size == 0 or paths.max() >= n_locations or not (paths >= 0).any():
        raise ParameterError("trajectories", f"shape {paths.shape}", f"locations below {n_locations}, at least one")
    if not (smoothing >= 0 and np.isfinite(smoothing)):
        raise ParameterError("smoothing", smoothing, "at least 0")
    if initial not in ("stationary", "empirical"):
        raise ParameterError("initial", initial, "stationary or empirical")
    before, after = paths[:, :-1].ravel(), paths[:, 1:].ravel()
    known = (before >= 0) & (after >= 0)
    ones = np.ones(np.count_nonzero(known))
    moves = sparse.coo_array((ones, (before[known], after[known])), shape=(n_locations, n_locations)).tocsr()
    visits = np.bincount(paths[paths >= 0], minlength=n_locations).astype(float)
    base = _base(towards, n_locations)
    transition = _smoothed(moves, visits / visits.sum(), smoothing, base)
    start = (visits + smoothing * base.mean(axis=0)) / (visits.sum() + smoothing)
    return MarkovPrior(stationary_distribution(transition, start) if initial == "stationary" else start, transition)


def _base(towards: FloatArray | None, n_locations: int) -> FloatArray:
    """Distribution of the pseudo-moves, one row for all or one per location."""
    if towards is None:
        return np.full((1, n_locations), 1 / n_locations)
    base = np.atleast_2d(np.asarray(towards, dtype=float))
    if base.shape not in ((1, n_locations), (n_locations, n_locations)) or not np.allclose(base.sum(axis=1), 1):
        raise ParameterError("towards", f"shape {base.shape}", "distributions over the locations, one or one per row")
    return base


def _smoothed(moves: Any, visits: FloatArray, smoothing: float, base: FloatArray) -> Any:
    """Rows that sum to 1, dense with smoothing and sparse without."""
    totals = moves.sum(axis=1)
    if smoothing > 0:
        return (moves.toarray() + smoothing * base) / (totals + smoothing)[:, None]
    empty = np.flatnonzero(totals == 0)
    seen = np.flatnonzero(visits)
    fill = sparse.coo_array(
        (np.tile(visits[seen], empty.size), (np.repeat(empty, seen.size), np.tile(seen, empty.size))), shape=moves.shape
    )
    scale = sparse.dia_array((1 / np.maximum(totals, 1)[None, :], [0]), shape=moves.shape)
    return sparse.csr_array(scale @ moves + fill.tocsr())


def visit_trajectories(
    users: ArrayLike, windows: ArrayLike, places: ArrayLike, n_windows: int, n_top: int, min_windows: int
) -> tuple[IntArray, IntArray, IntArray]:
    """One place per user and window, from visits: the most visited places, and elsewhere for everything else.

    `users`, `windows`, `places`: (n_visits,) integers; windows count from 0, visits outside 0 … n_windows − 1 are left
    out.

    Returns trajectories (n_users, n_windows) of 0 … K, their users (ascending), and the top places (at most K). In a
    window with several places the most visited of them counts (ties: the more popular one). O(n log n) in the visits.

    Examples
    --------
    >>> visit_trajectories([5, 5, 5, 9], [0, 0, 2, 1], [70, 70, 80, 70], 3, n_top=1, min_windows=1)
    (array([[0, 1, 1],
           [1, 0, 1]]), array([5, 9]), array([70]))

    Source: Koga, Meehan, Chaudhuri, section 4.1 (20-day windows, 100 places, at least 10 windows).
    """
    user, window, place = (np.asarray(column).astype(np.int64) for column in (users, windows, places))
    if n_top < 1 or n_windows < 1:
        raise ParameterError("n_top" if n_top < 1 else "n_windows", min(n_top, n_windows), "at least 1")
    inside = (window >= 0) & (window < n_windows)
    user, window, place = user[inside], window[inside], place[inside]
    top, ranks = _ranked(place, n_top)
    kept = ranks < n_top
    user, window, rank = _one_a_window(np.stack([user[kept], window[kept], ranks[kept]]))
    people, n_seen = np.unique(user, return_counts=True)
    people = people[n_seen >= min_windows]
    chosen = np.isin(user, people)
    trajectories = np.full((people.size, n_windows), n_top, dtype=np.intp)
    trajectories[np.searchsorted(people, user[chosen]), window[chosen]] = rank[chosen]
    return trajectories, people, top


def _ranked(place: IntArray, n_top: int) -> tuple[IntArray, IntArray]:
    """The most visited places in their order, and the rank of each visit's place: ``n_top`` for all others."""
    names, visits = np.unique(place, return_counts=True)
    top = names[np.argsort(-visits, kind="stable")[:n_top]]
    rank = np.full(names.size, n_top)
    rank[np.searchsorted(names, top)] = np.arange(top.size)
    return top, rank[np.searchsorted(names, place)]


def _one_a_window(visits: IntArray) -> IntArray:
    """Of visits (user, window, rank), shape (3, n), the most frequent rank of each user and window."""
    triples, counts = np.unique(visits, axis=1, return_counts=True)
    triples = triples[:, np.lexsort((triples[2], -counts, triples[1], triples[0]))]
    first = np.ones(counts.size, dtype=bool)
    first[1:] = (triples[:2, 1:] != triples[:2, :-1]).any(axis=0)
    return triples[:, first]


# Long-run behaviour.


def stationary_distribution(transition: Any, start: FloatArray | None = None) -> FloatArray:
    """Long-run share of time in each location, entrywise accurate.

    `transition`: (n_locations, n_locations), rows sum to 1; dense or SciPy sparse. `start`: (n_locations,) distribution
    that decides between several closed classes (uniform when left out); with one closed class it changes nothing.

    Returns (n_locations,) distribution. O(M^3) time per closed class of up to 512 locations, one sparse solve beyond.

    Examples
    --------
    >>> stationary_distribution(np.array([[0.9, 0.1], [0.3, 0.7]]))
    array([0.75, 0.25])

    Source: Grassmann, Taksar, Heyman (1985): elimination without subtraction, so tiny probabilities keep their digits.
    """
    from scipy.sparse import csgraph  # with the solvers below a fifth of what starting a command takes

    matrix = sparse.csr_array(transition)
    n_locations = matrix.shape[0]
    start = np.full(n_locations, 1 / n_locations) if start is None else np.asarray(start, dtype=float)
    n_classes, label = csgraph.connected_components(matrix, directed=True, connection="strong")
    if n_classes == 1:
        return _irreducible(matrix)
    edges = matrix.tocoo()
    is_open = np.zeros(n_classes, dtype=bool)
    is_open[label[edges.row[label[edges.row] != label[edges.col]]]] = True
    share = _absorbed(matrix, start, label, is_open)
    result = np.zeros(n_locations)
    for closed in np.flatnonzero(~is_open & (share > 0)):
        members = np.flatnonzero(label == closed)
        result[members] = share[closed] * _irreducible(matrix[members][:, members])
    return np.asarray(result / result.sum())


def _absorbed(matrix: Any, start: FloatArray, label: NDArray[Any], is_open: NDArray[np.bool_]) -> FloatArray:
    """Probability of ending in each class, from the expected visits to the transient locations."""
    from scipy.sparse import linalg as sparse_linalg

    transient = np.flatnonzero(is_open[label])
    landing = start.copy()
    if transient.size:
        inner = sparse.eye_array(transient.size, format="csc") - matrix[transient][:, transient].T.tocsc()
        visits = np.atleast_1d(sparse_linalg.spsolve(inner.tocsc(), start[transient]))
        landing = start + matrix[transient].T @ visits
        landing[transient] = 0.0
    return np.bincount(label, np.maximum(landing, 0.0), is_open.size).astype(float)


def _irreducible(matrix: Any) -> FloatArray:
    """Stationary distribution of one closed class."""
    n_locations = matrix.shape[0]
    if n_locations > _DENSE_SOLVE_LIMIT:
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


def spectral_gap(transition: Any) -> float:
    """1 minus the second largest modulus of an eigenvalue: how fast the chain forgets where it was.

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
    if sparse.issparse(transition) and n_locations > _DENSE_SOLVE_LIMIT:
        from scipy.sparse import linalg as sparse_linalg

        moduli = np.abs(sparse_linalg.eigs(transition.astype(float), k=2, which="LM", return_eigenvectors=False))
    else:
        dense = transition.toarray() if sparse.issparse(transition) else np.asarray(transition, dtype=float)
        moduli = np.abs(np.linalg.eigvals(dense))
    return float(np.clip(1.0 - np.sort(moduli)[-2], 0.0, 1.0))


# Products with a transition matrix.


class Kernel:
    """Nonnegative matrix (n_from, n_to), dense or sparse, entry [x, x'] for the move x to x'; vectors are rows."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.is_sparse = sparse.issparse(matrix)
        self.n_from, self.n_to = matrix.shape
        # sparse by rows; dense transposed, so that the maximum over x' runs along whole rows of memory
        self._arranged: Any = matrix.tocsr() if self.is_sparse else np.ascontiguousarray(matrix.T)
        self._log: Any = None

    def forward(self, rows: FloatArray) -> FloatArray:
        """Sum over x of rows[x] matrix[x, x']; one matrix product."""
        return np.asarray(rows @ self.matrix)

    def expected(self, rows: FloatArray) -> FloatArray:
        """Sum over x' of matrix[x, x'] rows[x']; one matrix product."""
        return np.asarray((self.matrix @ rows.T).T if self.is_sparse else rows @ self._arranged)

    def best_next(self, rows: FloatArray) -> FloatArray:
        """Largest matrix[x, x'] rows[x'] over x', for nonnegative rows; O(n_rows nnz)."""
        result = np.zeros((len(rows), self.n_from))
        if self.n_to == 0:
            return result
        if self.is_sparse:
            csr, filled = self._arranged, np.flatnonzero(np.diff(self._arranged.indptr))
            for out, row in zip(result, rows):
                if filled.size:
                    out[filled] = np.maximum.reduceat(csr.data * row[csr.indices], csr.indptr[filled])
            return result
        for part in self._blocks(len(rows)):
            np.max(self._arranged * rows[part, :, None], axis=1, out=result[part])
        return result

    def best_previous_log(self, rows: FloatArray) -> FloatArray:
        """Largest rows[x] + ln matrix[x, x'] over x, for rows of logarithms; O(n_rows nnz)."""
        log = self._log_matrix()
        result = np.full((len(rows), self.n_to), -np.inf)
        if self.is_sparse:
            filled = np.flatnonzero(np.diff(log.indptr))
            for out, row in zip(result, rows):
                if filled.size:
                    out[filled] = np.maximum.reduceat(log.data + row[log.indices], log.indptr[filled])
            return result
        for part in self._blocks(len(rows)):
            np.max(log + rows[part, :, None], axis=1, out=result[part])
        return result

    def _blocks(self, n_rows: int) -> list[slice]:
        """Rows to work on together, so that a product of them with a dense matrix stays in the processor's cache."""
        size = max(1, BLOCK_ENTRIES // max(1, self.n_from * self.n_to))
        return [slice(first, first + size) for first in range(0, n_rows, size)]

    def log_column(self, to: NDArray[np.intp]) -> FloatArray:
        """ln matrix[:, x'] for each x' in ``to``: (n_rows, n_from), minus infinity where a move is impossible."""
        log = self._log_matrix()
        if not self.is_sparse:
            return np.asarray(log[:, to].T)
        result = np.full((len(to), self.n_from), -np.inf)
        for out, column in zip(result, to):
            part = slice(log.indptr[column], log.indptr[column + 1])
            out[log.indices[part]] = log.data[part]
        return result

    def _log_matrix(self) -> Any:
        """Logarithms, made once: dense as stored, sparse by columns with impossible moves left out."""
        if self._log is None:
            with np.errstate(divide="ignore"):
                if self.is_sparse:
                    self._log = self.matrix.tocsc(copy=True)
                    self._log.sort_indices()
                    self._log.data = np.log(self._log.data)
                else:
                    self._log = np.log(self.matrix)
        return self._log
