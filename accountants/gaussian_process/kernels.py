"""Gaussian-process priors for traces, noise covariances and families of secret points.

Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from penstock.mechanisms.core.plugin import Checked, ParameterError, check_choice, parameter
from penstock.mechanisms.gaussian_trace import FAMILIES, TracePrior

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Correlation = Callable[[Array, Any, float], Array]

CORRELATIONS: dict[str, Correlation] = {
    "rbf": lambda lag, length_scale, period: np.exp(-0.5 * (lag / length_scale) ** 2),
    "matern12": lambda lag, length_scale, period: np.exp(-lag / length_scale),
    "matern32": lambda lag, length_scale, period: (
        (1.0 + math.sqrt(3.0) * lag / length_scale) * np.exp(-math.sqrt(3.0) * lag / length_scale)
    ),
    "periodic": lambda lag, length_scale, period: np.exp(-2.0 * (np.sin(np.pi * lag / period) / length_scale) ** 2),
}
"""Correlation of two points by kernel name, as a function of (lag ≥ 0, length scale, period)."""


@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Checked):
    """A zero-mean Gaussian-process prior for one axis of a trace, with lengths in the unit of the times.

    The nugget is variance of each point alone, say of the receiver. It changes results: compare with the same one.
    """

    kernel: str = parameter("rbf", doc="kernel of the prior", choices=tuple(CORRELATIONS))
    length_scale: float = parameter(doc="length scale of the kernel", above=0, below=math.inf)
    variance: float = parameter(1.0, doc="prior variance of a point", above=0, below=math.inf)
    period: float | None = parameter(None, doc="period of the periodic kernel", above=0, below=math.inf)
    nugget: float = parameter(0.0, doc="variance of a point independent of all others", at_least=0, below=math.inf)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kernel == "periodic") != (self.period is not None):
            raise ParameterError("period", self.period, "given for the periodic kernel and for no other")

    @classmethod
    def of(cls, prior: TracePrior) -> GaussianProcess:
        """Build the process declared in a configuration, using the longest of its length scales."""
        given = {field.name: getattr(prior, field.name) for field in fields(cls)}
        return cls(**given | {"length_scale": prior.length_scales.longest})

    def covariance(self, times: Array, length_scales: ArrayLike | None = None) -> Array:
        """Return the prior covariance (n, n) at ``times``, with the nugget on the diagonal."""
        scales = np.asarray(self.length_scale if length_scales is None else length_scales, dtype=np.float64)
        lags = np.abs(np.subtract.outer(times, times))
        covariance = self.variance * CORRELATIONS[self.kernel](lags, scales, self.period or 1.0)
        return np.asarray(covariance + self.nugget * np.eye(len(times)))

    def envelope(self, lags: ArrayLike, length_scales: ArrayLike | None = None) -> Array:
        """Return an upper bound g on the correlation that decreases with the lag and satisfies g(s + t) ≤ g(s)·g(t)."""
        # The kernels that fade are their own envelope; a periodic one returns, so its envelope is 1.
        lag = np.asarray(lags, dtype=np.float64)
        scales = np.asarray(self.length_scale if length_scales is None else length_scales, dtype=np.float64)
        if self.kernel == "periodic":
            return np.ones(np.broadcast_shapes(lag.shape, scales.shape))
        return np.asarray(CORRELATIONS[self.kernel](np.abs(lag), scales, 1.0))


def checked_times(times: ArrayLike) -> Array:
    """Return the times as a float array of shape (n,), n ≥ 1. Raise `ParameterError` for any other input."""
    checked = np.asarray(times, dtype=np.float64)
    if checked.ndim != 1 or checked.size == 0 or not np.isfinite(checked).all():
        raise ParameterError("times", times, "finite numbers, one for each point")
    return checked


def noise_matrix(n_points: int, sigma: ArrayLike | None = None, noise_covariance: ArrayLike | None = None) -> Array:
    """Return a positive definite noise covariance (n, n), from one σ, one per point, or ``noise_covariance``."""
    if (sigma is None) == (noise_covariance is None):
        raise ParameterError("sigma", sigma, "given, unless noise_covariance is given in its place (then None)")
    if noise_covariance is None:
        scales = np.asarray(sigma, dtype=np.float64)
        if scales.shape not in {(), (n_points,)} or not (np.isfinite(scales) & (scales > 0)).all():
            raise ParameterError("sigma", sigma, f"finite and above 0: one number or ({n_points},)")
        return np.diag(np.broadcast_to(scales**2, n_points))
    matrix = np.asarray(noise_covariance, dtype=np.float64)
    if matrix.shape != (n_points, n_points):
        raise ParameterError("noise_covariance", matrix.shape, f"of shape ({n_points}, {n_points})")
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12 * np.abs(matrix).max()):
        raise ParameterError("noise_covariance", matrix, "finite and symmetric")
    symmetric = 0.5 * (matrix + matrix.T)
    try:
        linalg.cholesky(symmetric, lower=True)
    except linalg.LinAlgError:
        raise ParameterError("noise_covariance", matrix, "positive definite") from None
    return symmetric


def named_family(name: str, n_points: int, width: int = 2) -> list[Indices]:
    """Return the family of secrets that a configuration names. ``width`` applies only to ``sliding_blocks``."""
    check_choice("secrets", name, FAMILIES)
    if width < 1:
        raise ParameterError("width", width, "at least 1")
    if name == "every_other":
        return [np.arange(first, n_points, 2) for first in range(min(2, n_points))]
    size = min(width, n_points) if name == "sliding_blocks" else 1
    return [np.arange(first, first + size) for first in range(n_points - size + 1)]


def secret_family(secrets: Any, n_points: int, field: str = "secrets") -> list[Indices]:
    """Return a list of secrets (see `secret_indices`). A single secret becomes a one-element list."""
    one = np.ndim(secrets) == 0 if np.isscalar(secrets) else len(secrets) == 0 or np.ndim(secrets[0]) == 0
    return [secret_indices(secret, n_points, field) for secret in ([secrets] if one else secrets)]


def secret_indices(secret: ArrayLike, n_points: int, field: str = "secret") -> Indices:
    """Return a non-empty secret's sorted indices, given as a mask or as distinct, possibly negative indices."""
    given = np.atleast_1d(np.asarray(secret))
    if given.dtype == np.bool_ and given.shape == (n_points,):
        given = np.flatnonzero(given)
    if given.ndim == 1 and given.size and np.issubdtype(given.dtype, np.integer):
        indices = np.unique(given % n_points)
        if len(indices) == len(given) and given.min() >= -n_points and given.max() < n_points:
            return indices.astype(np.intp)
    expected = f"indices of distinct points of a trace of {n_points}, or a mask of that length, and not empty"
    raise ParameterError(field, secret, expected)
