"""Upper bounds on how often any reconstruction attack can succeed on a segment of windows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.inference.estimators import Estimator, attack_success
from penstock.accountants.inference.history import is_stationary, prepend_place, success_after_releases
from penstock.accountants.inference.observation import ADDITIVE
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces
from penstock.accountants.markov import MarkovPrior
from penstock.evaluation.attacks.retracing import Observed

#: Estimators tried on simulated trajectories; the constant guess means something else there (`attack_success`).
SIMULATED: tuple[Estimator, ...] = ("map", "posterior_marginals", "prior")


@dataclass(frozen=True, eq=False)
class SuccessBounds:
    """Bounds for any attack on a segment, and success rates of attacks on trajectories simulated from a prior.

    The bound of a segment is `success_after_releases`. The place before it is distributed as the prior's marginal of
    its window, the walk having begun at the run's first window: the initial distribution where that is stationary, else
    the marginal after that many moves, which gives each segment a bound of its own. So the bound never understates,
    whatever the initial distribution. Simulated trajectories are attacked by an adversary who knows that place, who
    does no worse than one who reads earlier releases. A bound is computed once for each prior, initial distribution and
    schedule.
    """

    places: PriorPlaces
    observed: Observed  # releases; of a mechanism without noise they show which cells reveal a person
    planned: tuple[PlannedWindows, ...]  # each segment as known before its first window; none without noise
    training: int  # windows before the first segment
    horizon: int  # windows of a segment
    tolerance: int
    simulated: int  # trajectories of each prior; 0: none
    n_samples: int  # draws for the first-moment bound; below 2: without it
    adaptive: bool  # whether noise depends on earlier releases: then nothing is simulated
    seed: int
    _bounds: dict[tuple[object, ...], float] = field(default_factory=dict, init=False)

    def of(
        self, prior: MarkovPrior, trajectory: NDArray[np.intp], number: int, n: int | None = None
    ) -> tuple[float, dict[str, tuple[int, int]]]:
        """Compute the mean bound over segments, and each estimator's successes and trials on simulated trajectories.

        ``trajectory`` (n_windows,): the target's true places. ``number`` of the target, from 0, seeds the simulation.
        ``n``: of the first segments alone.
        """
        segments = self.planned
        if not segments:  # of a release without noise: the sensors whose values depend on the person
            revealed = ~np.isnan(self.observed.without_others(trajectory)[0, self.training :])
            sensors, step = [frozenset(self.places.sensors(window)) for window in revealed], self.horizon
            starts = range(0, len(sensors), step)
            segments = tuple(PlannedWindows(tuple(sensors[first : first + step])) for first in starts)
        n_each = -(-self.simulated // max(len(segments), 1))
        segments = segments[:n]
        bound = float(np.mean([self._bound(prior, place, coming) for place, coming in enumerate(segments)]))
        likely = not self.adaptive and all(coming.noise in (None, *ADDITIVE) for coming in segments)
        if not likely or self.simulated == 0:
            return bound, {}
        by_noise = {}
        for place, kind in enumerate(SIMULATED):
            rng = np.random.default_rng([self.seed, number, place])
            rates = [self._simulate(kind, prior, at, coming, n_each, rng) for at, coming in enumerate(segments)]
            by_noise[kind] = (round(sum(rates) * n_each), n_each * len(rates))
        return bound, {str(kind): successes for kind, successes in by_noise.items()}

    def _before(self, prior: MarkovPrior, segment: int) -> tuple[MarkovPrior, int]:
        """Return the prior from the window before a segment on, and that window, or 0 for a stationary prior."""
        if is_stationary(prior):
            return prior, 0
        window = self.training + segment * self.horizon
        return MarkovPrior(prior.marginals(window)[-1], prior.transition), window

    def _bound(self, prior: MarkovPrior, segment: int, coming: PlannedWindows) -> float:
        before, window = self._before(prior, segment)
        scale = None if coming.scale is None else coming.scale.tobytes()
        key = (id(prior), window, coming.sensors, coming.noise, scale)
        if key not in self._bounds:
            self._bounds[key] = success_after_releases(before, coming, self.tolerance, self.n_samples, self.seed)
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
            coming = prepend_place(coming, prior.n_locations)
        elif window:
            before = MarkovPrior(before.initial @ before.transition, before.transition)
        return attack_success(kind, before, coming.sensors, self.tolerance, n, rng, coming.noise, coming.scale)[0]
