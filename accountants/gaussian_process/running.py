"""Loss along a trace that never ends, in bounded state, with promised and regular later releases.

State holds the times and noise of the points in a block of the last ones, and one number an axis that bounds all
points that have left it. Nothing in it depends on where the user was.

A point that has left the block is never forgotten, only bounded. With P = Cov[x_S given the block's releases], every
other release o (older, or still to come) lowers P by at most c·cᵀ/σ_o², c = Cov[x_S, x_o given the block's releases]
= L·k_o, L the rows of Σ_g(Σ + Σ_g)⁻¹ at S and k_o the prior covariance of the block with o. All the kernels here fade
at least as fast as an envelope g with g(s + t) ≤ g(s)·g(t), so |k_o| ≤ σ_x²·g(edge − t_o)·g(t_b − edge), and in
Loewner order

    Σ_o c·cᵀ/σ_o² ⪯ diag ρ,  ρ_s = σ_x⁴·|S|·tail·(Σ_b |L_sb|·g(t_b − edge))²,  tail = Σ_o g(edge − t_o)²/σ_o².

The loss matrix is then at most that of the block plus (P − diag ρ)⁻¹ − P⁻¹; where P − diag ρ is not positive definite
the block is too short for the prior, and the loss is reported as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from penstock.accountants.gaussian_process.kernels import Array, GaussianProcess, Indices
from penstock.accountants.gaussian_process.loss import (
    conditional_response,
    largest_eigenvalue,
    loss_matrix,
    loss_per_eigenvalue,
)
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.state import State

N_TAIL_TERMS = 4096
PRECISION = 1e-6


class Future(NamedTuple):
    """Declared bounds on later releases: no two closer than ``interval``, none with less noise than ``sigma``."""

    interval: float
    sigma: float


class RunningLoss(NamedTuple):
    """Figures after a release: one loss for each secret, one interval for each point of the block.

    ``loss`` and ``independent_loss`` are in nats, shape (n_secrets,); ``interval`` is 2·sqrt(posterior variance) at
    its smallest over the axes, shape (n_points,), in the unit of sigma.
    """

    loss: Array
    independent_loss: Array
    interval: Array


def start_trace(n_axes: int) -> State:
    """State before the first release.

    >>> {name: value.shape for name, value in start_trace(2).items()}
    {'times': (0,), 'noise_variance': (0, 2), 'past': (2,)}
    """
    if n_axes < 1:
        raise ParameterError("n_axes", n_axes, "at least 1")
    return {"times": np.zeros(0), "noise_variance": np.zeros((0, n_axes)), "past": np.zeros(n_axes)}


def add_release(state: State, time: float, sigma: ArrayLike, axes: Sequence[GaussianProcess], block: int) -> State:
    """State after one more point has been released.

    `sigma`: standard deviation of its noise: one number, or (n_axes,).

    Examples
    --------
    >>> axes = (GaussianProcess(length_scale=1.0),)
    >>> state = start_trace(1)
    >>> for time in range(5):
    ...     state = add_release(state, time, 1.0, axes, block=3)
    >>> state["times"], state["past"].round(4)
    (array([2., 3., 4.]), array([0.5032]))
    """
    times, variances, past = state["times"], state["noise_variance"], state["past"]
    scales = np.broadcast_to(np.asarray(sigma, dtype=np.float64), (len(axes),))
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ParameterError("sigma", sigma, "a finite number above 0, or one for each axis")
    if not math.isfinite(time) or (times.size and time < times[-1]):
        raise ParameterError("time", time, f"not before the last release ({times[-1] if times.size else 'finite'})")
    if block < 1:
        raise ParameterError("block", block, "at least 1")
    if len(past) != len(axes):
        raise ParameterError("axes", len(axes), f"{len(past)} of them, as in the state")
    times, variances = np.append(times, time), np.vstack([variances, scales**2])
    while len(times) > block:
        fade = np.array([float(axis.envelope(times[1] - times[0])) for axis in axes])
        past = (past + 1.0 / variances[0]) * fade**2
        times, variances = times[1:], variances[1:]
    return {"times": times, "noise_variance": variances, "past": past}


def running_losses(
    state: State,
    axes: Sequence[GaussianProcess],
    secrets: Iterable[Indices],
    radius: float,
    order: float,
    future: Future | None = None,
) -> RunningLoss:
    """Loss of each secret after all releases so far, or for ever.

    `future`: None: the loss after the releases made so far (it can only grow). Given: no later release that keeps to
    the declaration will take it above the figure.

    Never below the loss given the whole trace, and equal to it while nothing has left the block.
    O(block³) for each secret and axis, whatever the length of the trace.

    Examples
    --------
    >>> axes = (GaussianProcess(length_scale=1.0),)
    >>> state = add_release(add_release(start_trace(1), 0.0, 1.0, axes, 8), 1.0, 1.0, axes, 8)
    >>> figures = running_losses(state, axes, [np.array([0])], radius=1.0, order=2.0)
    >>> figures.loss.round(6), figures.independent_loss
    (array([1.2254]), array([1.]))
    """
    family = list(secrets)
    times, variances = state["times"], state["noise_variance"]
    losses, independent = np.zeros((2, len(family)))
    intervals = np.full(len(times), np.inf)
    for number, axis in enumerate(axes):
        view = _AxisView(axis, times, variances[:, number], float(state["past"][number]), future)
        intervals = np.minimum(intervals, view.intervals())
        for case, indices in enumerate(family):
            weight = loss_per_eigenvalue(len(indices), radius, order)
            losses[case] = max(losses[case], weight * view.worst(indices))
            independent[case] = max(independent[case], weight / variances[indices, number].min())
    return RunningLoss(losses, independent, intervals)


class _AxisView:
    """One axis of the block: its posterior, and the bound on what is outside."""

    def __init__(
        self, axis: GaussianProcess, times: Array, variances: Array, past: float, future: Future | None
    ) -> None:
        self.prior, self.noise = axis.covariance(times), np.diag(variances)
        scale = np.sqrt(variances)
        eigenvalues, vectors = linalg.eigh(self.prior / np.multiply.outer(scale, scale))
        eigenvalues = np.maximum(eigenvalues, 0.0)
        self.posterior = np.multiply.outer(scale, scale) * ((vectors * (eigenvalues / (1 + eigenvalues))) @ vectors.T)
        gain = np.abs((vectors / (1.0 + eigenvalues)) @ vectors.T) * np.divide.outer(scale, scale)
        self.outside = _squared(axis, past, gain @ axis.envelope(times - times[0])) if past else np.zeros(len(times))
        if future is not None:
            tail = endless_tail(axis, future.interval) / future.sigma**2
            self.outside = self.outside + _squared(axis, tail, gain @ axis.envelope(times[-1] - times))

    def intervals(self) -> Array:
        """Twice the standard deviation of each point of the block given all releases, at its smallest."""
        variances: Array = self.posterior.diagonal() - self.outside
        return 2.0 * np.sqrt(np.maximum(variances, 0.0))

    def worst(self, secret: Indices) -> float:
        """Largest eigenvalue of the loss matrix, infinite where the block is too short to bound it."""
        matrix = loss_matrix(conditional_response(self.prior, secret), self.noise)
        reduction = len(secret) * self.outside[secret]
        if reduction.any():
            try:
                factor = linalg.cholesky(self.posterior[np.ix_(secret, secret)], lower=True)
                if not np.isfinite(reduction).all():
                    return math.inf
                scaled = linalg.solve_triangular(factor, np.diag(np.sqrt(reduction)), lower=True)
                rest = linalg.cholesky(np.eye(len(secret)) - scaled.T @ scaled, lower=True)
            except linalg.LinAlgError:
                return math.inf
            root = linalg.solve_triangular(
                rest, linalg.solve_triangular(factor, scaled, lower=True, trans="T").T, lower=True
            )
            matrix = matrix + root.T @ root
        return largest_eigenvalue(matrix)


def _squared(axis: GaussianProcess, tail: float, reach: Array) -> Array:
    return np.asarray(axis.variance**2 * tail * reach**2)


def endless_tail(axis: GaussianProcess, interval: float) -> float:
    """Σ_{j ≥ 1} g(j·interval)², bounded from above: releases for ever, at least ``interval`` apart, of unit noise."""
    if not (math.isfinite(interval) and interval > 0):
        raise ParameterError("interval", interval, "a finite number above 0")
    squares = axis.envelope(interval * np.arange(1, N_TAIL_TERMS + 1)) ** 2
    rest = float(squares[-1] * squares[0] / (1.0 - squares[0])) if squares[0] < 1.0 else math.inf
    return float(squares.sum()) + rest


@dataclass(frozen=True)
class PromisedTrace:
    """Prior, declared future and block of a trace (times in seconds); a broken declaration makes its loss infinite."""

    # `is_bounded` is False where the releases have no known bound at all.

    axis: GaussianProcess
    future: Future | None
    block: int
    is_bounded: bool = True

    @staticmethod
    def start() -> State:
        """Nothing released."""
        return start_trace(1) | {"broken": np.asarray(False)}

    def after(self, state: State, time: float, sigma: float) -> State:
        """State after one more release; without a known bound, or against the declaration, it is broken for good."""
        # `sigma` is the standard deviation of the noise in metres: infinite for a repetition, 0 where no bound is
        # known.
        sigma = sigma if self.is_bounded else 0.0
        if bool(state["broken"]) or np.isinf(sigma):
            return state
        times, future = state["times"], self.future
        early = future is not None and len(times) > 0 and time - times[-1] < future.interval
        if sigma == 0 or early or (future is not None and sigma < future.sigma):
            return self.start() | {"broken": np.asarray(True)}
        return add_release(state, time, sigma, (self.axis,), self.block) | {"broken": np.asarray(False)}


def regular_trace_loss(
    sigma: float,
    interval: float,
    n_points: int,
    secrets: Sequence[Indices],
    axes: Sequence[GaussianProcess],
    radius: float,
    order: float,
) -> float:
    """Bound on the largest loss of some secrets within a trace that has no beginning and no end.

    In nats; infinite if ``n_points`` are too few for the length scale. O(n_points³) for each secret and
    axis.

    >>> axes = (GaussianProcess(length_scale=1.0),)
    >>> [round(regular_trace_loss(1.0, 1.0, n, [np.array([n // 2])], axes, 1.0, 2.0), 4) for n in (9, 21, 41)]
    [1.5308, 1.5305, 1.5305]
    """
    state = {
        "times": interval * np.arange(n_points, dtype=np.float64),
        "noise_variance": np.full((n_points, len(axes)), sigma**2),
        "past": np.array([endless_tail(axis, interval) / sigma**2 for axis in axes]),
    }
    return float(running_losses(state, axes, secrets, radius, order, Future(interval, sigma)).loss.max())


def smallest_regular_sigma(
    goal: float,
    interval: float,
    n_points: int,
    secrets: Sequence[Indices],
    axes: Sequence[GaussianProcess],
    radius: float,
    order: float,
) -> float:
    """Least σ for which `regular_trace_loss` is at most ``goal``, found by bisection.

    >>> axes = (GaussianProcess(length_scale=1.0),)
    >>> round(smallest_regular_sigma(1.0, 1.0, 41, [np.array([20])], axes, 1.0, 2.0), 4)
    1.2605
    """
    if not (math.isfinite(goal) and goal > 0):
        raise ParameterError("goal", goal, "a finite number above 0")
    if any(math.isinf(endless_tail(axis, interval)) for axis in axes):
        raise ParameterError("kernel", "periodic", "one that fades, for a trace without an end")

    def excess(log_sigma: float) -> float:
        """Nats above the goal."""
        return regular_trace_loss(math.exp(log_sigma), interval, n_points, secrets, axes, radius, order) - goal

    largest = max(len(indices) for indices in secrets)
    low = math.log(radius * math.sqrt(0.5 * order * largest / goal))
    if excess(low) <= 0:
        return math.exp(low)
    high = low + 1.0
    while excess(high) > 0:
        low, high = high, high + 1.0
    while high - low > PRECISION:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high)
