"""Bounds on attack success over a range of windows, given any earlier releases.

*No attack that reads all releases up to the end of a stretch does better on average than one that reads those of the
stretch and knows the place in the window before it.* Proof: by the Markov property earlier releases bear on the stretch
only through that place, so knowing it is worth no less (data processing).
"""

from __future__ import annotations

import math

import numpy as np

from penstock.accountants.inference.horizon import genie_ahead, horizon_bounds
from penstock.accountants.inference.kernel import GenieSuccess
from penstock.accountants.inference.places import PlannedWindows
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.targets import TargetPriors
from penstock.accountants.markov import MarkovPrior

#: Scale of noise so small that it hides nothing.
_NEGLIGIBLE = 1e-3
_ROUNDED_UP = 1e-12
#: Largest difference by rounding between an initial and the stationary distribution.
_ROUNDING = 1e-9


def is_stationary(prior: MarkovPrior) -> bool:
    """Return whether a prior has the same marginal in every window."""
    return bool(np.abs(prior.initial @ prior.transition - prior.initial).sum() <= _ROUNDING)


def success_after_releases(
    before: MarkovPrior, coming: PlannedWindows, tolerance: int, n_samples: int = 0, seed: int = 0
) -> float:
    """Bound any attack's success on the coming windows, averaged over all earlier releases.

    `before`: the prior from the window before the coming ones on. Its place, which `prepend_place` tells, is always
    guessed right, so that a success on the windows is one on the longer stretch.
    """
    if coming.noise is None and all(len(window) >= before.n_locations - 1 for window in coming.sensors):
        return 1.0  # exact counts of all places but one reveal the trajectory
    longer = prepend_place(coming, before.n_locations)
    names = ("best",) if coming.noise is None else ("tight", "leakage", "first_moment")[: 3 if n_samples >= 2 else 2]
    given = (before, longer.sensors, tolerance, longer.noise, longer.scale)
    bounds = [success_upper_bound(*given, bound=name, n_samples=n_samples, seed=seed) for name in names]  # type: ignore[arg-type]
    return min(from_each_place(before, coming, tolerance), *bounds)


def prepend_place(coming: PlannedWindows, n_locations: int) -> PlannedWindows:
    """Prepend a window that reveals the place: all sensors are active with negligible noise.

    In place of noise an ε or ρ is worth at least ln n_locations, as information and as the product of capacities.
    """
    sensors = (frozenset(range(n_locations)), *coming.sensors)
    if coming.scale is None:
        return PlannedWindows(sensors, coming.noise)
    # (ln n + 1) tanh((ln n + 1) / 2) is above ln n for every n
    guarantees = {"pure_dp": math.log(n_locations) + 1, "zcdp": math.log(n_locations)}
    first_noise = guarantees.get(str(coming.noise), _NEGLIGIBLE)
    return PlannedWindows(sensors, coming.noise, np.append(first_noise, coming.scale))


def from_each_place(before: MarkovPrior, coming: PlannedWindows, tolerance: int) -> float:
    """Bound the success of an adversary told the preceding place, averaged over it. Tight if releases tell little."""
    reduced, _ = before.reduced
    first = reduced.transition if isinstance(reduced.transition, np.ndarray) else reduced.transition.toarray()
    targets, n_places = TargetPriors.of([before] * len(first)), len(first)
    ahead = genie_ahead(TargetPriors.of([before]), len(coming.sensors), tolerance)
    ahead = GenieSuccess(np.repeat(ahead.values, n_places, axis=0), np.repeat(ahead.log_scale, n_places))
    bounds = horizon_bounds(targets, first, coming, tolerance, ahead)
    return min(1.0, float(reduced.initial @ bounds["best"]) * (1 + _ROUNDED_UP))
