"""The hypothesis about the secret points that a release separates best.

Meehan and Chaudhuri, *Location Trace Privacy Under Conditional Priors*, 2021, figure 2b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from accountants.gaussian_process.kernels import Array, GaussianProcess, axis_models
from accountants.gaussian_process.loss import conditional_response, loss_matrix, loss_per_eigenvalue
from accountants.gaussian_process.noise import checked_times, noise_covariances
from accountants.gaussian_process.secrets import secret_indices
from mechanisms.core.errors import ParameterError


def worst_pair(
    times: ArrayLike,
    secret: ArrayLike,
    sigma: ArrayLike | None,
    length_scale: float | Sequence[float],
    radius: float = 1.0,
    order: float = 2.0,
    kernel: str | Sequence[str] = "rbf",
    variance: float | Sequence[float] = 1.0,
    period: float | Sequence[float | None] | None = None,
    noise_covariance: ArrayLike | None = None,
    *,
    nugget: float | Sequence[float] = 0.0,
) -> Array:
    """Direction from the truth to the hypothesis that attains `conditional_inferential_loss`.

    Parameters
    ----------
    times, secret, sigma, length_scale, radius, order, kernel, variance, period, noise_covariance, nugget
        As in `conditional_inferential_loss`. The direction does not depend on radius and order, which are checked only.

    Returns
    -------
    array
        Unit vector over the secret points in order of their index, its largest entry positive: shape (n_secret,) with
        one axis, (n_secret, n_axes) with several, where all columns but the worst axis are zero. O(n³) an axis.

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
    axes = axis_models(length_scale, kernel, variance, period, nugget)
    noises = noise_covariances(len(points), len(axes), sigma, noise_covariance)
    loss_per_eigenvalue(len(indices), radius, order)
    largest, direction = -math.inf, np.zeros((len(indices), len(axes)))
    for number, (axis, noise) in enumerate(zip(axes, noises)):
        matrix = loss_matrix(conditional_response(axis.covariance(points), indices), noise)
        eigenvalues, eigenvectors = linalg.eigh(matrix)
        if eigenvalues[-1] > largest:
            largest, vector = eigenvalues[-1], eigenvectors[:, -1]
            direction[:] = 0.0
            direction[:, number] = vector * np.sign(vector[np.argmax(np.abs(vector))])
    return direction[:, 0] if len(axes) == 1 else direction


def worst_hypothesis(
    times: ArrayLike, trace: ArrayLike, secret: ArrayLike, direction: ArrayLike, radius: float, model: GaussianProcess
) -> tuple[Array, Array]:
    """A trace as the prior completes it from its true secret points, and from the worst hypothesis about them.

    Where the two differ is what the public points give away (the paper's figure 2b).

    Parameters
    ----------
    times, trace
        Times and positions on one axis, shape (n,).
    secret
        The secret points, as in `worst_pair`.
    direction
        From `worst_pair`, shape (n_secret,).
    radius
        Largest distance at one point; the hypothesis is radius·sqrt(n_secret) away in all.
    model
        Prior of the axis.

    Returns
    -------
    truth, hypothesis
        Expected traces, shape (n,): at secret points the two values, elsewhere the conditional means.

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
