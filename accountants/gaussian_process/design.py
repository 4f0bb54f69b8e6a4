"""Design noise covariances by exponentiated gradient, to give the same guarantee with less noise.

`designed_covariance` solves the joint convex problem over all secrets. Meehan and Chaudhuri (2021) design the best
noise for each secret alone and take the least noise that dominates all of them, which needs more.

The loss of case c is w_c·λ_max(M_cᵀ (Σ + D_c)⁻¹ M_c), convex in Σ. Matrix exponentiated gradient keeps Σ positive
definite with the given trace by construction (Tsuda, Rätsch and Warmuth, *Matrix exponentiated gradient updates*,
2005); the maximum is smoothed by a softmax over all eigenvalues of all cases, sharpened as progress slows. The best
Σ may be singular; a tenth of the tolerance of its trace is spread evenly, so that it stays well conditioned.

All secrets S of a prior K share one factor: with A = Σ + K, Z = A⁻¹K and the posterior covariance P = ΣZ,
(Σ + D_S)⁻¹ M_S = Z_S P_SS⁻¹ (Woodbury), since D_S is K less a matrix of rank |S|.

Certificate: for weights P_c ⪰ 0 with Σ tr P_c = 1, X_c = (Σ + D_c)⁻¹ M_c and Y = Σ w_c·X_c P_c X_cᵀ, convexity gives

    every Σ' of trace τ has a largest loss of at least  Σ w_c·tr(P_c M_cᵀ X_c) + ⟨Y, Σ⟩ − τ·λ_max(Y).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from penstock.accountants.gaussian_process.kernels import Array, GaussianProcess, Indices, checked_times, secret_family
from penstock.accountants.gaussian_process.loss import loss_per_eigenvalue, well_conditioned
from penstock.mechanisms.core.plugin import ParameterError

FIRST_SHARPNESS = 20.0
WHITE_SHARE = 0.1


def designed_covariance(
    times: ArrayLike,
    secrets: Any,
    total_variance: float,
    length_scale: float,
    radius: float = 1.0,
    order: float = 2.0,
    kernel: str = "rbf",
    variance: float = 1.0,
    period: float | None = None,
    *,
    nugget: float = 0.0,
    tolerance: float = 1e-2,
) -> Array:
    """Design the noise covariance for one axis that minimises the largest loss of any secret at a given total variance.

    Minimises γ subject to trace Σ_g = ``total_variance`` and, for every secret S, w_S·λ_max(M_Sᵀ(Σ_g + D_S)⁻¹M_S) ≤ γ,
    w_S = (λ/2)·|S|·r². Give the result as ``noise_covariance`` to `conditional_inferential_loss`. It is
    designed for one ``length_scale``; shorter ones may lose more.

    Parameters
    ----------
    times
        Times of the points, shape (n,).
    secrets
        Sequence of secret subsets (indices or masks), or one.
    total_variance
        Sum of the noise variances of the n points, above 0.
    length_scale, kernel, variance, period, nugget
        Prior of the axis, see `GaussianProcess`.
    radius, order
        Of the loss; they do not change the design.
    tolerance
        Relative distance from the optimum that the result is proved to have.

    Returns
    -------
    array (n, n)
        Positive definite. O(n³ + n²·Σ|S|) an iteration, 50 to 4,000 iterations.

    Raises
    ------
    ParameterError
        As `conditional_inferential_loss`, and if total_variance is not above 0.

    Examples
    --------
    >>> from penstock.accountants.gaussian_process.loss import conditional_inferential_loss as loss
    >>> times, secrets = [0.0, 1.0, 2.0, 3.0], [[0, 2], [1, 3]]
    >>> noise = designed_covariance(times, secrets, 4.0, length_scale=2.0)
    >>> designed = max(loss(times, s, None, 2.0, 1.0, 2.0, noise_covariance=noise)[0] for s in secrets)
    >>> white = max(loss(times, s, 1.0, 2.0, 1.0, 2.0)[0] for s in secrets)
    >>> round(float(np.trace(noise)), 6), white / designed > 1.4
    (4.0, True)
    """
    prior = GaussianProcess(kernel=kernel, length_scale=length_scale, variance=variance, period=period, nugget=nugget)
    return minimise_worst_loss(cases(prior, times, secrets, radius, order), total_variance, tolerance).covariance


class Case(NamedTuple):
    """All secrets of one size under one prior, as a prior covariance (n, n) and secret indices (n_secrets, size)."""

    weight: float
    covariance: Array
    secrets: NDArray[np.intp]


def cases(
    prior: GaussianProcess, times: ArrayLike, secrets: Any, radius: float = 1.0, order: float = 2.0
) -> list[Case]:
    """Group secrets by size for `minimise_worst_loss`."""
    points, of_size = checked_times(times), dict[int, list[Indices]]()
    covariance = prior.covariance(points)
    for indices in secret_family(secrets, len(points)):
        of_size.setdefault(len(indices), []).append(indices)
        if len(indices) < len(points):
            well_conditioned(covariance[np.ix_(indices, indices)])
    # Where every point is a secret, none has to be told from others: any prior will do.
    unrelated = (prior.variance + prior.nugget) * np.eye(len(points))
    return [
        Case(
            loss_per_eigenvalue(size, radius, order),
            covariance if size < len(points) else unrelated,
            np.array([np.sort(indices) for indices in sets], np.intp),
        )
        for size, sets in of_size.items()
    ]


class Design(NamedTuple):
    """A noise covariance, its largest loss (also smoothed), the next step's direction and a proved lower bound."""

    covariance: Array
    worst: float
    smooth: float
    descent: Array
    lower_bound: float


def minimise_worst_loss(
    cases: Sequence[Case], total_variance: float, tolerance: float = 1e-2, n_iterations: int = 5_000
) -> Design:
    """Minimise the largest loss over all secrets, among noise covariances with a given trace."""
    # Stops once the largest loss is proved to be within the relative `tolerance` of the optimum, or after
    # `n_iterations`: then the covariance is a valid design all the same, and `lower_bound` says how good. Seldom above
    # a thousand iterations.
    if not (math.isfinite(total_variance) and total_variance > 0):
        raise ParameterError("total_variance", total_variance, "a finite number above 0")
    if not 0 < tolerance < 1:
        raise ParameterError("tolerance", tolerance, "a number between 0 and 1")
    n_eigenvalues = sum(case.secrets.size for case in cases)
    sharpness, sharpest = FIRST_SHARPNESS, max(FIRST_SHARPNESS, 4.0 * math.log(n_eigenvalues + 1) / tolerance)
    exponent, step = np.zeros_like(cases[0].covariance), 1.0
    white = WHITE_SHARE * tolerance
    now = _evaluate(exponent, cases, total_variance, white, sharpness)
    best, lower_bound = now, now.lower_bound
    for _ in range(n_iterations):
        if best.worst <= (1.0 + tolerance) * lower_bound:
            break
        candidate = exponent + (step * total_variance / now.worst) * now.descent
        proposal = _evaluate(candidate, cases, total_variance, white, sharpness)
        gain = 1.0 - proposal.smooth / now.smooth
        if gain > 0:
            exponent, now, step = candidate, proposal, 1.3 * step
        else:
            step = 0.5 * step
        if sharpness < sharpest and (0 < gain < 1e-3 * tolerance or step < 1e-4):
            sharpness, step = min(2.0 * sharpness, sharpest), max(step, 0.1)
            now = _evaluate(exponent, cases, total_variance, white, sharpness)
        best = min(best, now, key=lambda evaluation: evaluation.worst)
        lower_bound = max(lower_bound, now.lower_bound)
    return best._replace(lower_bound=lower_bound)


def _evaluate(exponent: Array, cases: Sequence[Case], total_variance: float, white: float, sharpness: float) -> Design:
    logs, axes = linalg.eigh(exponent)
    shares = np.exp(logs - logs[-1])
    mixed = (1.0 - white) * shares / shares.sum() + white / len(shares)
    covariance = (axes * (total_variance * mixed)) @ axes.T
    losses, directions = [], []
    for weight, prior, secrets in cases:
        gain = linalg.cho_solve(linalg.cho_factor(covariance + prior), prior)
        posterior, explained, block = covariance @ gain, prior @ gain, (secrets[:, :, None], secrets[:, None, :])
        solved = np.linalg.solve(posterior[block], gain.T[secrets])
        matrix = weight * np.linalg.solve(prior[block], explained[block]) @ np.linalg.inv(posterior[block])
        eigenvalues, vectors = np.linalg.eigh(0.5 * (matrix + matrix.swapaxes(1, 2)))
        losses.append(eigenvalues.ravel())
        rows = math.sqrt(weight) * vectors.swapaxes(1, 2) @ solved
        directions.append(rows.reshape(-1, len(covariance)).T)
    loss, direction = np.concatenate(losses), np.concatenate(directions, axis=1)
    worst = float(loss.max())
    powers = np.exp(sharpness * (loss / worst - 1.0))
    weights = powers / powers.sum()
    descent = (direction * weights) @ direction.T
    smooth = worst * (1.0 + math.log(powers.sum()) / sharpness)
    steepest = float(linalg.eigvalsh(descent)[-1])
    lower_bound = float(weights @ loss) + float((descent * covariance).sum()) - total_variance * steepest
    return Design(covariance, worst, smooth, descent, lower_bound)
