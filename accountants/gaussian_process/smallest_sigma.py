"""The least noise that keeps every chosen secret under a goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, optimize

from accountants.gaussian_process.kernels import Array, axis_models
from accountants.gaussian_process.loss import (
    Response,
    conditional_response,
    largest_eigenvalue,
    loss_matrix,
    loss_per_eigenvalue,
)
from accountants.gaussian_process.noise import checked_times, noise_covariances
from accountants.gaussian_process.secrets import secret_family
from mechanisms.core.errors import ParameterError

SAFETY = 1e-9


def smallest_sigma(
    goal: float,
    times: ArrayLike,
    secret: Any,
    length_scale: float | Sequence[float],
    radius: float,
    order: float,
    kernel: str | Sequence[str] = "rbf",
    variance: float | Sequence[float] = 1.0,
    period: float | Sequence[float | None] | None = None,
    noise_covariance: ArrayLike | None = None,
    *,
    nugget: float | Sequence[float] = 0.0,
) -> float:
    """Smallest σ with `conditional_inferential_loss` at most ``goal`` for every secret.

    Noise of variance σ² at every point, or σ²·``noise_covariance``: more of it never raises the loss, so the root is
    unique; it is bracketed in closed form and rounded up.

    Parameters
    ----------
    goal
        Largest loss allowed, nats, above 0.
    secret
        One subset (indices or mask), or a sequence of subsets that must all be protected.
    noise_covariance
        Shape of the noise, (n, n) or (n_axes, n, n); white when not given.
    times, length_scale, radius, order, kernel, variance, period, nugget
        As in `conditional_inferential_loss`.

    Returns
    -------
    float
        In the unit of the radius; its loss is at most the goal and at least 1 − 10⁻⁸ of it. About ten evaluations
        of O(n³) for each secret and axis.

    Raises
    ------
    ParameterError
        If the goal is not a number above 0, or as `conditional_inferential_loss`.

    Examples
    --------
    A point that stands alone needs σ = r·sqrt(λ / (2·goal)).

    >>> round(smallest_sigma(0.5, [0.0], [0], length_scale=1.0, radius=2.0, order=2.0), 6)
    2.828427
    """
    if not (math.isfinite(goal) and goal > 0):
        raise ParameterError("goal", goal, "a finite number above 0")
    points = checked_times(times)
    axes = axis_models(length_scale, kernel, variance, period, nugget)
    white = 1.0 if noise_covariance is None else None
    shapes = noise_covariances(len(points), len(axes), white, noise_covariance)
    cases = [
        (
            loss_per_eigenvalue(len(indices), radius, order),
            conditional_response(axis.covariance(points), indices),
            shape,
        )
        for indices in secret_family(secret, len(points), "secret")
        for axis, shape in zip(axes, shapes)
    ]
    return math.sqrt(max(_smallest_variance(goal, *case) for case in cases))


def _smallest_variance(goal: float, weight: float, response: Response, shape: Array) -> float:
    def excess(log_variance: float) -> float:
        """Logarithm of the loss over the goal: it falls with the variance."""
        matrix = loss_matrix(response, math.exp(log_variance) * shape)
        return math.log(weight * largest_eigenvalue(matrix) / goal)

    secret = response.mean.any(axis=1) & ~response.residual.any(axis=1)
    alone = 1.0 / float(linalg.eigvalsh(shape[np.ix_(secret, secret)])[0])
    exposed = largest_eigenvalue(loss_matrix(Response(response.mean, np.zeros_like(shape)), shape))
    low, high = math.log(weight * alone / goal) - SAFETY, math.log(weight * exposed / goal) + SAFETY
    root = optimize.brentq(excess, low, high, xtol=SAFETY / 4) if excess(low) > 0 else low
    return math.exp(root + SAFETY)
