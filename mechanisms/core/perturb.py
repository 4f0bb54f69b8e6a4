"""Additive noise on a count vector, calibrated to the sensitivity that bounding left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.event import DiscreteLaplace, Event, Laplace
from mechanisms.core.window import Window

if TYPE_CHECKING:
    from mechanisms.core.noise import Noise

#: Families that give pure ε-differential privacy for a scale of l1/ε.
PURE_FAMILIES = ("discrete_laplace", "laplace")


def active_l1(window: Window, max_cells: NDArray[Any]) -> NDArray[np.float64]:
    """L1 sensitivity of the active part of the vector: no user adds to more cells than publish."""
    if window.active is None:
        return np.asarray(max_cells, np.float64)
    return np.minimum(np.asarray(max_cells, np.float64), float(np.count_nonzero(window.active)))


def pure_scale(epsilon: Any, l1: Any) -> Any:
    """Scale l1/ε: 0 for ε = ∞, ∞ for ε = 0."""
    if not getattr(l1, "ndim", 0) and not getattr(epsilon, "ndim", 0) and epsilon > 0:
        return np.float64(l1) / np.float64(epsilon)  # what most windows ask, without the arrays' overhead
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(l1) == 0, 0.0, np.asarray(l1, np.float64) / np.asarray(epsilon, np.float64))


def pure_event(family: str, l1: Any, scale: Any) -> Event:
    """Event of one noisy vector of a pure family."""
    _check_family(family)
    numbers = [x if getattr(x, "ndim", 0) else float(x) for x in (l1, scale)]
    return DiscreteLaplace(*numbers) if family == "discrete_laplace" else Laplace(*numbers)


def add_noise(noise: Noise, family: str, counts: NDArray[Any], scale: Any) -> NDArray[Any]:
    """Counts plus noise of one scale (per replica)."""
    _check_family(family)
    per_cell = np.asarray(scale, np.float64)[..., None] if np.ndim(scale) else float(scale)
    draw = noise.discrete_laplace if family == "discrete_laplace" else noise.laplace
    noisy: NDArray[Any] = counts + draw(per_cell, counts.shape)
    return noisy


def _check_family(family: str) -> None:
    if family not in PURE_FAMILIES:
        raise ParameterError("noise", family, "one of " + ", ".join(PURE_FAMILIES) + ", on counts")


def only_active(window: Window, values: NDArray[Any]) -> NDArray[np.float64]:
    """Values as published: NaN where the sensor is not active."""
    released = np.asarray(values, np.float64)
    return released if window.active is None else np.where(window.active, released, np.nan)
