"""What any attack on a stretch by itself could achieve, and whether a release can be followed at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accountants.inference.estimators import Estimator
from accountants.inference.observation import ADDITIVE
from accountants.inference.outlook import Coming, Outlook
from accountants.inference.places import Places
from accountants.inference.prior import MarkovPrior
from accountants.inference.releasing import Releasing
from accountants.reconstruction import attack_success, success_upper_bound
from evaluation.attacks.retracing import Observed, Shown
from mechanisms.core.errors import ParameterError
from mechanisms.core.mechanism import MECHANISMS
from mechanisms.crowd_blending import CrowdBlending
from mechanisms.fixed_ranges import FixedRanges
from mechanisms.perturb_small import PerturbSmall
from mechanisms.suppress_small import SuppressSmall
from pipeline.attack_reconstruction_game import ReconstructionGame, Settings
from pipeline.plan import Plan

#: Estimators that are tried on made-up ways too: the constant guess is another one there (`attack_success`).
SIMULATED: tuple[Estimator, ...] = ("map", "posterior_marginals", "prior")


def shown_by(plan: Plan) -> Shown | None:
    """What a mechanism without noise that looks at every count by itself makes of counts; None: any other."""
    reader = plan.chain.reader
    if isinstance(reader, CrowdBlending):
        reader = reader.form
    return reader.without_noise if isinstance(reader, SuppressSmall | FixedRanges) else None


def refuse_unless_followed(plan: Plan) -> None:
    """Refuse what cannot be retraced window by window from the release less everybody else.

    Raises
    ------
    ParameterError
        There are no people, one counts in several cells, windows overlap, or a release has no known likelihood.
    """
    source = plan.config.source
    if not source.has_people:
        right = "one that tells people apart: here every trip is somebody new, and nobody has a way to retrace"
        raise ParameterError("source", type(source).__name__.lower(), right)
    if plan.max_cells != 1:
        raise ParameterError(
            "bounding.max_cells",
            plan.config.bounding.max_cells,
            "1 for a reconstruction attack: with several cells of a window there is no one way to retrace",
        )
    if plan.calendar.overlapping:
        right = "of windows that do not overlap: one moment would be in more than one release"
        raise ParameterError("windows", plan.config.windows, right)
    steps = plan.config.mechanism
    # which counts get noise depends on the counts where small ones are perturbed
    adds_noise = Releasing(plan.chain.reader, steps).adds_noise_only and not isinstance(plan.chain.reader, PerturbSmall)
    if plan.chain.simple and (adds_noise or shown_by(plan) is not None):
        return
    right = (
        "a single step that adds noise of a known scale in each window, or changes each count by itself: how likely a "
        "release of any other is, is not known; the accountant `reconstruction` bounds what it tells"
    )
    raise ParameterError("mechanism", [MECHANISMS.name_of(type(step)) for step in steps], right)


class Prospects:
    """Bounds on every attack on a stretch by itself, and attacks on people who move exactly as a prior says.

    Parameters
    ----------
    plan, places, settings, game
        The run, and how it is attacked.
    observed
        Its releases: where the mechanism has no noise, they tell which cells show a person.

    Notes
    -----
    A bound is worked out once for each prior and schedule. It begins from the prior: releases before the stretch tell
    where somebody was just then, which it does not count.
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
            (n_windows,) where it really was: of a release without noise it decides what the adversary can see.
        number
            Of the target, from 0: made-up ways are drawn by it.
        """
        stretches = self.planned or self._shown(way)
        bound = float(np.mean([self._bound(prior, coming) for coming in stretches]))
        likely = self.fixed and all(coming.noise in (None, *ADDITIVE) for coming in stretches)
        if not likely or self.game.simulated == 0:
            return bound, {}
        n_each = -(-self.game.simulated // len(stretches))
        found = {}
        for place, kind in enumerate(SIMULATED):
            rng = np.random.default_rng([self.seed, number, place])
            rates = [self._simulate(kind, prior, coming, n_each, rng) for coming in stretches]
            found[kind] = (round(sum(rates) * n_each), n_each * len(rates))
        return bound, {str(kind): successes for kind, successes in found.items()}

    def _bound(self, prior: MarkovPrior, coming: Coming) -> float:
        if coming.noise is None and all(len(window) >= prior.n_locations - 1 for window in coming.sensors):
            return 1.0  # exact counts of all places but one tell the whole way
        key = (id(prior), coming.sensors, coming.noise, None if coming.scale is None else coming.scale.tobytes())
        if key not in self._bounds:
            n_samples = self.game.bound_samples if self.game.bound_samples >= 2 else 0
            names = ("best",) if coming.noise is None else ("tight", "leakage", "first_moment")[: 3 if n_samples else 2]
            self._bounds[key] = min(
                success_upper_bound(
                    prior,
                    coming.sensors,
                    self.settings.tolerance,
                    coming.noise,
                    coming.scale,
                    bound=name,  # type: ignore[arg-type]
                    n_samples=n_samples,
                    seed=self.seed,
                )
                for name in names
            )
        return self._bounds[key]

    def _simulate(self, kind: Estimator, prior: MarkovPrior, coming: Coming, n: int, rng: np.random.Generator) -> float:
        elsewhere = {self.places.n_locations - 1}  # never looked at: it may be many cells
        sensors = [window - elsewhere for window in coming.sensors]
        return attack_success(kind, prior, sensors, self.settings.tolerance, n, rng, coming.noise, coming.scale)[0]

    def _shown(self, way: NDArray[np.intp]) -> tuple[Coming, ...]:
        told = ~np.isnan(self.observed.without_others(way)[0])
        sensors = [frozenset(self.places.sensors(window)) for window in told]
        step = self.settings.horizon
        return tuple(Coming(tuple(sensors[first : first + step])) for first in range(0, len(sensors), step))


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
