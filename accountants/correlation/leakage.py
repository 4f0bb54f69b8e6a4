"""A Markov chain's leakage function L_P(alpha), and the temporal privacy loss of a finite series of releases."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from penstock.accountants.correlation.hull import Array, leakage_hull, upper_hull
from penstock.accountants.markov import checked_matrix, is_sparse, transition_matrix
from penstock.mechanisms.core.plugin import ParameterError

_LARGE_ALPHA = 700.0  # exp overflows a little above
Correlation: TypeAlias = "LeakageFunction | ArrayLike | None"
"""Correlation in any form that this package takes: a function built before, a matrix, or none."""


class LeakageFunction:
    """The privacy loss carried over from a loss alpha about one time step to the adjacent step in a Markov chain.

    L_P(alpha) = max over rows q, d of P and subsets S of states of ln((k·q(S) + 1) / (k·d(S) + 1)) with
    k = exp(alpha) - 1. It is increasing, at most alpha, and 0 at 0.

    Parameters
    ----------
    matrix
        Row-stochastic transition matrix, shape (n, n), dense or scipy sparse: previous given now for the backward
        loss, next given now for the forward loss.

    Raises
    ------
    ParameterError
        The matrix is not square, finite, non-negative, or a row does not sum to 1 (which row, what sum).

    Notes
    -----
    The worst case over all subsets and pairs of rows lies on one convex hull, which is built once. An evaluation
    finds its vertex by bisection over the breakpoints in alpha: O(log n_vertices). Building needs O(n²) memory and in
    practice some tens of passes of O(n³) elementary operations; see `leakage_hull`.

    Sources: Y. Cao, M. Yoshikawa, Y. Xiao, L. Xiong, "Quantifying Differential Privacy under Temporal Correlations",
    ICDE 2017, Definition of L^B and Theorem 4; "... in Continuous Data Release", TKDE 2019, Theorem 5 for the
    supremum.

    Examples
    --------
    >>> leakage = LeakageFunction([[0.8, 0.2], [0.1, 0.9]])
    >>> leakage(40.0), math.log(8)
    (2.0794415416798357, 2.0794415416798357)
    >>> leakage(np.array([0.0, 1e-12, 800.0]))
    array([0.00000000e+00, 7.00000000e-13, 2.07944154e+00])
    >>> leakage.vertices
    array([[0.1, 0.8]])
    """

    def __init__(self, matrix: ArrayLike) -> None:
        checked = checked_matrix(matrix)
        pattern = (checked > 0).astype(np.float32)
        shared = pattern @ pattern.T
        if (shared.nnz if is_sparse(shared) else np.count_nonzero(shared)) < checked.shape[0] ** 2:
            # Two rows without a state in common leak everything, and a sparse matrix need not become dense.
            self._set_hull(np.array([[0.0, 1.0]]))
        else:
            self._set_hull(leakage_hull(transition_matrix(checked)))

    @classmethod
    def of_rows(cls, rows: Array) -> LeakageFunction:
        """Build the leakage function from conditional distributions, which are not checked and need not be square."""
        return cls._from_hull(leakage_hull(rows))

    @classmethod
    def of_vertices(cls, vertices: ArrayLike) -> LeakageFunction:
        """Build a leakage function from an earlier function's hull vertices (d, q)."""
        points = np.asarray(vertices, dtype=float).reshape(-1, 2)
        if not ((points >= 0) & (points <= 1)).all():
            raise ParameterError("vertices", vertices, "pairs (d, q) of probabilities")
        hull = upper_hull(np.vstack(((0.0, 0.0), np.column_stack((points[:, 0], points[:, 1] - points[:, 0])))))
        return cls._from_hull(hull[hull[:, 1] > 0])

    @classmethod
    def _from_hull(cls, hull: Array) -> LeakageFunction:
        leakage = cls.__new__(cls)
        leakage._set_hull(hull)
        return leakage

    def _set_hull(self, hull: Array) -> None:
        """Sort the vertices by the alpha at which each becomes optimal, starting from the largest miss."""
        self._miss, self._gain = np.ascontiguousarray(hull[::-1].T)
        miss, gain = self._miss, self._gain
        closer, farther = slice(1, None), slice(None, -1)
        determinant = gain[closer] * (miss[farther] - miss[closer]) - miss[closer] * (gain[farther] - gain[closer])
        with np.errstate(divide="ignore"):
            k = np.where(determinant > 0, (gain[farther] - gain[closer]) / determinant, np.inf)
        self._breakpoints = np.maximum.accumulate(np.log1p(k))
        self._scalars = self._breakpoints.tolist(), miss.tolist(), gain.tolist()

    @property
    def vertices(self) -> Array:
        """The hull vertices (d, q) by increasing d, shape (m, 2). Empty if all rows of the matrix are equal."""
        return np.asarray(np.column_stack((self._miss, self._miss + self._gain))[::-1])

    @overload
    def __call__(self, alpha: float) -> float: ...
    @overload
    def __call__(self, alpha: Array) -> Array: ...
    def __call__(self, alpha: float | Array) -> float | Array:
        """Evaluate L_P(alpha), in nats, for a number or an array of numbers from 0 to infinity."""
        if isinstance(alpha, float | int):
            return self._evaluate_one(alpha)
        values = np.asarray(alpha, dtype=float)
        if not (values >= 0).all():
            raise ParameterError("alpha", values[~(values >= 0)].flat[0], "losses of at least 0 nats")
        return self._evaluate_many(values)

    def _evaluate_one(self, alpha: float) -> float:
        if not alpha >= 0:
            raise ParameterError("alpha", alpha, "a loss of at least 0 nats")
        breakpoints, misses, gains = self._scalars
        if not gains:
            return 0.0
        vertex = bisect_right(breakpoints, alpha)
        miss, gain = misses[vertex], gains[vertex]
        if alpha <= _LARGE_ALPHA:
            k = math.expm1(alpha)
            return min(math.log1p(k * gain / (1.0 + k * miss)), float(alpha))
        if miss > 0:
            return math.log1p(gain / miss)
        return alpha + math.log(gain)

    def _evaluate_many(self, alpha: Array) -> Array:
        if not len(self._gain):
            return np.zeros_like(alpha)
        vertex = np.searchsorted(self._breakpoints, alpha, side="right")
        miss, gain = self._miss[vertex], self._gain[vertex]
        k = np.expm1(np.minimum(alpha, _LARGE_ALPHA))
        leakage: Array = np.minimum(np.log1p(k * gain / (1.0 + k * miss)), alpha)
        large = alpha > _LARGE_ALPHA
        if large.any():
            with np.errstate(divide="ignore"):
                limit = np.where(miss > 0, np.log1p(gain / miss), alpha + np.log(gain))
            leakage = np.where(large, limit, leakage)
        return leakage

    def supremum(self, epsilon: float) -> float:
        """Return the limit of alpha <- L_P(alpha) + epsilon, an infinite stream's loss at a constant epsilon in nats.

        The largest fixed point over the vertices, infinite if there is none (TKDE 2019, Theorem 5).
        """
        if not epsilon >= 0:
            raise ParameterError("epsilon", epsilon, "a number of at least 0")
        if epsilon == 0 or not len(self._gain) or math.isinf(epsilon):
            return float(epsilon)
        # With k = exp(epsilon)·x the fixed point solves d·x² - b·x - shrink·(1 - shrink) = 0, free of overflow.
        shrink, lost = math.exp(-epsilon), -math.expm1(-epsilon)
        miss, gain = self._miss, self._gain
        b = gain - 1.0 + (1.0 + miss) * lost
        root = np.sqrt(b * b + 4.0 * miss * shrink * lost)
        growing = b > 0  # choose the form of the root without cancellation; without a miss it grows for ever
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(growing, (b + root) / (2.0 * miss), 2.0 * shrink * lost / (root - b))
        largest = float(x.max())
        return math.log1p(math.exp(epsilon) * largest) if epsilon < 1.0 else epsilon + math.log(shrink + largest)


def leakage_function(correlation: Correlation) -> LeakageFunction:
    """Return the leakage function of a correlation. `None` means no correlation and no leakage."""
    if correlation is None:
        return LeakageFunction.of_vertices(np.empty((0, 2)))
    return correlation if isinstance(correlation, LeakageFunction) else LeakageFunction(correlation)


def temporal_privacy_loss(
    epsilons: ArrayLike, backward: Correlation = None, forward: Correlation = None
) -> tuple[Array, Array, Array]:
    """Compute the privacy loss of all releases about the value at each one, given correlation over time.

    BPL_1 = eps_1, BPL_t = L_B(BPL_{t-1}) + eps_t; FPL_T = eps_T, FPL_t = L_F(FPL_{t+1}) + eps_t;
    TPL_t = BPL_t + FPL_t - eps_t.

    Parameters
    ----------
    epsilons
        Pure epsilon of each release *for replacing one person's value* (twice that of add/remove), in nats, time
        last: shape (..., n_releases). 0 where nothing new was released, infinite if there is no guarantee.
    backward, forward
        Previous given now and next given now: matrices or `LeakageFunction`; None if the adversary knows none.

    Returns
    -------
    tuple of Array
        Backward, forward and total loss, each of the shape of `epsilons`, in nats; infinite, never NaN.

    Notes
    -----
    Two evaluations of a leakage function a release. Leading axes are independent series.

    Source: Cao et al., ICDE 2017, Equations 11 to 13 and Theorem 1.

    Examples
    --------
    >>> matrix = [[0.8, 0.2], [0.0, 1.0]]
    >>> backward, forward, total = temporal_privacy_loss(np.full(10, 0.1), matrix, matrix)
    >>> backward.round(2)
    array([0.1 , 0.18, 0.25, 0.3 , 0.35, 0.39, 0.42, 0.45, 0.48, 0.5 ])
    >>> total.round(2)
    array([0.5 , 0.56, 0.6 , 0.62, 0.64, 0.64, 0.62, 0.6 , 0.56, 0.5 ])
    """
    charges = checked_epsilons(epsilons)
    forward_part = leaked(charges, leakage_function(backward))
    backward_part = leaked(charges[..., ::-1], leakage_function(forward))[..., ::-1]
    # Adding what leaked in, instead of subtracting epsilon once, keeps infinite charges from becoming NaN.
    return forward_part + charges, backward_part + charges, forward_part + charges + backward_part


def checked_epsilons(epsilons: ArrayLike) -> Array:
    """Return the charges as an array with at least one axis. Raise `ParameterError` if any is negative or NaN."""
    charges = np.atleast_1d(np.asarray(epsilons, dtype=float))
    if not (charges >= 0).all():
        raise ParameterError("epsilons", float(charges[~(charges >= 0)].flat[0]), "losses of at least 0 nats")
    return charges


def leaked(charges: Array, leakage: LeakageFunction) -> Array:
    """Return the privacy loss that each release inherits from its predecessor, in the same shape as the charges."""
    # This is what earlier releases tell about the value at the time of a release; its loss is this plus its charge.
    result = np.zeros_like(charges)
    if charges.ndim > 1:
        for t in range(1, charges.shape[-1]):
            result[..., t] = leakage(result[..., t - 1] + charges[..., t - 1])
        return result
    incoming = 0.0
    values = [incoming]
    for charge in charges[:-1].tolist():
        incoming = leakage(incoming + charge)
        values.append(incoming)
    return np.array(values[: len(charges)])
