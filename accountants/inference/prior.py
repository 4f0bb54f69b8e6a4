"""What an adversary knows about one target before any release: a Markov chain over locations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from accountants.inference.stationary import stationary_distribution
from mechanisms.core.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
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
        """The same prior on its reachable locations only, and which locations those are (ascending).

        Every bound is the same on it, and a user seen in ten places out of 10,000 costs ten places. The matrix is
        dense when small (up to 256 reachable locations) or well filled, sparse otherwise.
        """
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
