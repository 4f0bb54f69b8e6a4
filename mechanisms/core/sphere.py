"""Distances and offsets in metres between points on the sphere, given in degrees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

EARTH_RADIUS = 6_371_008.8
"""Mean radius of the reference ellipsoid, in metres (IUGG)."""


def distance(points: Points, others: Points) -> NDArray[np.float64]:
    """Great-circle distance in metres.

    Parameters
    ----------
    points, others
        Shape (..., 2): latitude and longitude in degrees; they broadcast against each other.

    Notes
    -----
    The haversine formula: exact to rounding for near points, where the cosine rule is not (Sinnott 1984).

    Examples
    --------
    >>> distance(np.array([0.0, 0.0]), np.array([[0.0, 1.0], [90.0, 17.0]])).round()
    array([  111195., 10007557.])
    """
    latitude, longitude = np.radians(points[..., 0]), np.radians(points[..., 1])
    other_latitude, other_longitude = np.radians(others[..., 0]), np.radians(others[..., 1])
    haversine = (
        np.sin((other_latitude - latitude) / 2) ** 2
        + np.cos(latitude) * np.cos(other_latitude) * np.sin((other_longitude - longitude) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(haversine, 1.0))))


def moved(points: Points, offsets: NDArray[np.float64]) -> Points:
    """Points reached by going straight (along great circles) from some points.

    Parameters
    ----------
    points
        Shape (..., 2): latitude and longitude in degrees.
    offsets
        Shape (..., 2): metres to the east and to the north, in the plane that touches the sphere at the point. The
        distance travelled is the length of the offset, however long it is.

    Returns
    -------
    Latitude in [−90, 90] and longitude in [−180, 180), same shape.

    Examples
    --------
    >>> moved(np.array([0.0, 179.5]), np.array([111195.08, 0.0])).round(4).tolist()
    [0.0, -179.5]
    """
    latitude, longitude = np.radians(points[..., 0]), np.radians(points[..., 1])
    length = np.hypot(offsets[..., 0], offsets[..., 1])
    angle = length / EARTH_RADIUS
    # sin(angle)/length tends to 1/radius, so that a point that does not move needs no case of its own.
    per_metre = np.sinc(angle / np.pi) / EARTH_RADIUS
    east, north = offsets[..., 0] * per_metre, offsets[..., 1] * per_metre
    up = np.cos(angle)
    # The point in the frame of its meridian: east, towards the pole of the axis, and outwards through the equator.
    polar = np.sin(latitude) * up + np.cos(latitude) * north
    outward = np.cos(latitude) * up - np.sin(latitude) * north
    turned = np.degrees(longitude + np.arctan2(east, outward))
    new_latitude = np.degrees(np.arctan2(polar, np.hypot(outward, east)))
    return np.stack([new_latitude, (turned + 180.0) % 360.0 - 180.0], axis=-1)


def offsets_between(points: Points, others: Points) -> NDArray[np.float64]:
    """Offsets (east, north) in metres that lead from ``points`` to ``others``: the inverse of `moved`.

    >>> start = np.array([39.9, 116.4])
    >>> offsets_between(start, moved(start, np.array([300.0, -400.0]))).round(6).tolist()
    [300.0, -400.0]
    """
    latitude, other = np.radians(points[..., 0]), np.radians(others[..., 0])
    turn = np.radians(others[..., 1] - points[..., 1])
    east = np.cos(other) * np.sin(turn)
    # sin(other − latitude) plus what the meridians' convergence adds, without cancellation for near points.
    north = np.sin(other - latitude) + 2 * np.sin(latitude) * np.cos(other) * np.sin(turn / 2) ** 2
    sine = np.hypot(east, north)
    scale = np.where(sine > 0, distance(points, others) / np.where(sine > 0, sine, 1.0), 0.0)
    return np.stack([east * scale, north * scale], axis=-1)
