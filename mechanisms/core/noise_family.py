"""Families of additive noise: privacy cost, sampling, variance and expected difference at a given scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.core import events
from penstock.mechanisms.core.concentrated import SMOOTHING
from penstock.mechanisms.core.geometry import expected_distance, published
from penstock.mechanisms.core.noise import Noise
from penstock.mechanisms.core.portable import exp, expm1
from penstock.mechanisms.core.sensitivity import Sensitivity

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseFamily:
    """A family of additive noise.

    >>> laplace = NOISE_FAMILIES["laplace"]
    >>> float(laplace.scale(0.5, Sensitivity(2.0, 2.0))), laplace.event(Sensitivity(2.0, 2.0), 4.0)
    (4.0, Additive(family='laplace', sensitivity=2.0, scale=4.0))
    """

    name: str  # as in a configuration
    # What a budget is in: epsilon, rho of zero-concentrated differential privacy, or gaussian, the same for Gaussian
    # noise alone, of which an exact ε is known (`concentrated.epsilon_of_gaussian`).
    measure: str
    on: str  # what it is added to: counts, or points of traces (on the plane, in metres)
    is_integer: bool  # whether it adds whole numbers
    mean_size: float  # mean size, or length of a step, at scale 1; of an integer family in the limit of large scales
    priced_as: str  # family of its events: noise in the plane loses what that of one axis does

    @property
    def is_concentrated(self) -> bool:
        """Return whether budgets are stated in ρ, no matter how they are converted to ε."""
        return self.measure != "epsilon"

    @property
    def of_sums(self) -> str:
        """The name of the real-valued family used for weighted sums of draws."""
        return self.name.removeprefix("discrete_")

    def scale(self, budget: Any, sensitivity: Sensitivity) -> Any:
        """Return the noise scale that spends a budget: l1/ε, or the standard deviation √(l2²/(2ρ)).

        0 for an infinite budget or a sensitivity of 0, infinite for a budget of 0. Dwork, McSherry, Nissim, Smith 2006;
        Ghosh, Roughgarden, Sundararajan 2009; Bun and Steinke 2016, proposition 1.6; Canonne, Kamath, Steinke 2020,
        theorem 4; in the plane Andrés et al. 2013, section 4.1.
        """
        if not self.is_concentrated:
            return _quotient(sensitivity.l1, budget)
        variance = _quotient(sensitivity.l2_squared, 2 * np.asarray(budget, np.float64))
        if self.measure == "gaussian" and self.is_integer:
            variance = np.where(variance > 0, variance + SMOOTHING, 0.0)
        return np.sqrt(variance)

    def spends(self, scale: Any, sensitivity: Sensitivity) -> Any:
        """Return the budget that a noise scale spends: l1/b, or l2²/(2σ²). It is infinite if there is no noise."""
        with np.errstate(divide="ignore"):
            if not self.is_concentrated:
                return sensitivity.l1 / np.asarray(scale, np.float64)
            return sensitivity.l2_squared / (2 * np.square(np.asarray(scale, np.float64)))

    def norm(self, sensitivity: Sensitivity) -> Any:
        """Return the sensitivity in the norm that calibrates the noise: L2 for Gaussian noise, otherwise L1."""
        return np.sqrt(sensitivity.l2_squared) if self.is_concentrated else sensitivity.l1

    def pure(self, budget: Any) -> Any:
        """Return the ε available to a pure step under a budget: ε itself, or √(2ρ), since pure ε costs ε²/2 in ρ."""
        return np.sqrt(2 * np.asarray(budget, np.float64)) if self.is_concentrated else budget

    def event(self, sensitivity: Sensitivity, scale: Any) -> events.Event:
        """Return the privacy event for releasing one vector with noise at the given scale."""
        given = self.norm(sensitivity), scale
        return events.Additive(self.priced_as, *(x if getattr(x, "ndim", 0) else float(x) for x in given))

    def spent(self, amount: Any) -> events.Event:
        """Return the privacy event for a step that spends the given amount."""
        return events.ConcentratedDP(amount) if self.is_concentrated else events.PureDP(amount)

    def draw(self, noise: Noise, scale: Any, shape: Any) -> NDArray[Any]:
        """Draw noise for counts. The scale is a scalar or an array with one entry per row or per cell."""
        drawn: NDArray[Any] = getattr(noise, self.name)(scale, shape)
        return drawn

    def add(self, noise: Noise, values: NDArray[Any], scale: Any) -> NDArray[Any]:
        """Add noise at a single scale or at one scale per leading-axis row. Points are in degrees and are rounded."""
        if self.on == "points":
            scale = np.broadcast_to(np.asarray(scale, np.float64), values.shape[:-1])
            if self.is_concentrated:
                return published(values, noise.gaussian(scale[:, None], values.shape))
            return published(values, noise.planar_laplace(_quotient(1.0, scale), scale.shape))
        per_cell = np.asarray(scale, np.float64)[..., None] if np.ndim(scale) else float(scale)
        return np.asarray(values + self.draw(noise, per_cell, values.shape))

    def variance(self, scale: Any) -> Array:
        """Return the noise variance in one cell or along one axis."""
        scale = np.asarray(scale, np.float64)
        if self.name == "discrete_gaussian":
            # Below σ = 2 less than the continuous one's (Canonne, Kamath, Steinke 2020).
            squares = np.arange(1.0, 24.0) ** 2
            weight = exp(-squares / (2.0 * np.clip(scale, 0.02, 2.0)[..., None] ** 2))
            narrow = 2.0 * (squares * weight).sum(-1) / (1.0 + 2.0 * weight.sum(-1))
            return np.where(scale >= 2.0, scale * scale, np.where(scale > 0, narrow, 0.0))
        if self.name == "discrete_laplace":
            lost = -expm1(-1 / np.where(scale > 0, scale, 1.0))  # 1 − p of the geometric magnitude
            with np.errstate(divide="ignore"):  # an infinite scale: nothing was published
                return np.where(scale > 0, 2 * (1 - lost) / (lost * lost), 0.0)
        if self.is_concentrated:
            return np.asarray(scale * scale)
        return np.asarray((3 if self.on == "points" else 2) * scale * scale)

    def standard_deviation(self, scale: Any) -> Array:
        """Return the noise's standard deviation in one cell or along one axis."""
        return np.sqrt(self.variance(scale))

    def expected_difference(self, scale: Any, other: Any) -> Array:
        """Return E|Z₁ − Z₂| for independent noise at scales b and c. For points, this is the mean distance.

        √(b² + c²) times the mean size of Gaussian noise, (b² + bc + c²)/(b + c) of Laplace noise, in the plane
        `geometry.expected_distance`. It sets a rate and no guarantee: integer families take the continuous formula.
        """
        b, c = np.asarray(scale, np.float64), np.asarray(other, np.float64)
        if self.is_concentrated:
            return np.asarray(self.mean_size * np.sqrt(b * b + c * c))
        if self.on == "points":
            return expected_distance(b, c)
        total = np.where(b + c > 0, b + c, 1.0)
        return np.asarray((b * b + b * c + c * c) / total)


def _quotient(sensitivity: Any, budget: Any) -> Any:
    """Divide a sensitivity by a budget. A zero sensitivity gives 0; otherwise, a zero budget gives infinity."""
    if not getattr(sensitivity, "ndim", 0) and not getattr(budget, "ndim", 0) and budget > 0:
        return np.float64(sensitivity) / np.float64(budget)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.asarray(sensitivity, np.float64) / np.asarray(budget, np.float64)
    return np.where(np.asarray(sensitivity) == 0, 0.0, quotient)


_OVER_PI = float(np.sqrt(2 / np.pi))

#: Every family by name: those that divide ε, on counts, then those that divide ρ, then those of points.
NOISE_FAMILIES: dict[str, NoiseFamily] = {
    family.name: family
    for family in (
        NoiseFamily("discrete_laplace", "epsilon", "counts", True, 1.0, "discrete_laplace"),
        NoiseFamily("laplace", "epsilon", "counts", False, 1.0, "laplace"),
        NoiseFamily("discrete_gaussian", "rho", "counts", True, _OVER_PI, "discrete_gaussian"),
        NoiseFamily("gaussian", "rho", "counts", False, _OVER_PI, "gaussian"),
        NoiseFamily("planar_laplace", "epsilon", "points", False, 2.0, "laplace"),
        NoiseFamily("planar_gaussian", "rho", "points", False, float(np.sqrt(np.pi / 2)), "gaussian"),
    )
}


def families(on: str | None = None, measure: str | None = None) -> tuple[str, ...]:
    """Return the names of noise families, optionally filtered by ``on`` and by the budget's ``measure``."""
    return tuple(
        name for name, family in NOISE_FAMILIES.items() if on in (None, family.on) and measure in (None, family.measure)
    )
