"""Noise with dependence of its own: the same guarantee with less of it.

`designed_covariance` solves the joint convex problem over all secrets. `dominating_covariance` is the way of Meehan
and Chaudhuri (2021): the best noise for each secret alone, then the least noise that dominates all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from accountants.gaussian_process.exponentiated_gradient import minimise_worst_loss
from accountants.gaussian_process.kernels import Array, GaussianProcess
from accountants.gaussian_process.loss import Response, conditional_response, loss_per_eigenvalue
from accountants.gaussian_process.noise import checked_times
from accountants.gaussian_process.secrets import secret_family
from mechanisms.core.errors import ParameterError


def _cases(
    times: ArrayLike, secrets: Any, radius: float | Sequence[float], order: float, model: GaussianProcess
) -> list[tuple[float, Response]]:
    points = checked_times(times)
    family = secret_family(secrets, len(points))
    radii = list(np.atleast_1d(np.asarray(radius, dtype=np.float64)))
    if len(radii) not in {1, len(family)}:
        raise ParameterError("radius", radius, f"one number, or {len(family)}: one for each secret")
    covariance = model.covariance(points)
    return [
        (loss_per_eigenvalue(len(indices), float(r), order), conditional_response(covariance, indices))
        for indices, r in zip(family, radii * len(family) if len(radii) == 1 else radii)
    ]


def designed_covariance(
    times: ArrayLike,
    secrets: Any,
    total_variance: float,
    length_scale: float,
    radius: float | Sequence[float] = 1.0,
    order: float = 2.0,
    kernel: str = "rbf",
    variance: float = 1.0,
    period: float | None = None,
    *,
    nugget: float = 0.0,
    tolerance: float = 1e-2,
) -> Array:
    """Noise covariance of one axis that makes the worst loss over all secrets as small as its total variance allows.

    Minimises γ subject to trace Σ_g = ``total_variance`` and, for every secret S, w_S·λ_max(M_Sᵀ(Σ_g + D_S)⁻¹M_S) ≤ γ,
    w_S = (λ/2)·|S|·r_S². Give the result as ``noise_covariance`` to `conditional_inferential_loss`.

    Parameters
    ----------
    times
        Times of the points, shape (n,).
    secrets
        Sequence of secret subsets (indices or masks), or one.
    total_variance
        Sum of the noise variances of the n points, above 0.
    length_scale, kernel, variance, period, nugget
        Prior of the axis, see `GaussianProcess`; one value each (design each axis on its own).
    radius
        One number, or one for each secret. Only the ratios of the radii change the design.
    order
        Order λ of the loss; does not change the design.
    tolerance
        Relative distance from the optimum that the result is proved to have.

    Returns
    -------
    array (n, n)
        Positive definite. O(n³) for each secret and iteration, 50 to 4,000 iterations.

    Raises
    ------
    ParameterError
        As `conditional_inferential_loss`, and if total_variance is not above 0.

    Examples
    --------
    >>> from accountants.gaussian_process.loss import conditional_inferential_loss as loss
    >>> times, secrets = [0.0, 1.0, 2.0, 3.0], [[0, 2], [1, 3]]
    >>> noise = designed_covariance(times, secrets, 4.0, length_scale=2.0)
    >>> designed = max(loss(times, s, None, 2.0, 1.0, 2.0, noise_covariance=noise)[0] for s in secrets)
    >>> white = max(loss(times, s, 1.0, 2.0, 1.0, 2.0)[0] for s in secrets)
    >>> round(float(np.trace(noise)), 6), white / designed > 1.4
    (4.0, True)
    """
    model = GaussianProcess(kernel=kernel, length_scale=length_scale, variance=variance, period=period, nugget=nugget)
    return minimise_worst_loss(_cases(times, secrets, radius, order, model), total_variance, tolerance).covariance


def dominating_covariance(
    times: ArrayLike,
    secrets: Any,
    goal: float,
    length_scale: float,
    radius: float | Sequence[float] = 1.0,
    order: float = 2.0,
    kernel: str = "rbf",
    variance: float = 1.0,
    period: float | None = None,
    *,
    nugget: float = 0.0,
    tolerance: float = 1e-2,
) -> Array:
    """Noise covariance that dominates the best one for each secret alone (the published way, for comparison).

    A secret reaches the goal γ iff Σ_g ⪰ w_S·M_S·M_Sᵀ/γ − D_S, and the least noise that does is the positive part of
    that matrix. The published way dominates these positive parts, where dominating the matrices themselves is enough:
    it reaches the goal for every secret, with more noise than `designed_covariance` needs.

    Parameters
    ----------
    goal
        Largest loss allowed for each secret, nats.
    times, secrets, length_scale, radius, order, kernel, variance, period, nugget, tolerance
        As in `designed_covariance`.

    Returns
    -------
    array (n, n)
        Its trace is the total variance needed.

    Examples
    --------
    Points that nothing relates need the same noise each, r²·(λ/2)/goal.

    >>> dominating_covariance([0.0, 100.0], [[0], [1]], goal=0.5, length_scale=1.0, tolerance=1e-3).round(2)
    array([[2., 0.],
           [0., 2.]])
    """
    if not (math.isfinite(goal) and goal > 0):
        raise ParameterError("goal", goal, "a finite number above 0")
    model = GaussianProcess(kernel=kernel, length_scale=length_scale, variance=variance, period=period, nugget=nugget)
    cases = _cases(times, secrets, radius, order, model)
    needed = [_positive_part(weight / goal * r.mean @ r.mean.T - r.residual) for weight, r in cases]
    # Σ ⪰ R·Rᵀ for all R iff λ_max(Rᵀ Σ⁻¹ R) ≤ 1: the same problem without a residual, then scaled.
    roots = [(1.0, Response(root, np.zeros((len(root), len(root))))) for root in needed]
    design = minimise_worst_loss(roots, float(sum((root**2).sum() for root in needed)), tolerance)
    return design.worst * design.covariance


def _positive_part(matrix: Array) -> Array:
    """Root R of the positive part, R·Rᵀ: the Σ ⪰ 0 of least trace with Σ ⪰ matrix."""
    eigenvalues, vectors = linalg.eigh(0.5 * (matrix + matrix.T))
    kept = eigenvalues > 0
    root: Array = vectors[:, kept] * np.sqrt(eigenvalues[kept])
    return root
