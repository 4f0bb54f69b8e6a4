"""Points on the sphere: distances, planar noise and stay points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
EARTH_RADIUS = 6_371_008.8
"""Mean radius of the reference ellipsoid, in metres (IUGG)."""

#: Released coordinates are rounded to this many decimals of a degree (11 cm of latitude): the low bits of real-valued
#: noise, which could tell its point apart (Mironov 2012), do not leave. By theorem 4.1 of Andrés et al. 2013 double
#: precision then costs less than 3e-8 nats per metre for noise of up to 100 km.
DECIMALS = 6
_STEP, _N_NODES, _LARGEST_RATIO = 0.25, 49, 1e3


def corners_of(cell: Mapping[str, Any]) -> Points:
    """Return a cell's corners or point as (longitude, latitude), shape (n, 2). n is 0 for a cell with neither."""
    point = [cell["point"]] if "point" in cell else []
    polygons = cell.get("polygons") or [[cell.get("polygon") or point]]
    return np.concatenate([np.asarray(ring, np.float64).reshape(-1, 2) for rings in polygons for ring in rings])


def distance(points: Points, others: Points) -> NDArray[np.float64]:
    """Return the great-circle distance in metres between points in degrees, shape (..., 2), which broadcast.

    The haversine formula: exact to rounding for near points, where the cosine rule is not (Sinnott 1984).
    """
    latitude, longitude = np.radians(points[..., 0]), np.radians(points[..., 1])
    other_latitude, other_longitude = np.radians(others[..., 0]), np.radians(others[..., 1])
    haversine = (
        np.sin((other_latitude - latitude) / 2) ** 2
        + np.cos(latitude) * np.cos(other_latitude) * np.sin((other_longitude - longitude) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.minimum(haversine, 1.0))))


def moved(points: Points, offsets: NDArray[np.float64]) -> Points:
    """Move points (degrees) by offsets (east, north) in metres; longitudes are in [−180, 180)."""
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
    """Return the offsets (east, north) in metres from ``points`` to ``others``. This is the inverse of `moved`."""
    latitude, other = np.radians(points[..., 0]), np.radians(others[..., 0])
    difference = np.radians(others[..., 1] - points[..., 1])
    east = np.cos(other) * np.sin(difference)
    # sin(other − latitude) plus what the meridians' convergence adds, without cancellation for near points.
    north = np.sin(other - latitude) + 2 * np.sin(latitude) * np.cos(other) * np.sin(difference / 2) ** 2
    sine = np.hypot(east, north)
    scale = np.where(sine > 0, distance(points, others) / np.where(sine > 0, sine, 1.0), 0.0)
    return np.stack([east * scale, north * scale], axis=-1)


def within(points: Points, centre: tuple[float, float], radius: float) -> Points:
    """Map points into a circle on the sphere by a contraction, so that no two points move further apart.

    Points in the circle stay, as all do if the ``radius`` in metres is a quarter of the way round the sphere or more;
    others go to its edge, in the direction in which they lie. A contraction of the whole sphere, so that noise which
    hides a distance still hides it: at an angle ρ from the centre, meridians lie sin ρ apart, and a point stays at ρ,
    or goes to the largest angle no further out than the circle's edge or than π − ρ (a point opposite is mirrored).
    Cutting latitude and longitude off at the sides of a box would not do: meridians spread towards the equator.
    """
    middle = np.asarray(centre, np.float64)
    distances = distance(points, middle)
    if radius >= np.pi / 2 * EARTH_RADIUS or not (outside := distances > radius).any():
        return points
    wanted = np.minimum(radius, np.maximum(np.pi * EARTH_RADIUS - distances[outside], 0.0))
    moves = offsets_between(np.broadcast_to(middle, (len(wanted), 2)), points[outside])
    inside = points.copy()
    inside[outside] = moved(middle, moves * (wanted / distances[outside])[:, None])
    return inside


def mean_points(points: Points, starts: NDArray[np.int64], centre: tuple[float, float]) -> Points:
    """Return the mean of each group of points. If the points move by up to d metres, their mean moves by at most d.

    Points are given group after group, ``starts`` is the first of each, shape (n_groups,). No mean on a sphere has this
    property by itself. So points are projected straight onto the plane that touches the sphere at the centre, and their
    mean is brought back along great circles; neither step lengthens a distance. A mean of equal points comes out nearer
    to the centre by R·(ρ − sin ρ) at an angle ρ from it: 0.1 m at 30 km.
    """
    latitude, middle = np.radians(points[:, 0]), np.radians(np.asarray(centre, np.float64))
    difference = np.radians(points[:, 1]) - middle[1]
    east = np.cos(latitude) * np.sin(difference)
    north = np.sin(latitude - middle[0]) + 2 * np.sin(middle[0]) * np.cos(latitude) * np.sin(difference / 2) ** 2
    lengths = np.diff(starts, append=len(points))[:, None]
    offsets = np.add.reduceat(np.stack([east, north], axis=1), starts, axis=0) / lengths
    return moved(np.asarray(centre, np.float64), EARTH_RADIUS * offsets)


def published(points: Points, offsets: NDArray[np.float64]) -> Points:
    """Move points by noise (see `moved`) and round them to `DECIMALS` for publication."""
    # With planar Laplace noise ε·d-private for points d metres apart in a plane (Andrés et al. 2013, section 4.1). On
    # the sphere the step is taken along a great circle; at a distance r the radial stretch adds at most r/(3·R²) to ε
    # per metre: 1e-9 at 100 km. With Gaussian noise they differ by d²/(2σ²) in ρ (Bun and Steinke 2016, lemma 2.4, for
    # either axis, which add up), on the sphere by no more: tests integrate it for σ up to 1,000 km.
    return np.asarray(np.round(moved(points, offsets), DECIMALS))


def expected_distance(scale: Any, other: Any) -> NDArray[np.float64]:
    """Return E|Z₁ − Z₂| for independent planar Laplace noise with scales 1/ε ≥ 0, in the unit of the scales."""
    # In the plane E|Z| = ∫₀^∞ (1 − φ(k))/k² dk for a radial characteristic function φ, here the product of (1 +
    # b²k²)^(−3/2) for the two scales. After integration by parts the trapezoidal rule in asinh k converges
    # geometrically: relative error below 1e-9, or 1e-6 where the scales differ by more than a factor of 1,000. For
    # equal scales it is 15π/16 = 2.945 times the scale.
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


def stay_points(
    times: NDArray[np.int64], points: Points, starts: NDArray[np.int64], max_distance: float, min_time: float
) -> NDArray[np.bool_]:
    """Return a mask of the points in several traces that belong to a stay.

    A stay begins at a point whose successors remain within ``max_distance`` of it, if the last of them is at least
    ``min_time`` later. The search continues after the stay, or else with the next point. Points are given user after
    user in order of time; ``starts`` is the first of each. Li, Zheng, Xie, Chen, Liu, Ma 2008, algorithm 1, except that
    a trace may end in a stay: Katsomallos et al. 2022 need that to make every point of a trace a landmark.
    """
    ends = np.append(starts[1:], len(times))[np.repeat(np.arange(len(starts)), np.diff(starts, append=len(times)))]
    leaves = _leaves(points, ends, max_distance)
    is_long = times[leaves - 1] - times >= min_time if len(times) else np.zeros(0, bool)
    is_long &= leaves - 1 > np.arange(len(times))
    mask = np.zeros(len(times), bool)
    behind = 0
    for first, last in zip(np.flatnonzero(is_long).tolist(), leaves[is_long].tolist()):
        if first >= behind:
            mask[first:last] = True
            behind = last
    return mask


def _leaves(points: Points, ends: NDArray[np.int64], max_distance: float) -> NDArray[np.int64]:
    """For each point, return the first later point more than ``max_distance`` away, or else the end of its trace."""
    leaves = ends.copy()
    looking = np.arange(len(points))
    ahead = 1
    while True:
        looking = looking[looking + ahead < ends[looking]]
        if not len(looking):
            return leaves
        left = distance(points[looking], points[looking + ahead]) > max_distance
        leaves[looking[left]] = looking[left] + ahead
        looking = looking[~left]
        ahead += 1
