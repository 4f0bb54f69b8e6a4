"""Noise on points: planar Laplace, and how far apart two noisy releases of one place are expected to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sphere import Points, moved

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise

#: Released coordinates are rounded to so many decimals of a degree (11 cm of latitude): the low bits of real-valued
#: noise, which could tell its point apart (Mironov 2012), do not leave. By theorem 4.1 of Andrés et al. 2013 double
#: precision then costs less than 3e-8 nats per metre for noise of up to 100 km.
DECIMALS = 6

_STEP, _N_NODES, _LARGEST_RATIO = 0.25, 49, 1e3


def with_planar_laplace(noise: Noise, points: Points, rate: NDArray[np.float64]) -> Points:
    """Points moved by planar Laplace noise.

    Parameters
    ----------
    points
        Shape (n_users, 2), degrees.
    rate
        ε per metre, shape (n_users,); infinite: not moved.

    Returns
    -------
    Degrees, rounded to `DECIMALS`.

    Notes
    -----
    ε·d-private for points d metres apart in a plane (Andrés et al. 2013, section 4.1). On the sphere the step is taken
    along a great circle; at a distance r the radial stretch adds at most r/(3·R²) to ε per metre: 1e-9 at 100 km.
    """
    return on_the_map(moved(points, noise.planar_laplace(rate, rate.shape)))


def on_the_map(points: Points) -> Points:
    """Points as they are published: rounded to `DECIMALS`."""
    return np.asarray(np.round(points, DECIMALS))


def expected_distance(scale: Any, other: Any) -> NDArray[np.float64]:
    """E|Z₁ − Z₂| of independent planar Laplace noise of two scales 1/ε, in the unit of the scales.

    Parameters
    ----------
    scale, other
        Scales, at least 0; numbers or arrays that broadcast.

    Notes
    -----
    In the plane E|Z| = ∫₀^∞ (1 − φ(k))/k² dk for a radial characteristic function φ, here the product of
    (1 + b²k²)^(−3/2) for the two scales. After integration by parts the trapezoidal rule in asinh k converges
    geometrically: relative error below 1e-9, or 1e-6 where the scales differ by more than a factor of 1,000. For equal
    scales it is 15π/16 = 2.945 times the scale.

    Examples
    --------
    >>> expected_distance(2.0, [2.0, 1.0, 0.0]).round(4)
    array([5.8905, 4.6011, 4.    ])
    """
    b, c = np.broadcast_arrays(np.asarray(scale, np.float64), np.asarray(other, np.float64))
    large = np.maximum(b, c)
    unit = np.where(large > 0, large, 1.0)
    ratio = np.maximum(np.minimum(b, c) / unit, 1 / _LARGEST_RATIO)[..., None]
    position = _STEP * np.arange(_N_NODES)
    k, weight = np.sinh(position), _STEP * np.cosh(position)
    weight[0] /= 2
    first, second = 1 / (1 + k**2), 1 / (1 + (ratio * k) ** 2)
    slope = 3 * (first * second) ** 1.5 * (first + ratio**2 * second)
    return np.asarray(large * (slope @ weight))
