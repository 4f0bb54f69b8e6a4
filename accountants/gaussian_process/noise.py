"""Covariance of the noise that a trace mechanism adds, from what a caller may give for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from accountants.gaussian_process.kernels import Array
from mechanisms.core.errors import ParameterError


def checked_times(times: ArrayLike, field: str = "times") -> Array:
    """Times as a float array of shape (n,), n at least 1; raises `ParameterError` for anything else."""
    checked = np.asarray(times, dtype=np.float64)
    if checked.ndim != 1 or checked.size == 0 or not np.isfinite(checked).all():
        raise ParameterError(field, times, "finite numbers, one for each point")
    return checked


def noise_covariances(
    n_points: int, n_axes: int, sigma: ArrayLike | None = None, noise_covariance: ArrayLike | None = None
) -> list[Array]:
    """Noise covariance of each axis.

    Parameters
    ----------
    n_points, n_axes
        Size of the trace.
    sigma
        Standard deviation of independent noise: one number, (n_points,) or (n_points, n_axes).
    noise_covariance
        Instead of sigma: (n_points, n_points) for every axis, or (n_axes, n_points, n_points).

    Returns
    -------
    list of array
        ``n_axes`` positive definite matrices of shape (n_points, n_points).

    Raises
    ------
    ParameterError
        If both or neither are given, a shape is wrong, or the noise does not cover every direction.

    Examples
    --------
    >>> noise_covariances(2, 1, sigma=[1.0, 2.0])
    [array([[1., 0.],
           [0., 4.]])]
    """
    if (sigma is None) == (noise_covariance is None):
        raise ParameterError("sigma", sigma, "given, unless noise_covariance is given in its place (then None)")
    if sigma is not None:
        scales = np.asarray(sigma, dtype=np.float64)
        if scales.ndim == 1:
            scales = scales[:, None]
        if scales.shape not in {(), (n_points, 1), (n_points, n_axes)} or not (scales > 0).all():
            raise ParameterError("sigma", sigma, f"above 0: one number, ({n_points},) or ({n_points}, {n_axes})")
        if not np.isfinite(scales).all():
            raise ParameterError("sigma", sigma, "finite")
        return [np.diag(column**2) for column in np.broadcast_to(scales, (n_points, n_axes)).T]
    given = np.asarray(noise_covariance, dtype=np.float64)
    matrices = given[None] if given.ndim == 2 else given
    if matrices.shape not in {(1, n_points, n_points), (n_axes, n_points, n_points)}:
        raise ParameterError("noise_covariance", given.shape, f"of shape ({n_points}, {n_points}), or one such an axis")
    return [_positive_definite(matrix) for matrix in np.broadcast_to(matrices, (n_axes, n_points, n_points))]


def _positive_definite(matrix: Array) -> Array:
    symmetric = 0.5 * (matrix + matrix.T)
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12 * np.abs(matrix).max()):
        raise ParameterError("noise_covariance", matrix, "finite and symmetric")
    try:
        linalg.cholesky(symmetric, lower=True)
    except linalg.LinAlgError:
        raise ParameterError("noise_covariance", matrix, "positive definite") from None
    return symmetric
