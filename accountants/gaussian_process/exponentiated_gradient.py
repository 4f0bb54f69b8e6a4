"""Minimise the largest loss over noise covariances of a given trace, without a semidefinite solver.

The loss of case c is w_c·λ_max(M_cᵀ (Σ + D_c)⁻¹ M_c), convex in Σ. Matrix exponentiated gradient keeps Σ positive
definite with the given trace by construction (Tsuda, Rätsch and Warmuth, *Matrix exponentiated gradient updates*,
2005); the maximum is smoothed by a softmax over all eigenvalues of all cases, sharpened as progress slows. The best Σ
may be singular; a tenth of the tolerance of its trace is spread evenly, so that it stays well conditioned.

Certificate: for weights P_c ⪰ 0 with Σ tr P_c = 1, X_c = (Σ + D_c)⁻¹ M_c and Y = Σ w_c·X_c P_c X_cᵀ, convexity gives

    every Σ' of trace τ has a largest loss of at least  Σ w_c·tr(P_c M_cᵀ X_c) + ⟨Y, Σ⟩ − τ·λ_max(Y).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg

from accountants.gaussian_process.kernels import Array
from accountants.gaussian_process.loss import Response
from mechanisms.core.errors import ParameterError

FIRST_SHARPNESS = 20.0
WHITE_SHARE = 0.1


class Design(NamedTuple):
    """A noise covariance, the largest loss it has, and a certified lower bound on what any other could have."""

    covariance: Array
    worst: float
    lower_bound: float


class _Evaluation(NamedTuple):
    covariance: Array
    worst: float
    smooth: float
    descent: Array
    lower_bound: float


def minimise_worst_loss(
    cases: Sequence[tuple[float, Response]],
    total_variance: float,
    tolerance: float = 1e-2,
    n_iterations: int = 5_000,
) -> Design:
    """Noise covariance of a given trace with the least possible largest loss.

    Parameters
    ----------
    cases
        Pairs (weight w, response) of what must be protected, all on the same n points.
    total_variance
        Trace of the covariance.
    tolerance
        Stop once the largest loss is proved to be within this relative distance of the optimum.
    n_iterations
        Stop then at the latest: the covariance is a valid design all the same, and ``lower_bound`` says how good.

    Returns
    -------
    Design
        O(n³) an iteration and case; seldom above a thousand iterations.

    Raises
    ------
    ParameterError
        If total_variance or tolerance is not above 0.

    Examples
    --------
    Two unrelated points, the second with twice the weight: it gets two thirds of the noise.

    >>> first, second = np.eye(2)[:, :1], np.eye(2)[:, 1:]
    >>> cases = [(1.0, Response(first, np.zeros((2, 2)))), (2.0, Response(second, np.zeros((2, 2))))]
    >>> design = minimise_worst_loss(cases, 3.0, tolerance=1e-4)
    >>> design.covariance.diagonal().round(3), round(design.worst, 3)
    (array([1., 2.]), 1.0)
    """
    if not (math.isfinite(total_variance) and total_variance > 0):
        raise ParameterError("total_variance", total_variance, "a finite number above 0")
    if not 0 < tolerance < 1:
        raise ParameterError("tolerance", tolerance, "a number between 0 and 1")
    n_eigenvalues = sum(response.mean.shape[1] for _, response in cases)
    sharpness, sharpest = FIRST_SHARPNESS, max(FIRST_SHARPNESS, 4.0 * math.log(n_eigenvalues + 1) / tolerance)
    exponent, step = np.zeros_like(cases[0][1].residual), 1.0
    white = WHITE_SHARE * tolerance
    now = _evaluate(exponent, cases, total_variance, white, sharpness)
    best, lower_bound = now, now.lower_bound
    for _ in range(n_iterations):
        if best.worst <= (1.0 + tolerance) * lower_bound:
            break
        candidate = exponent + (step * total_variance / now.worst) * now.descent
        then = _evaluate(candidate, cases, total_variance, white, sharpness)
        gain = 1.0 - then.smooth / now.smooth
        if gain > 0:
            exponent, now, step = candidate, then, 1.3 * step
        else:
            step = 0.5 * step
        if sharpness < sharpest and (0 < gain < 1e-3 * tolerance or step < 1e-4):
            sharpness, step = min(2.0 * sharpness, sharpest), max(step, 0.1)
            now = _evaluate(exponent, cases, total_variance, white, sharpness)
        best = min(best, now, key=lambda evaluation: evaluation.worst)
        lower_bound = max(lower_bound, now.lower_bound)
    return Design(best.covariance, best.worst, lower_bound)


def _evaluate(
    exponent: Array, cases: Sequence[tuple[float, Response]], total_variance: float, white: float, sharpness: float
) -> _Evaluation:
    logs, axes = linalg.eigh(exponent)
    shares = np.exp(logs - logs[-1])
    mixed = (1.0 - white) * shares / shares.sum() + white / len(shares)
    covariance = (axes * (total_variance * mixed)) @ axes.T
    losses, directions = [], []
    for weight, response in cases:
        solved = linalg.cho_solve(linalg.cho_factor(covariance + response.residual), response.mean)
        eigenvalues, vectors = linalg.eigh(weight * (response.mean.T @ solved))
        losses.append(eigenvalues)
        directions.append(math.sqrt(weight) * (solved @ vectors))
    loss, direction = np.concatenate(losses), np.concatenate(directions, axis=1)
    worst = float(loss.max())
    powers = np.exp(sharpness * (loss / worst - 1.0))
    weights = powers / powers.sum()
    descent = (direction * weights) @ direction.T
    smooth = worst * (1.0 + math.log(powers.sum()) / sharpness)
    steepest = float(linalg.eigvalsh(descent)[-1])
    lower_bound = float(weights @ loss) + float((descent * covariance).sum()) - total_variance * steepest
    return _Evaluation(covariance, worst, smooth, descent, lower_bound)
