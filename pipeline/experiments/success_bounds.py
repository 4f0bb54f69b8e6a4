"""What any attack on a stretch could achieve, however it reads the releases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from accountants.inference.estimators import Estimator, attack_success
from accountants.inference.horizon import GenieAhead, genie_ahead, horizon_bounds
from accountants.inference.observation import ADDITIVE
from accountants.inference.places import Coming, Outlook, Places, Releasing
from accountants.inference.prior import MarkovPrior
from accountants.inference.success_bounds import success_upper_bound
from accountants.inference.targets import Targets
from evaluation.attacks.retracing import Observed
from pipeline.experiments.reconstruction_game import ReconstructionGame, Settings

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


#: Estimators that are tried on made-up ways too: the constant guess is another one there (`attack_success`).
SIMULATED: tuple[Estimator, ...] = ("map", "posterior_marginals", "prior")
#: Scale of the noise that hides nothing.
_NEXT_TO_NONE = 1e-3
_ROUNDED_UP = 1e-12
#: Probability by which a start may miss the long-run distribution by rounding.
_ROUNDING = 1e-9


class Prospects:
    """Bounds on every attack on a stretch, and attacks on people who move exactly as a prior says.

    Parameters
    ----------
    plan, places, settings, game
        The run, and how it is attacked.
    observed
        Its releases: where the mechanism has no noise, they tell which cells show a person.

    Notes
    -----
    *No attack that reads all releases up to the end of a stretch does better on average than* `told_before`: the
    stretch with one more window in front, in which the place is told, and the same tolerance. Proof: by the Markov
    property earlier releases bear on the stretch through the place in the window before it alone, so being told that
    place is worth no less (data processing); and it is always guessed right, so a success on the stretch is one on the
    longer one. That place is distributed as the prior says of its window, the walk having begun at the run's first
    window: as its start where that is the long-run distribution, else as the start moved on so many times, which makes
    a bound of its own for each stretch; so no start, empirical ones among them, makes it understate. `from_each_place`
    bounds the same adversary, and the smaller of both counts. Made-up ways are attacked by somebody who is told that
    place, who does no worse than whoever reads earlier releases. A bound is worked out once for each prior, start and
    schedule.
    """

    def __init__(
        self, plan: Plan, places: Places, settings: Settings, game: ReconstructionGame, observed: Observed
    ) -> None:
        self.places, self.settings, self.game, self.observed = places, settings, game, observed
        self.seed = plan.config.seed or 0
        self.fixed = not plan.chain.reader.adaptive
        self.planned = _planned(plan, places, settings) if observed.shown is None else ()
        self._bounds: dict[tuple[object, ...], float] = {}

    def of(self, prior: MarkovPrior, way: NDArray[np.intp], number: int) -> tuple[float, dict[str, tuple[int, int]]]:
        """Mean bound over the stretches, and successes against made-up ways.

        Parameters
        ----------
        prior
            Of the target.
        way
            (n_windows,) where it really was, from the run's first window on: of a release without noise it decides
            what the adversary can see.
        number
            Of the target, from 0: made-up ways are drawn by it.
        """
        stretches = self.planned or self._shown(way)
        bound = float(np.mean([self._bound(prior, place, coming) for place, coming in enumerate(stretches)]))
        likely = self.fixed and all(coming.noise in (None, *ADDITIVE) for coming in stretches)
        if not likely or self.game.simulated == 0:
            return bound, {}
        n_each = -(-self.game.simulated // len(stretches))
        found = {}
        for place, kind in enumerate(SIMULATED):
            rng = np.random.default_rng([self.seed, number, place])
            rates = [self._simulate(kind, prior, at, coming, n_each, rng) for at, coming in enumerate(stretches)]
            found[kind] = (round(sum(rates) * n_each), n_each * len(rates))
        return bound, {str(kind): successes for kind, successes in found.items()}

    def _before(self, prior: MarkovPrior, stretch: int) -> tuple[MarkovPrior, int]:
        """The prior from the window before a stretch on, and that window; 0 where one is as good as another."""
        if np.abs(prior.initial @ prior.transition - prior.initial).sum() <= _ROUNDING:
            return prior, 0
        window = self.settings.training + stretch * self.settings.horizon
        return MarkovPrior(prior.marginals(window)[-1], prior.transition), window

    def _bound(self, prior: MarkovPrior, stretch: int, coming: Coming) -> float:
        if coming.noise is None and all(len(window) >= prior.n_locations - 1 for window in coming.sensors):
            return 1.0  # exact counts of all places but one tell the whole way
        before, window = self._before(prior, stretch)
        scale = None if coming.scale is None else coming.scale.tobytes()
        key = (id(prior), window, coming.sensors, coming.noise, scale)
        if key not in self._bounds:
            n_samples = self.game.bound_samples if self.game.bound_samples >= 2 else 0
            names = ("best",) if coming.noise is None else ("tight", "leakage", "first_moment")[: 3 if n_samples else 2]
            longer = told_before(coming, prior.n_locations)
            self._bounds[key] = min(
                from_each_place(before, coming, self.settings.tolerance),
                *(
                    success_upper_bound(
                        before,
                        longer.sensors,
                        self.settings.tolerance,
                        longer.noise,
                        longer.scale,
                        bound=name,  # type: ignore[arg-type]
                        n_samples=n_samples,
                        seed=self.seed,
                    )
                    for name in names
                ),
            )
        return self._bounds[key]

    def _simulate(
        self, kind: Estimator, prior: MarkovPrior, stretch: int, coming: Coming, n: int, rng: np.random.Generator
    ) -> float:
        elsewhere = {self.places.n_locations - 1}  # never looked at: it may be many cells
        coming = replace(coming, sensors=tuple(window - elsewhere for window in coming.sensors))
        before, window = self._before(prior, stretch)
        if kind != "prior":
            coming = told_before(coming, prior.n_locations)
        elif window:
            before = MarkovPrior(before.initial @ before.transition, before.transition)
        return attack_success(
            kind, before, coming.sensors, self.settings.tolerance, n, rng, coming.noise, coming.scale
        )[0]

    def _shown(self, way: NDArray[np.intp]) -> tuple[Coming, ...]:
        told = ~np.isnan(self.observed.without_others(way)[0, self.settings.training :])
        sensors = [frozenset(self.places.sensors(window)) for window in told]
        step = self.settings.horizon
        return tuple(Coming(tuple(sensors[first : first + step])) for first in range(0, len(sensors), step))


def told_before(coming: Coming, n_locations: int) -> Coming:
    """The coming windows with one in front that tells everything.

    Parameters
    ----------
    coming
        Of `Outlook.coming`.
    n_locations
        Places of the prior.

    Returns
    -------
    One window more, and no less told in it than the place: all sensors with next to no noise; where a guarantee stands
    for the noise, an ε or ρ that is worth no less than ln n_locations, in the sum of information (ε tanh(ε/2), ρ) and
    in the product of capacities (e^ε) alike.

    >>> told_before(Coming((frozenset({1}),), "laplace", np.array([2.0])), 2).scale.tolist()
    [0.001, 2.0]
    """
    sensors = (frozenset(range(n_locations)), *coming.sensors)
    if coming.scale is None:
        return Coming(sensors, coming.noise)
    # (ln n + 1) tanh((ln n + 1) / 2) is above ln n for every n
    guarantees = {"pure_dp": math.log(n_locations) + 1, "zcdp": math.log(n_locations)}
    front = guarantees.get(str(coming.noise), _NEXT_TO_NONE)
    return Coming(sensors, coming.noise, np.append(front, coming.scale))


def from_each_place(before: MarkovPrior, coming: Coming, tolerance: int) -> float:
    """Bound on whoever is told the place before a stretch: what can be done from each, on average.

    The cheap bounds of `horizon_bounds`; sharp where the releases tell little, as the place itself is not among what
    they tell. O(n_steps n_locations³) time.

    >>> stay = MarkovPrior([0.5, 0.5], np.eye(2))
    >>> from_each_place(stay, Coming((frozenset(),)), 0)
    1.0
    """
    own, _ = before.reduced
    first = own.transition if isinstance(own.transition, np.ndarray) else own.transition.toarray()
    targets, n_places = Targets.of([before] * len(first)), len(first)
    ahead = genie_ahead(Targets.of([before]), len(coming.sensors), tolerance)
    ahead = GenieAhead(np.repeat(ahead.values, n_places, axis=0), np.repeat(ahead.log_scale, n_places))
    found = horizon_bounds(targets, first, coming.sensors, tolerance, coming.noise, coming.scale, ahead)
    return min(1.0, float(own.initial @ found["best"]) * (1 + _ROUNDED_UP))


def _planned(plan: Plan, places: Places, settings: Settings) -> tuple[Coming, ...]:
    """Each stretch as it is known before its first window."""
    releasing = Releasing(plan.chain.reader, plan.config.mechanism)
    outlook = Outlook(places, settings.horizon, releasing, plan.facts(), plan.windows)
    state, found = outlook.start(), []
    for index in range(1, settings.n_windows + 1):
        if index > settings.training and (index - settings.training - 1) % settings.horizon == 0:
            found.append(outlook.coming(index, state))
        state = outlook.after(index, state)
    return tuple(found)
