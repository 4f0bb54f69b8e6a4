"""Geometry on the sphere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EARTH_RADIUS = 6_371_008.8  # metres, mean radius of the reference ellipsoid (IUGG)


def unit_vectors(latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points on the unit sphere, shape (n, 3), from degrees.

    >>> unit_vectors(np.array([0.0]), np.array([90.0])).round(6).tolist()
    [[0.0, 1.0, 0.0]]
    """
    latitude, longitude = np.radians(latitude), np.radians(longitude)
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
