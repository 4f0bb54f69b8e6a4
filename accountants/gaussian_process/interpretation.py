"""Interpretation of a loss: odds, location and the worst pair of hypotheses.

Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021, Corollary 1 and figure 2.
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
    checked_times,
    noise_matrix,
    secret_indices,
)
from penstock.accountants.gaussian_process.loss import (
    conditional_response,
    loss_matrix,
    loss_per_eigenvalue,
)
from penstock.mechanisms.core.plugin import ParameterError


class LogOddsChange(NamedTuple):
    """Expected change of the log-odds of two hypotheses by a release, nats.

    ``bound`` is the paper's Corollary 1, the loss itself; ``exact`` is the Kullback–Leibler divergence, which for
    Gaussian releases of equal covariance is the loss divided by its order.
    """

    bound: float
    exact: float


def expected_log_odds_change(loss: float, order: float) -> LogOddsChange:
    """Read a loss as the expected change of log-odds between the two worst hypotheses, whatever the odds were before.

    Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021, Corollary 1. The divergence grows
    with its order, so order 1 is below any other; between N(a, V) and N(b, V) it is proportional to the order.

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
    """Posterior of each point of one axis for an adversary who knows the prior, given all releases.

    `times`, `releases`: times and released positions of the points on one axis, shape (n,).

    Returns mean, interval: posterior means, and 2·sqrt(posterior variance): a point is within ``interval`` of its mean
    with probability 0.954. Shape (n,) each; the intervals do not depend on the releases. O(n³).

    >>> mean, interval = posterior([0.0], [3.0], 1.0, GaussianProcess(length_scale=1.0, variance=2.0))
    >>> mean, interval.round(3)
    (array([2.]), array([1.633]))
    """
    points, released = checked_times(times), np.asarray(releases, dtype=np.float64)
    if released.shape != points.shape:
        raise ParameterError("releases", released.shape, f"of shape {points.shape}, like times")
    noise = noise_matrix(len(points), sigma, noise_covariance)
    prior = model.covariance(points)
    factor = linalg.cho_factor(prior + noise)
    # Σ_g − Σ_g(Σ + Σ_g)⁻¹Σ_g, not Σ − Σ(Σ + Σ_g)⁻¹Σ: no cancellation where the noise is small.
    variances = np.diag(noise) - np.einsum("ij,ij->j", noise, linalg.cho_solve(factor, noise))
    mean: Array = prior @ linalg.cho_solve(factor, released)
    return mean, 2.0 * np.sqrt(np.maximum(variances, 0.0))


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
    """Direction from the truth to the hypothesis that attains `conditional_inferential_loss`.

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
    direction: Array = vector * np.sign(vector[np.argmax(np.abs(vector))])
    return direction


def worst_hypothesis(
    times: ArrayLike, trace: ArrayLike, secret: ArrayLike, direction: ArrayLike, radius: float, model: GaussianProcess
) -> tuple[Array, Array]:
    """A trace as the prior completes it from its true secret points, and from the worst hypothesis about them.

    Where the two differ is what the public points give away (the paper's figure 2b).

    `times`, `trace`: times and positions on one axis, shape (n,). `direction`: from `worst_pair`, shape (n_secret,).
    `radius`: largest distance at one point; the hypothesis is radius·sqrt(n_secret) away in all.

    Returns truth, hypothesis: expected traces, shape (n,): at secret points the two values, elsewhere the conditional
    means.

    Examples
    --------
    >>> model = GaussianProcess(length_scale=1.0)
    >>> truth, hypothesis = worst_hypothesis([0.0, 1.0], [0.0, 0.0], [0], [1.0], 2.0, model)
    >>> (hypothesis - truth).round(4)
    array([2.    , 1.2131])
    """
    points, positions = checked_times(times), np.asarray(trace, dtype=np.float64)
    indices = secret_indices(secret, len(points))
    shift = np.asarray(direction, dtype=np.float64) * radius * math.sqrt(len(indices))
    if positions.shape != points.shape:
        raise ParameterError("trace", positions.shape, f"of shape {points.shape}, like times")
    if shift.shape != indices.shape:
        raise ParameterError("direction", shift.shape, f"of shape {indices.shape}, one entry for each secret point")
    mean = conditional_response(model.covariance(points), indices).mean
    truth = mean @ positions[indices]
    return truth, truth + mean @ shift
