"""Compute the loss along an infinite trace in bounded memory.

State holds the times and noise of the points in a block of the last ones, and one number for each of some length scales
that bounds all points that have left it. It grows with the length scale, so that of the next longer one bounds those in
between. Nothing in it depends on where the user was.

A point that has left the block is never forgotten, only bounded. With P = Cov[x_S given the block's releases], every
older release o lowers P by at most c·cᵀ/σ_o², c = Cov[x_S, x_o given the block's releases]
= L·k_o, L the rows of Σ_g(Σ + Σ_g)⁻¹ at S and k_o the prior covariance of the block with o. All the kernels here fade
at least as fast as an envelope g with g(s + t) ≤ g(s)·g(t), so |k_o| ≤ σ_x²·g(edge − t_o)·g(t_b − edge), and in
Loewner order

    Σ_o c·cᵀ/σ_o² ⪯ diag ρ,  ρ_s = σ_x⁴·|S|·tail·(Σ_b |L_sb|·g(t_b − edge))²,  tail = Σ_o g(edge − t_o)²/σ_o².

The loss matrix is then at most that of the block plus (P − diag ρ)⁻¹ − P⁻¹; where P − diag ρ is not positive definite
the block is too short for the prior, and the loss is reported as infinite.

Where the noise of a point depends on that of others, ``noise_variance`` is its covariance, and the block all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg

from penstock.accountants.gaussian_process.kernels import Array, GaussianProcess, Indices
from penstock.accountants.gaussian_process.loss import (
    conditional_response,
    independent_eigenvalue,
    largest_eigenvalue,
    loss_matrix,
    loss_per_eigenvalue,
)
from penstock.mechanisms.core.plugin import ParameterError
from penstock.mechanisms.core.state import State

#: Length scales of a class for which the past is kept: so many to a factor e, from the longest down.
PER_FACTOR_E, N_SCALES = 8, 64
#: Relative error of a loss matrix up to which that of many secrets is worked out at once.
LARGEST_ERROR = 1e-9


class RunningLoss(NamedTuple):
    """Losses in nats per secret, and intervals 2·sqrt(posterior variance) per point of the block, after a release."""

    loss: Array
    independent_loss: Array
    interval: Array


def start_trace(n_scales: int = 1) -> State:
    """Return the initial state for the longest length scale and any shorter ones."""
    return {"times": np.zeros(0), "noise_variance": np.zeros(0), "past": np.zeros(n_scales)}


def add_release(state: State, time: float, sigma: float, prior: GaussianProcess, block: int) -> State:
    """Return the state after another release with noise whose standard deviation is ``sigma``."""
    times, variances, past = state["times"], state["noise_variance"], state["past"]
    if not (math.isfinite(sigma) and sigma > 0):
        raise ParameterError("sigma", sigma, "a finite number above 0")
    if not math.isfinite(time) or (times.size and time < times[-1]):
        raise ParameterError("time", time, f"not before the last release ({times[-1] if times.size else 'finite'})")
    times, variances = np.append(times, time), np.append(variances, sigma**2)
    scales = prior.length_scale * np.exp(-np.arange(len(past)) / PER_FACTOR_E)
    while len(times) > block:
        past = (past + 1.0 / variances[0]) * prior.envelope(times[1] - times[0], scales) ** 2
        times, variances = times[1:], variances[1:]
    return {"times": times, "noise_variance": variances, "past": past}


def running_losses(
    state: State, prior: GaussianProcess, secrets: Sequence[Indices], radius: float, order: float
) -> RunningLoss:
    """Return each secret's loss after all releases so far, never below the loss given the trace. O(block³) each."""
    block = TraceBlock(prior, state, np.array([prior.length_scale]))
    weight = np.array([loss_per_eigenvalue(len(indices), radius, order) for indices in secrets])
    independent = np.array([independent_eigenvalue(prior, block.noise, indices) for indices in secrets])
    variances = np.maximum(block.posterior[0].diagonal() - block.outside[0], 0.0)
    return RunningLoss(weight * block.largest_eigenvalues(secrets)[0], weight * independent, 2.0 * np.sqrt(variances))


def largest_losses(
    state: State, prior: GaussianProcess, secrets: Sequence[Indices], radius: float, order: float, length_scales: Array
) -> Array:
    """Return the maximum of `running_losses` at each of several length scales up to the prior's, shape (n_scales,)."""
    weight = np.array([loss_per_eigenvalue(len(indices), radius, order) for indices in secrets])
    losses: Array = weight * TraceBlock(prior, state, length_scales).largest_eigenvalues(secrets)
    return np.asarray(losses.max(axis=1))


class TraceBlock:
    """The posterior of a block's points for each length scale, and a bound on the influence of points outside it."""

    def __init__(self, prior: GaussianProcess, state: State, length_scales: Array) -> None:
        times, noise, past = state["times"], state["noise_variance"], state["past"]
        is_dependent = noise.ndim == 2
        scales = length_scales[:, None, None]
        self.prior = prior.covariance(times, scales)
        self.noise = noise if is_dependent else np.diag(noise)
        deviations = np.sqrt(self.noise.diagonal())
        both = np.multiply.outer(deviations, deviations)
        whitened = self.prior / both
        if is_dependent:
            root = np.linalg.cholesky(noise / both)
            whitened = np.linalg.solve(root, np.linalg.solve(root, whitened).swapaxes(-1, -2))
        eigenvalues, vectors = np.linalg.eigh(whitened)
        eigenvalues = np.maximum(eigenvalues, 0.0)[:, None, :]
        across = vectors.swapaxes(-1, -2)
        left, right = (root @ vectors, across @ root.T) if is_dependent else (vectors, across)
        self.posterior = both * ((left * (eigenvalues / (1 + eigenvalues))) @ right)
        self.gained = both * ((left * (eigenvalues**2 / (1 + eigenvalues))) @ right)
        self.outside = np.zeros((len(length_scales), len(times)))
        # The bound on the past is kept for the next longer of some length scales.
        longer = np.floor(PER_FACTOR_E * np.log(np.maximum(prior.length_scale / length_scales, 1.0))).astype(int)
        before = past[np.minimum(longer, len(past) - 1)]
        if before.any():
            gain = np.abs((vectors / (1.0 + eigenvalues)) @ across) * np.divide.outer(deviations, deviations)
            envelope = prior.envelope((times - times[0])[:, None], scales)
            self.outside = prior.variance**2 * before[:, None] * (gain @ envelope)[:, :, 0] ** 2

    def largest_eigenvalues(self, family: Sequence[Indices]) -> Array:
        """Return the largest eigenvalue of each secret's loss matrix, (n_scales, n_secrets), or inf."""
        # Infinite where the block is too short.
        # With P the posterior covariance of the secret points less what is outside, and K = Σ_SS − P, the matrix is
        # P⁻¹ − Σ_SS⁻¹ = P⁻¹ K Σ_SS⁻¹, without cancellation. Secrets of one size are worked out at once where they are
        # well conditioned, the others one by one.
        eigenvalues = np.empty((len(self.prior), len(family)))
        sizes = np.array([len(indices) for indices in family])
        for size in np.unique(sizes):
            numbers = np.flatnonzero(sizes == size)
            at = np.stack([family[number] for number in numbers.tolist()])
            rows, columns = at[:, :, None], at[:, None, :]
            outside = np.eye(size) * (size * self.outside[:, at])[..., None]
            prior = self.prior[:, rows, columns]
            left, lost = self.posterior[:, rows, columns] - outside, self.gained[:, rows, columns] + outside
            spread, kept = np.linalg.eigvalsh(prior), np.linalg.eigvalsh(left)
            with np.errstate(divide="ignore", invalid="ignore"):
                error = size * np.finfo(float).eps * (spread[..., -1] / spread[..., 0]) * (kept[..., -1] / kept[..., 0])
            good = (spread[..., 0] > 0) & (kept[..., 0] > 0) & (error < LARGEST_ERROR)
            matrix = np.linalg.solve(prior[good], np.linalg.solve(left[good], lost[good]).swapaxes(-1, -2))
            largest = np.empty(good.shape)
            largest[good] = np.linalg.eigvalsh(0.5 * (matrix + matrix.swapaxes(-1, -2)))[..., -1] * (1 + LARGEST_ERROR)
            for scale, number in zip(*np.nonzero(~good)):
                largest[scale, number] = self._largest_eigenvalue(scale, at[number])
            eigenvalues[:, numbers] = largest
        return eigenvalues

    def _largest_eigenvalue(self, scale: int, secret: Indices) -> float:
        matrix = loss_matrix(conditional_response(self.prior[scale], secret), self.noise)
        reduction = len(secret) * self.outside[scale, secret]
        if reduction.any():
            try:
                factor = linalg.cholesky(self.posterior[scale][np.ix_(secret, secret)], lower=True)
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


@dataclass(frozen=True)
class TraceLossState:
    """A trace's prior and block. The loss stays infinite after any release whose noise has no known bound."""

    # `is_class`: all length scales up to that of the prior are meant.

    prior: GaussianProcess
    block: int
    is_class: bool

    def start(self, is_bounded: bool = True) -> State:
        """Return the initial state."""
        return start_trace(N_SCALES if self.is_class else 1) | {"broken": np.asarray(not is_bounded)}

    def after(self, state: State, time: float, sigma: float) -> State:
        """Add one release with noise of σ metres, which is infinite for a repeat and 0 if no bound is known."""
        if bool(state["broken"]) or np.isinf(sigma):
            return state
        if sigma == 0:
            return self.start(is_bounded=False)
        return add_release(state, time, sigma, self.prior, self.block) | {"broken": np.asarray(False)}
