"""Stationary kernels and the Gaussian-process model of one coordinate axis of a trace.

Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, parameter

Array = NDArray[np.float64]

Correlation = Callable[[Array, float, float], Array]

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
    """Zero-mean Gaussian-process prior of one axis of a trace.

    Parameters
    ----------
    kernel
        ``rbf``, ``matern12``, ``matern32`` or ``periodic``.
    length_scale
        Length scale, in the unit of the times (no unit for ``periodic``).
    variance
        Variance σ_x² of a point, in squared units of length.
    period
        Period of the ``periodic`` kernel, in the unit of the times; the other kernels have none.
    nugget
        Variance that every point has of its own, independent of all others (say the error of the receiver).
        It is part of the model and changes results: use the same in every comparison.

    Examples
    --------
    >>> GaussianProcess(length_scale=1.0).covariance(np.array([0.0, 1.0])).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
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

    def correlation(self, lags: ArrayLike) -> Array:
        """Correlation at given time lags of either sign, without the nugget; same shape as the lags."""
        lag = np.abs(np.asarray(lags, dtype=np.float64))
        return CORRELATIONS[self.kernel](lag, self.length_scale, self.period or 1.0)

    def covariance(self, times: Array) -> Array:
        """Prior covariance of the points at ``times``, shape (n, n), the nugget on its diagonal."""
        covariance = self.variance * self.correlation(np.subtract.outer(times, times))
        return covariance + self.nugget * np.eye(len(times))

    def envelope(self, lags: ArrayLike) -> Array:
        """Bound g on the correlation that falls with the lag and has g(s + t) ≤ g(s)·g(t).

        The kernels that fade are their own envelope; a periodic one returns, so its envelope is 1.

        >>> GaussianProcess(kernel="periodic", period=24.0, length_scale=1.0).envelope([0.0, 12.0])
        array([1., 1.])
        """
        lag = np.asarray(lags, dtype=np.float64)
        return np.ones_like(lag) if self.kernel == "periodic" else self.correlation(lag)


def axis_models(
    length_scale: float | Sequence[float],
    kernel: str | Sequence[str] = "rbf",
    variance: float | Sequence[float] = 1.0,
    period: float | Sequence[float | None] | None = None,
    nugget: float | Sequence[float] = 0.0,
) -> tuple[GaussianProcess, ...]:
    """One `GaussianProcess` for each axis; a single value of a parameter holds on every axis.

    Parameters
    ----------
    length_scale, kernel, variance, period, nugget
        As in `GaussianProcess`, either one value or a sequence with one value for each axis.

    Raises
    ------
    ParameterError
        If two sequences have different lengths, or a value is outside its bounds.

    Examples
    --------
    >>> [model.length_scale for model in axis_models([1.0, 2.0], kernel="matern12")]
    [1.0, 2.0]
    """
    given: dict[str, Any] = {
        "length_scale": length_scale,
        "kernel": kernel,
        "variance": variance,
        "period": period,
        "nugget": nugget,
    }
    lists = {
        name: list(value) for name, value in given.items() if not isinstance(value, str | None) and np.ndim(value) == 1
    }
    n_axes = max((len(values) for values in lists.values()), default=1)
    for name, values in lists.items():
        if len(values) != n_axes or n_axes == 0:
            raise ParameterError(name, values, f"one value, or {max(n_axes, 1)} values, one for each axis")
    return tuple(
        GaussianProcess(**{name: lists[name][axis] if name in lists else value for name, value in given.items()})
        for axis in range(n_axes)
    )
