"""What a loss means: odds, and how well the trace can be located."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from accountants.gaussian_process.kernels import Array, GaussianProcess
from accountants.gaussian_process.noise import checked_times, noise_covariances
from mechanisms.core.errors import ParameterError


class LogOddsChange(NamedTuple):
    """How much a release changes the log-odds of two hypotheses, in expectation, nats.

    ``bound`` is the paper's Corollary 1, the loss itself; ``exact`` is the Kullback–Leibler divergence, which for
    Gaussian releases of equal covariance is the loss divided by its order.
    """

    bound: float
    exact: float


def expected_log_odds_change(loss: float, order: float) -> LogOddsChange:
    """Read a loss as the expected change of log-odds between the two worst hypotheses, whatever the odds were before.

    Parameters
    ----------
    loss
        From `conditional_inferential_loss`, nats.
    order
        Its order λ ≥ 1.

    Raises
    ------
    ParameterError
        If the loss is negative or the order below 1.

    Notes
    -----
    Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021, Corollary 1. The divergence grows
    with its order, so order 1 is below any other; between N(a, V) and N(b, V) it is proportional to the order.

    Examples
    --------
    >>> expected_log_odds_change(1.0, order=2.0)
    LogOddsChange(bound=1.0, exact=0.5)
    """
    if not loss >= 0:
        raise ParameterError("loss", loss, "a number of at least 0")
    if not (math.isfinite(order) and order >= 1):
        raise ParameterError("order", order, "a finite number of at least 1")
    return LogOddsChange(float(loss), float(loss / order))


def posterior(
    times: ArrayLike,
    releases: ArrayLike,
    sigma: ArrayLike | None,
    model: GaussianProcess,
    noise_covariance: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Where an adversary who knows the prior places each point of one axis, given all releases.

    Parameters
    ----------
    times, releases
        Times and released positions of the points on one axis, shape (n,).
    sigma, noise_covariance
        The noise, as in `conditional_inferential_loss`.
    model
        Prior of the axis.

    Returns
    -------
    mean, interval
        Posterior means, and 2·sqrt(posterior variance): a point is within ``interval`` of its mean with probability
        0.954. Shape (n,) each; the intervals do not depend on the releases. O(n³).

    Raises
    ------
    ParameterError
        If a shape is wrong or the noise not positive definite.

    Examples
    --------
    >>> mean, interval = posterior([0.0], [3.0], 1.0, GaussianProcess(length_scale=1.0, variance=2.0))
    >>> mean, interval.round(3)
    (array([2.]), array([1.633]))
    """
    points, released = checked_times(times), np.asarray(releases, dtype=np.float64)
    if released.shape != points.shape:
        raise ParameterError("releases", released.shape, f"of shape {points.shape}, like times")
    noise = noise_covariances(len(points), 1, sigma, noise_covariance)[0]
    prior = model.covariance(points)
    factor = linalg.cho_factor(prior + noise)
    # Σ_g − Σ_g(Σ + Σ_g)⁻¹Σ_g, not Σ − Σ(Σ + Σ_g)⁻¹Σ: no cancellation where the noise is small.
    variances = np.diag(noise) - np.einsum("ij,ij->j", noise, linalg.cho_solve(factor, noise))
    mean: Array = prior @ linalg.cho_solve(factor, released)
    return mean, 2.0 * np.sqrt(np.maximum(variances, 0.0))
