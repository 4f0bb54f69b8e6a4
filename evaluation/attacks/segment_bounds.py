"""Upper bounds on the success of any reconstruction attack on a segment of windows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.inference.estimators import Estimator, attack_success
from penstock.accountants.inference.horizon import GenieAhead, genie_ahead, horizon_bounds
from penstock.accountants.inference.observation import ADDITIVE
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.targets import TargetPriors
from penstock.accountants.markov import MarkovPrior
from penstock.evaluation.attacks.retracing import Observed

#: Estimators tried on simulated trajectories; the constant guess means something else there (`attack_success`).
SIMULATED: tuple[Estimator, ...] = ("map", "posterior_marginals", "prior")
#: Scale of noise so small that it hides nothing.
_NEXT_TO_NONE = 1e-3
_ROUNDED_UP = 1e-12
#: Largest difference by rounding between an initial and the stationary distribution.
_ROUNDING = 1e-9


class SuccessBounds:
    """Bounds on every attack on a segment of windows, and attacks on trajectories simulated from a prior.

    Parameters
    ----------
    places
        Cells of a run as places of the prior.
    observed
        Its releases; of a mechanism without noise they show which cells reveal a person.
    planned
        Sensors and noise of each segment, as known before its first window; of a mechanism without noise: none.
    training, horizon
        Windows before the first segment, and windows of a segment.
    tolerance
        Wrong guesses in a segment that still are a success.
    simulated
        Simulated trajectories of each prior; 0: none.
    n_samples
        Draws for the first-moment bound; below 2: without it.
    adaptive
        Whether the mechanism's noise depends on what it released before: then nothing is simulated.
    seed
        Of the simulation and the draws.

    Notes
    -----
    *No attack that reads all releases up to the end of a segment does better on average than* `told_before`: the
    segment with one more window in front, in which the place is known, and the same tolerance. Proof: by the Markov
    property, earlier releases inform about the segment only through the place in the window before it, so knowing that
    place is worth no less (data processing); it is always guessed right, so a success on the segment is one on the
    longer segment. The place is distributed as the prior's marginal of its window, the walk having begun at the run's
    first window: the initial distribution where that is stationary, else the marginal after that many moves, which
    gives each segment a bound of its own. So the bound never understates, whatever the initial distribution.
    `from_each_place` bounds the same adversary; the smaller bound counts. Simulated trajectories are attacked by an
    adversary who knows that place, who does no worse than one who reads earlier releases. A bound is computed once for
    each prior, initial distribution and schedule.
    """

    def __init__(
        self,
        places: PriorPlaces,
        observed: Observed,
        planned: tuple[PlannedWindows, ...],
        *,
        training: int,
        horizon: int,
        tolerance: int,
        simulated: int,
        n_samples: int,
        adaptive: bool,
        seed: int,
    ) -> None:
        self.places, self.observed = places, observed
        self.training, self.horizon, self.tolerance = training, horizon, tolerance
        self.simulated, self.n_samples = simulated, n_samples if n_samples >= 2 else 0
        self.seed, self.fixed, self.planned = seed, not adaptive, planned
        self._bounds: dict[tuple[object, ...], float] = {}

    def of(
        self, prior: MarkovPrior, trajectory: NDArray[np.intp], number: int
    ) -> tuple[float, dict[str, tuple[int, int]]]:
        """Mean bound over the segments, and by estimator the successes and trials on simulated trajectories.

        ``trajectory`` (n_windows,): the target's true places from the run's first window on; they decide what a release
        without noise reveals. ``number`` of the target, from 0, seeds the simulation.
        """
        segments = self.planned or self._revealed(trajectory)
        bound = float(np.mean([self._bound(prior, place, coming) for place, coming in enumerate(segments)]))
        likely = self.fixed and all(coming.noise in (None, *ADDITIVE) for coming in segments)
        if not likely or self.simulated == 0:
            return bound, {}
        n_each = -(-self.simulated // len(segments))
        by_noise = {}
        for place, kind in enumerate(SIMULATED):
            rng = np.random.default_rng([self.seed, number, place])
            rates = [self._simulate(kind, prior, at, coming, n_each, rng) for at, coming in enumerate(segments)]
            by_noise[kind] = (round(sum(rates) * n_each), n_each * len(rates))
        return bound, {str(kind): successes for kind, successes in by_noise.items()}

    def _before(self, prior: MarkovPrior, segment: int) -> tuple[MarkovPrior, int]:
        """The prior from the window before a segment on, and that window; 0 for a stationary prior."""
        if np.abs(prior.initial @ prior.transition - prior.initial).sum() <= _ROUNDING:
            return prior, 0
        window = self.training + segment * self.horizon
        return MarkovPrior(prior.marginals(window)[-1], prior.transition), window

    def _bound(self, prior: MarkovPrior, segment: int, coming: PlannedWindows) -> float:
        if coming.noise is None and all(len(window) >= prior.n_locations - 1 for window in coming.sensors):
            return 1.0  # exact counts of all places but one reveal the trajectory
        before, window = self._before(prior, segment)
        scale = None if coming.scale is None else coming.scale.tobytes()
        key = (id(prior), window, coming.sensors, coming.noise, scale)
        if key not in self._bounds:
            names = (
                ("best",)
                if coming.noise is None
                else ("tight", "leakage", "first_moment")[: 3 if self.n_samples else 2]
            )
            longer = told_before(coming, prior.n_locations)
            self._bounds[key] = min(
                from_each_place(before, coming, self.tolerance),
                *(
                    success_upper_bound(
                        before,
                        longer.sensors,
                        self.tolerance,
                        longer.noise,
                        longer.scale,
                        bound=name,  # type: ignore[arg-type]
                        n_samples=self.n_samples,
                        seed=self.seed,
                    )
                    for name in names
                ),
            )
        return self._bounds[key]

    def _simulate(
        self,
        kind: Estimator,
        prior: MarkovPrior,
        segment: int,
        coming: PlannedWindows,
        n: int,
        rng: np.random.Generator,
    ) -> float:
        elsewhere = {self.places.n_locations - 1}  # not observed: it may be many cells
        coming = replace(coming, sensors=tuple(window - elsewhere for window in coming.sensors))
        before, window = self._before(prior, segment)
        if kind != "prior":
            coming = told_before(coming, prior.n_locations)
        elif window:
            before = MarkovPrior(before.initial @ before.transition, before.transition)
        return attack_success(kind, before, coming.sensors, self.tolerance, n, rng, coming.noise, coming.scale)[0]

    def _revealed(self, trajectory: NDArray[np.intp]) -> tuple[PlannedWindows, ...]:
        """Segments of a release without noise: the sensors whose values depend on the person."""
        revealed = ~np.isnan(self.observed.without_others(trajectory)[0, self.training :])
        sensors = [frozenset(self.places.sensors(window)) for window in revealed]
        step = self.horizon
        return tuple(PlannedWindows(tuple(sensors[first : first + step])) for first in range(0, len(sensors), step))


def told_before(coming: PlannedWindows, n_locations: int) -> PlannedWindows:
    """The coming windows with one in front that reveals the place.

    In that window all sensors are active with negligible noise. Where a guarantee stands for the noise, its ε or ρ is
    worth at least ln n_locations, both in the sum of information (ε tanh(ε/2), ρ) and in the product of capacities
    (e^ε).

    >>> told_before(PlannedWindows((frozenset({1}),), "laplace", np.array([2.0])), 2).scale.tolist()
    [0.001, 2.0]
    """
    sensors = (frozenset(range(n_locations)), *coming.sensors)
    if coming.scale is None:
        return PlannedWindows(sensors, coming.noise)
    # (ln n + 1) tanh((ln n + 1) / 2) is above ln n for every n
    guarantees = {"pure_dp": math.log(n_locations) + 1, "zcdp": math.log(n_locations)}
    front = guarantees.get(str(coming.noise), _NEXT_TO_NONE)
    return PlannedWindows(sensors, coming.noise, np.append(front, coming.scale))


def from_each_place(before: MarkovPrior, coming: PlannedWindows, tolerance: int) -> float:
    """Bound on an adversary who knows the place before a segment: the mean over places of the bound from each.

    The cheap bounds of `horizon_bounds`; tight where releases reveal little, because the known place itself does not
    count as information. O(n_steps n_locations³) time.

    >>> stay = MarkovPrior([0.5, 0.5], np.eye(2))
    >>> from_each_place(stay, PlannedWindows((frozenset(),)), 0)
    1.0
    """
    reduced, _ = before.reduced
    first = reduced.transition if isinstance(reduced.transition, np.ndarray) else reduced.transition.toarray()
    targets, n_places = TargetPriors.of([before] * len(first)), len(first)
    ahead = genie_ahead(TargetPriors.of([before]), len(coming.sensors), tolerance)
    ahead = GenieAhead(np.repeat(ahead.values, n_places, axis=0), np.repeat(ahead.log_scale, n_places))
    bounds = horizon_bounds(targets, first, coming.sensors, tolerance, coming.noise, coming.scale, ahead)
    return min(1.0, float(reduced.initial @ bounds["best"]) * (1 + _ROUNDED_UP))
