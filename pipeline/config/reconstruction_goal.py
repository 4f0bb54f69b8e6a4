"""Plan a budget, noise scale or set of sensors that limits the fraction of people whose trajectories can be
reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.accountants.inference.first_moment import upper_mean
from penstock.accountants.inference.history import is_stationary, success_after_releases
from penstock.accountants.inference.places import PlannedWindows, ReleaseForecast, Releasing
from penstock.accountants.inference.success_bounds import success_upper_bound
from penstock.accountants.inference.targets import KnownTargets, known_targets
from penstock.accountants.markov import MarkovPrior
from penstock.accountants.reconstruction import Reconstruction, check_one_place
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.config.goals import PlannedLine
from penstock.pipeline.config.plan import Plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import training_part
from penstock.pipeline.windows.sensors import Sensors

#: People whose bounds are averaged; of more, a sample drawn by the accountant's seed and its upper confidence limit.
PEOPLE = 300
CONFIDENCE = 0.95
#: What may be planned, in the order in which it is looked for; 1: the more, the more is told; −1: the less.
_KEYS = {"epsilon": 1, "rho": 1, "sigma": -1}
#: Least and most ε, ρ or 1/σ tried, and the ratio at which the search stops.
_MIN_BUDGET, _MAX_BUDGET, _PRECISION = 1e-3, 100.0, 1.02
#: Draws for the first-moment bound, and how many operations those of all people may take in one step of the search.
_DRAWS, _OPERATIONS = 500, 1e10
#: Seeds of these draws: of the search, and of the check of the value that it ends with.
_SEARCH, _CHECK = 0, 1

NOT_COVERED = (
    "not covered: people who move otherwise than the prior says, or together; single windows, and fewer than {right} "
    "of {horizon} right; a person's chances over many stretches of {horizon} windows, which add up"
)


def plan_reconstruction(config: RunConfig, share: float) -> PlannedLine:
    """Plan a release from which an informed adversary can retrace at most a given fraction of people in any stretch of
    windows.

    She knows everybody else's cells, a Markov prior of the target and all releases up to the end of the stretch of T
    windows (`horizon`), and succeeds with at most s of them wrong (`tolerance`): the terms of the run's accountant
    ``reconstruction``. Bounds of the success of any attack, averaged over people, stay at or under the share in every
    stretch. What is planned is the mechanism's ``epsilon`` or ``rho`` (the largest), its ``sigma`` (the smallest), or
    without noise the number of sensors: the cells of ``sensors.fixed``, those first in which people are most.

    People's priors are learned from the run's stream where the accountant's are, for everybody seen there (`PEOPLE` of
    them at most, at the upper limit of a one-sided confidence interval of 95 %). About fifteen rounds of
    `success_after_releases` for each person and different schedule of T windows: O(T n_places³) each.

    Raises `ConfigError` without one accountant ``reconstruction``, with an endless source, with a prior learned from
    the people of a deployment, where the prior alone tells more than the share, or where nothing has to be hidden, and
    `UnsupportedEvent` where people count in more than one cell a window.
    """
    if not 0 < share < 1:
        raise ParameterError("share", share, "above 0 and below 1")
    number, accountant = _accountant(config)
    plan = outline(config, NoiseKey.from_seed(config.seed or 0))
    if plan.on_points or plan.grid.calendar.n_windows is None:
        text = "traces are released" if plan.on_points else "the source has no end (until)"
        raise ConfigError((f"source: {text}; a plan of this kind is for counts of a run with an end",))
    crowd = _crowd(plan, accountant)
    horizon, n_right = accountant.horizon, accountant.horizon - accountant.tolerance
    minimum = crowd.largest_share([PlannedWindows((frozenset(),) * horizon)] * crowd.n_stretches)
    if minimum > share:
        text = (
            f"{minimum:.3g} of people are guessed right without the release by someone who knows where they were just "
            "before; no noise makes that less: allow fewer wrong guesses (tolerance), or take a longer horizon"
        )
        raise ConfigError((f"accountants[{number}].tolerance: {text}",))
    section, key, value, share_at_value = _budget(plan, crowd, share) or _sensors(plan, crowd, share)
    return PlannedLine(
        section=section,
        key=key,
        value=value,
        promise=f"at most {share:g} of people retraced in {n_right} of any {horizon} windows in a row (bound "
        f"{share_at_value:.3g} over {crowd.people}; {minimum:.3g} without the release)",
        remark=NOT_COVERED.format(right=n_right, horizon=horizon),
    )


def _accountant(config: RunConfig) -> tuple[int, Reconstruction]:
    """Return the accountant whose adversary the plan defends against, and its index."""
    configured = [(i, one) for i, one in enumerate(config.accountants) if isinstance(one, Reconstruction)]
    if len(configured) != 1:
        text = "a plan needs one reconstruction accountant, whose prior, horizon and tolerance say what is retraced"
        raise ConfigError((f"accountants: {text}",))
    number, accountant = configured[0]
    if config.mode == "deployment" and accountant.prior.chain is None:
        text = "a release planned from people's data tells of them; a deployment plans with a public model (chain)"
        raise ConfigError((f"accountants[{number}].prior: {text}",))
    if accountant.tolerance >= accountant.horizon:
        text = f"is {accountant.tolerance}; below the horizon of {accountant.horizon} windows, or every guess succeeds"
        raise ConfigError((f"accountants[{number}].tolerance: {text}",))
    return number, accountant


@dataclass(frozen=True, eq=False)
class _Crowd:
    """The people with their priors, and the stretches of windows in which they may be retraced."""

    known: KnownTargets
    tolerance: int
    horizon: int
    n_stretches: int
    is_whole: bool  # whether everybody's prior is here; else a sample's

    @property
    def people(self) -> str:
        """A description of the people whose bounds are averaged."""
        if len(self.known.priors) == 1:
            return "people who all move alike"
        return f"{self.known.n_targets} people" + ("" if self.is_whole else ", drawn: upper 95 % limit")

    @property
    def _n_draws(self) -> int:
        """The number of draws for the first-moment bound of one person, or 0 if they would be too few to be useful."""
        each = self.horizon * self.known.places.n_locations**2
        affordable = min(_DRAWS, int(_OPERATIONS / (len(self.known.priors) * each)))
        return affordable if affordable >= 100 else 0

    def share_of(self, plan: Plan, seed: int) -> float:
        """Return a bound on the fraction of people retraced from a plan's releases in the worst stretch."""
        releasing = Releasing(plan.chain.reader, plan.steps)
        forecast = ReleaseForecast(self.known.places, self.horizon, releasing, plan.facts(), plan.grid.windows)
        return self.largest_share(list(forecast.horizons(self.n_stretches)), seed)

    def largest_share(self, stretches: Sequence[PlannedWindows], seed: int = _SEARCH) -> float:
        """Return the largest mean success over people in any stretch, for a sample of people its upper limit."""
        is_stationary_prior = [is_stationary(prior) for prior in self.known.priors]
        means: dict[Hashable, float] = {}
        for index, coming in enumerate(stretches, start=1):
            scale = None if coming.scale is None else coming.scale.tobytes()
            key = (coming.sensors, coming.noise, scale, 0 if all(is_stationary_prior) else index)
            if key not in means:
                successes = [
                    self._success(prior, 0 if is_same else index, coming, seed)
                    for prior, is_same in zip(self.known.priors, is_stationary_prior)
                ]
                values = np.array(successes)
                means[key] = float(values.mean()) if self.is_whole else upper_mean(values, CONFIDENCE)
        return max(means.values())

    def _success(self, prior: MarkovPrior, index: int, coming: PlannedWindows, seed: int) -> float:
        """Bound the success of retracing from window ``index`` onward, 0: any window of a stationary prior."""
        if index == 1:  # nothing was released before
            return success_upper_bound(
                prior, coming.sensors, self.tolerance, coming.noise, coming.scale, n_samples=self._n_draws, seed=seed
            )
        before = MarkovPrior(prior.marginals(index - 1)[-1], prior.transition) if index else prior
        return success_after_releases(before, coming, self.tolerance, self._n_draws, seed)


def _crowd(plan: Plan, accountant: Reconstruction) -> _Crowd:
    """Return the targets whose prior can be learned, or a sample of them; a single one if all share a prior."""
    prior, n_windows = accountant.prior, plan.grid.calendar.n_windows or 0
    training = None if prior.estimate is None else training_part(plan, prior.windows or 0)
    if training is None:
        prior = replace(prior, windows=None)
    known = known_targets(prior, PEOPLE if training else 1, accountant.seed, training)
    check_one_place(plan.accounting_facts(), known)
    if accountant.horizon > n_windows:
        raise ParameterError("horizon", accountant.horizon, f"at most the {n_windows} windows of the run")
    return _Crowd(
        known=known,
        tolerance=accountant.tolerance,
        horizon=accountant.horizon,
        n_stretches=n_windows - accountant.horizon + 1,
        is_whole=training is None or (training.share == 1 and known.n_targets < PEOPLE),
    )


def _budget(plan: Plan, crowd: _Crowd, share: float) -> tuple[str, str, Any, float] | None:
    """Plan the ε, ρ or σ of the releasing step, or return None if the step has no such parameter."""
    reader = plan.chain.reader
    key = next((key for key in _KEYS if getattr(reader, key, None) is not None), None)
    if key is None:
        return None
    position, sign = plan.steps.index(reader), _KEYS[key]

    def share_at(value: float, seed: int = _SEARCH) -> float:
        """Return the fraction of people retraced if the key has the given value."""
        step = replace(reader, **{key: value})
        steps = (*plan.steps[:position], step, *plan.steps[position + 1 :])
        return crowd.share_of(replace(plan, steps=steps, chain=Chain.of(steps, plan.chain.groups)), seed)

    # `safe` keeps the goal and `unsafe` does not: least and most ε, most and least σ.
    safe, unsafe = _MIN_BUDGET**sign, _MAX_BUDGET**sign
    if share_at(safe) > share:
        text = "nothing keeps the goal: of what this step releases no better bound is known than that of exact counts"
        raise ConfigError((f"mechanism[{position}]: {text}",))
    if share_at(unsafe) <= share:
        text = f"keeps the goal with any {key}: what the active sensors see is too little to retrace more people"
        raise ConfigError((f"mechanism[{position}]: {text}",))
    while max(safe / unsafe, unsafe / safe) > _PRECISION:
        middle = math.sqrt(safe * unsafe)
        safe, unsafe = (middle, unsafe) if share_at(middle) <= share else (safe, middle)
    value = _round_digits(safe, sign)
    while (share_at_value := share_at(value, _CHECK)) > share:
        value = _round_digits(value / _PRECISION**sign, sign)
    return f"mechanism[{position}]", key, value, share_at_value


def _round_digits(value: float, sign: int) -> float:
    """Round to three digits: downwards if the sign is positive, upwards if it is negative."""
    digits = 2 - math.floor(math.log10(value))
    return (math.floor if sign > 0 else math.ceil)(value * 10.0**digits) / 10.0**digits


def _sensors(plan: Plan, crowd: _Crowd, share: float) -> tuple[str, str, Any, float]:
    """Plan how many cells may publish exact counts, starting with the most visited cells."""
    places, cells = crowd.known.places, plan.space.cells
    presence = np.mean([prior.initial[places.location] for prior in crowd.known.priors], axis=0) * places.share
    order = np.argsort(-presence[:-1], kind="stable")

    def share_at(n_active: int, seed: int = _SEARCH) -> float:
        """Return the fraction of people retraced for a given number of publishing cells."""
        sensors = Sensors(fixed=tuple(cells[cell] for cell in order[:n_active])).prepare(cells, 0)
        return crowd.share_of(replace(plan, grid=replace(plan.grid, sensors=sensors)), seed)

    n_safe, n_unsafe = 0, len(cells) + 1
    while n_unsafe - n_safe > 1:
        middle = (n_safe + n_unsafe) // 2
        n_safe, n_unsafe = (middle, n_unsafe) if share_at(middle) <= share else (n_safe, middle)
    share_at_value = 0.0
    while n_safe and (share_at_value := share_at(n_safe, _CHECK)) > share:
        n_safe -= 1
    if n_safe in (0, len(cells)):
        text = "keep the goal, all of them active" if n_safe else "cannot keep the goal: one active cell tells too much"
        raise ConfigError((f"sensors: counts without noise {text}",))
    return "sensors", "fixed", sorted(cells[cell] for cell in order[:n_safe]), share_at_value
