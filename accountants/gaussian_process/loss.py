"""Conditional inferential privacy loss for a released trace.

Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021, equations 3 and 4, extended from white
noise to any Gaussian noise: a release z = x + g with g ~ N(0, Σ_g) has, given the secret points x_S,

    mean  M_S x_S + const,  M_S = E[x given x_S],   covariance  Σ_g + D_S,  D_S = Cov[x given x_S],

so that two hypotheses δ apart are at the Rényi divergence (λ/2)·δᵀ M_Sᵀ (Σ_g + D_S)⁻¹ M_S δ of order λ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from penstock.accountants.gaussian_process.kernels import (
    Array,
    GaussianProcess,
    Indices,
    checked_times,
    noise_matrix,
    secret_indices,
)
from penstock.mechanisms.core.plugin import ParameterError

LARGEST_RELATIVE_ERROR = 1e-3


class Response(NamedTuple):
    """A trace's mean M_S, (n_points, n_secret), and covariance D_S, (n_points, n_points), given its secret points."""

    mean: Array
    residual: Array


def conditional_response(covariance: Array, secret: Indices) -> Response:
    """Return a Gaussian trace's mean map and residual covariance given its secret points."""
    # Refused if the prior determines one secret point from the others to machine precision, so that the answer would be
    # rounding noise; a nugget makes the model well posed.
    n_points = len(covariance)
    rest = np.setdiff1d(np.arange(n_points), secret)
    mean, residual = np.zeros((n_points, len(secret))), np.zeros_like(covariance)
    mean[secret, np.arange(len(secret))] = 1.0
    if rest.size:
        crossed = covariance[np.ix_(secret, rest)]
        response = linalg.cho_solve(well_conditioned(covariance[np.ix_(secret, secret)]), crossed).T
        mean[rest] = response
        conditional = covariance[np.ix_(rest, rest)] - response @ crossed
        residual[np.ix_(rest, rest)] = 0.5 * (conditional + conditional.T)
    return Response(mean, residual)


def well_conditioned(covariance: Array) -> tuple[Array, bool]:
    """Return the Cholesky factor of a secret's prior covariance. Raise `ParameterError` if it is nearly singular."""
    try:
        factor = linalg.cholesky(covariance, lower=True)
        reciprocal_condition, _ = linalg.lapack.dpocon(factor, np.abs(covariance).sum(axis=0).max(), uplo="L")
    except linalg.LinAlgError:
        reciprocal_condition = 0.0
    if len(covariance) * np.finfo(np.float64).eps > LARGEST_RELATIVE_ERROR * reciprocal_condition:
        raise ParameterError(
            "nugget",
            f"a prior covariance of reciprocal condition {reciprocal_condition:.0e}",
            "large enough that no secret point follows from the others to machine precision",
        )
    return factor, True


def loss_matrix(response: Response, noise: Array) -> Array:
    """Return M_Sᵀ (Σ_g + D_S)⁻¹ M_S, whose quadratic form in δ is twice the order-1 divergence. O(n³)."""
    root = linalg.cholesky(noise + response.residual, lower=True)
    whitened = linalg.solve_triangular(root, response.mean, lower=True)
    return np.asarray(whitened.T @ whitened)


def loss_per_eigenvalue(n_secret: int, radius: float, order: float) -> float:
    """Return (λ/2)·|S|·r², the worst pair's loss in the enclosing ball divided by the largest eigenvalue."""
    if not (math.isfinite(radius) and radius > 0):
        raise ParameterError("radius", radius, "a finite number above 0")
    if not (math.isfinite(order) and order >= 1):
        raise ParameterError("order", order, "a finite number of at least 1")
    return 0.5 * order * n_secret * radius**2


def largest_eigenvalue(matrix: Array) -> float:
    """Return the largest eigenvalue of a symmetric matrix."""
    # NumPy's driver: the one for a single eigenvalue fails on entries that differ by hundreds of powers of ten.
    return float(np.linalg.eigvalsh(matrix)[-1])


def conditional_inferential_loss(
    times: ArrayLike,
    secret: ArrayLike,
    sigma: ArrayLike | None,
    length_scale: float,
    radius: float,
    order: float,
    kernel: str = "rbf",
    variance: float = 1.0,
    period: float | None = None,
    noise_covariance: ArrayLike | None = None,
    *,
    nugget: float = 0.0,
) -> tuple[float, float]:
    """Compute the largest Rényi divergence between releases under two hypotheses about the secret points of a trace.

    Hypotheses are at most ``radius`` apart at every secret point; the figure is exact for the ball around them,
    ‖δ‖ ≤ radius·sqrt(n_secret) over all axes together, so it never understates. Axes are independent and alike, hence
    the worst hypothesis lies on one of them, and the figure is that of one axis. It is that of one ``length_scale``:
    where only the longest is known, a shorter one may lose more.

    Parameters
    ----------
    times
        Times of the points, shape (n,), in any unit.
    secret
        The secret points: indices, or a mask of shape (n,).
    sigma
        Standard deviation of independent noise: one number or (n,); None with ``noise_covariance``.
    length_scale, kernel, variance, period, nugget
        Prior of each axis, see `GaussianProcess`.
    radius
        Distance of the hypotheses at each point, in the unit of sigma.
    order
        Order λ ≥ 1 of the divergence; 1 is Kullback–Leibler.
    noise_covariance
        Covariance Σ_g of dependent noise instead of sigma: (n, n).

    Returns
    -------
    loss, independent_loss
        In nats: under the prior, and under the same variances with no dependence between points (what
        geo-indistinguishability sees). Their ratio is what dependence costs. O(n³).

    Raises
    ------
    ParameterError
        For a wrong shape or bound, and for a prior too nearly singular to give a reliable figure.

    Examples
    --------
    Two points, correlation ρ = exp(−1/2), the first secret: (λ/2)·r²·(1/σ² + ρ²/(1 − ρ² + σ²)).

    >>> loss, independent = conditional_inferential_loss([0.0, 1.0], [0], 1.0, 1.0, radius=1.0, order=2.0)
    >>> round(loss, 6), independent
    (1.2254, 1.0)
    """
    points = checked_times(times)
    indices = secret_indices(secret, len(points))
    prior = GaussianProcess(kernel=kernel, length_scale=length_scale, variance=variance, period=period, nugget=nugget)
    noise = noise_matrix(len(points), sigma, noise_covariance)
    weight = loss_per_eigenvalue(len(indices), radius, order)
    matrix = loss_matrix(conditional_response(prior.covariance(points), indices), noise)
    return weight * largest_eigenvalue(matrix), weight * independent_eigenvalue(prior, noise, indices)


def independent_eigenvalue(prior: GaussianProcess, noise: Array, secret: Indices) -> float:
    """Return the largest eigenvalue of the loss matrix under a prior with the same variances but no correlation."""
    variances = noise.diagonal()
    if np.count_nonzero(noise) == np.count_nonzero(variances):
        return 1.0 / float(variances[secret].min())
    unrelated = (prior.variance + prior.nugget) * np.eye(len(noise))
    return largest_eigenvalue(loss_matrix(conditional_response(unrelated, secret), noise))


def worst_pair(
    times: ArrayLike,
    secret: ArrayLike,
    sigma: ArrayLike | None,
    length_scale: float,
    radius: float = 1.0,
    order: float = 2.0,
    kernel: str = "rbf",
    variance: float = 1.0,
    period: float | None = None,
    noise_covariance: ArrayLike | None = None,
    *,
    nugget: float = 0.0,
) -> Array:
    """Return the direction from the truth to the hypothesis that attains `conditional_inferential_loss`.

    Parameters
    ----------
    times, secret, sigma, length_scale, radius, order, kernel, variance, period, noise_covariance, nugget
        As in `conditional_inferential_loss`. The direction does not depend on radius and order, which are checked only.

    Returns
    -------
    array
        Unit vector over the secret points in order of their index, its largest entry positive: shape (n_secret,).
        O(n³).

    Raises
    ------
    ParameterError
        As `conditional_inferential_loss`.

    Examples
    --------
    Three points in a row: shifting the outer two together says most about the middle one.

    >>> worst_pair([0.0, 1.0, 2.0], [0, 2], 1.0, 1.0).round(4)
    array([0.7071, 0.7071])
    """
    points = checked_times(times)
    indices = secret_indices(secret, len(points))
    prior = GaussianProcess(kernel=kernel, length_scale=length_scale, variance=variance, period=period, nugget=nugget)
    loss_per_eigenvalue(len(indices), radius, order)
    noise = noise_matrix(len(points), sigma, noise_covariance)
    vector: Array = linalg.eigh(loss_matrix(conditional_response(prior.covariance(points), indices), noise))[1][:, -1]
    return np.asarray(vector * np.sign(vector[np.argmax(np.abs(vector))]))
