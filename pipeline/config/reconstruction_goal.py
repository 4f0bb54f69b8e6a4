"""Plan a budget, noise scale or set of sensors that limits the fraction of people whose trajectories can be
reconstructed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from penstock.mechanisms.core.contract import amounts
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ConfigError, ParameterError, parameters_of
from penstock.pipeline.config.goals import PlannedLine
from penstock.pipeline.config.plan import Plan, outline
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.windows.sensors import Sensors

#: People whose bounds are averaged; of more, a sample drawn by the accountant's seed and its upper confidence limit.
PEOPLE = 300
CONFIDENCE = 0.95
#: What may be planned, in the order in which it is looked for; 1: the more, the more is told; −1: the less.
_KEYS = {"epsilon": 1, "rho": 1, "sigma": -1}
#: Least and most ε, ρ or 1/σ tried, and how many steps from the one to the other: of 1.1 % each.
_MIN_BUDGET, _MAX_BUDGET, _STEPS = 1e-3, 100.0, 1024
#: Noise of which a larger one is a smaller one with further noise added.
_DIVISIBLE = ("gaussian", "laplace", "discrete_laplace")
#: Draws for the first-moment bound, and how many operations those of all people may take in one step of the search.
_DRAWS, _OPERATIONS = 500, 1e10
#: Rounds of a search, and people by whom the time of one is foreseen.
_ROUNDS, _TIMED = 10, 3
#: Seeds of these draws: of the search, and of the check of the value that it ends with.
_SEARCH, _CHECK = 0, 1

NOT_COVERED = (
    "not covered: people who move otherwise than the prior says, or together; single windows, and fewer than {right} "
    "of {horizon} right; a person's chances over many stretches of {horizon} windows, which add up"
)


def plan_reconstruction(
    config: RunConfig, share: float, foreseen: Callable[[float], None] = lambda seconds: None
) -> PlannedLine:
    """Plan a release from which an informed adversary retraces at most a given fraction of people in any stretch.

    She knows everybody else's cells, a Markov prior of the target and all releases up to the end of the stretch of T
    windows (`horizon`), and succeeds with at most s of them wrong (`tolerance`): the terms of the run's accountant
    ``reconstruction``. Bounds of the success of any attack, averaged over people, stay at or under the share in every
    stretch. What is planned is the mechanism's ``epsilon`` or ``rho`` (the largest), its ``sigma`` (the smallest), or
    without noise the number of sensors: the cells of ``sensors.fixed``, those first in which people are most.

    People's priors are learned from the run's stream where the accountant's are, for everybody seen there (`PEOPLE` of
    them at most, at the upper limit of a one-sided confidence interval of 95 %). About ten rounds of
    `success_after_releases` for each person and different schedule of T windows: O(T n_places³) each. ``foreseen`` is
    told before the first how many seconds they take.

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
    foreseen(crowd.seconds(plan))
    minimum = crowd.largest_share([PlannedWindows((frozenset(),) * horizon)] * crowd.n_stretches)
    if minimum > share:
        text = (
            f"{minimum:.3g} of people are guessed right without the release by someone who knows where they were just "
            "before; no noise makes that less: allow fewer wrong guesses (tolerance), or take a longer horizon"
        )
        raise ConfigError((f"accountants[{number}].tolerance: {text}",))
    planned = _budget(plan, crowd, share, minimum) or _sensors(plan, crowd, share, minimum)
    section, key, value, share_at_value = planned
    return PlannedLine(
        section=section,
        key=key,
        value=value,
        promise=f"at most {share:g} of people retraced in {n_right} of any {horizon} windows in a row (bound "
        f"{share_at_value:.3g} over {crowd.people}; {minimum:.3g} without the release)",
        remark=NOT_COVERED.format(right=n_right, horizon=horizon),
    )


def _accountant(config: RunConfig) -> tuple[int, Reconstruction]:
    """Return the index of the only reconstruction accountant and the accountant, which defines the adversary."""
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
    """People with their priors, and the stretches of windows during which their trajectories might be reconstructed."""

    known: KnownTargets
    tolerance: int
    horizon: int
    n_stretches: int
    is_whole: bool  # whether everybody's prior is here; else a sample's

    @property
    def people(self) -> str:
        """A description of the people over whom bounds are averaged."""
        if len(self.known.priors) == 1:
            return "people who all move alike"
        return f"{self.known.n_targets} people" + ("" if self.is_whole else ", drawn: upper 95 % limit")

    @property
    def _n_draws(self) -> int:
        """The number of draws for one person's first-moment bound, or 0 if there would be too few to be useful."""
        each = self.horizon * self.known.places.n_locations**2
        affordable = min(_DRAWS, int(_OPERATIONS / (len(self.known.priors) * each)))
        return affordable if affordable >= 100 else 0

    def share_of(self, plan: Plan, seed: int) -> float:
        """Bound the fraction of people whose trajectories a plan's releases reveal in the worst stretch."""
        return self.largest_share(self._stretches(plan), seed)

    def largest_share(self, stretches: Sequence[PlannedWindows], seed: int = _SEARCH) -> float:
        """Return the largest mean success in any stretch, or its upper confidence limit for a sample of people."""
        means = []
        for index, coming in self._distinct_stretches(stretches):
            values = np.array([self._success(number, index, coming, seed) for number in range(len(self.known.priors))])
            means.append(float(values.mean()) if self.is_whole else upper_mean(values, CONFIDENCE))
        return max(means)

    def seconds(self, plan: Plan) -> float:
        """Estimate a search's duration by timing a few people. A plan without noise is timed without active sensors."""
        index, coming = (different := self._distinct_stretches(self._stretches(plan)))[-1]
        coming = coming if coming.noise else PlannedWindows((frozenset(),) * self.horizon)
        n_timed, begin = min(_TIMED, len(self.known.priors)), time.monotonic()
        for number in range(n_timed):
            self._success(number, index, coming, _SEARCH)
        return (time.monotonic() - begin) / n_timed * len(self.known.priors) * len(different) * _ROUNDS

    def _stretches(self, plan: Plan) -> list[PlannedWindows]:
        """Return a plan's releases in every stretch."""
        releasing = Releasing(plan.chain.reader, plan.config.mechanism)
        forecast = ReleaseForecast(self.known.places, self.horizon, releasing, plan.facts(), plan.grid.windows)
        return list(forecast.horizons(self.n_stretches))

    def _distinct_stretches(self, stretches: Sequence[PlannedWindows]) -> list[tuple[int, PlannedWindows]]:
        """Return all stretches that could be the worst, as pairs of the first window (1-based) and the releases.

        Of two with the same sensors, that with more noise everywhere tells no more, if people are alike in any window
        and if the larger noise is the smaller with further noise: not of the discrete Gaussian.
        """
        first: dict[Hashable, tuple[int, PlannedWindows]] = {}
        for index, coming in enumerate(stretches, start=1):
            scale = None if coming.scale is None else coming.scale.tobytes()
            key = (coming.sensors, coming.noise, scale, 0 if all(self._is_stationary) else index)
            first.setdefault(key, (index, coming))
        different = list(first.values())
        if not all(self._is_stationary) or different[0][1].noise not in _DIVISIBLE:
            return different

        def is_covered(one: PlannedWindows) -> bool:
            """Return whether another stretch has the same sensors and no more noise in any cell."""
            others = (other for _, other in different if other is not one and other.sensors == one.sensors)
            scale = np.asarray(one.scale)
            scales = (np.asarray(other.scale) for other in others if other.noise == one.noise)
            return any(other.shape == scale.shape and bool((other <= scale).all()) for other in scales)

        return [(index, coming) for index, coming in different if not is_covered(coming)]

    @cached_property
    def _is_stationary(self) -> list[bool]:
        """Return whether each person's prior is the same in every window."""
        return [is_stationary(prior) for prior in self.known.priors]

    def _success(self, number: int, index: int, coming: PlannedWindows, seed: int) -> float:
        """Return an upper bound on the probability of retracing one person from window ``index`` onward."""
        prior = self.known.priors[number]
        index = 0 if self._is_stationary[number] else index  # any window
        if index == 1:  # nothing was released before
            return success_upper_bound(
                prior, coming.sensors, self.tolerance, coming.noise, coming.scale, n_samples=self._n_draws, seed=seed
            )
        before = MarkovPrior(prior.marginals(index - 1)[-1], prior.transition) if index else prior
        return success_after_releases(before, coming, self.tolerance, self._n_draws, seed)


def _crowd(plan: Plan, accountant: Reconstruction) -> _Crowd:
    """Return the targets whose priors are learned, or a sample of them, or a single target if all share a prior."""
    prior, n_windows = accountant.prior, plan.grid.calendar.n_windows or 0
    training = None if prior.estimate is None else plan.people.training(prior.windows or 0)
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


def _budget(plan: Plan, crowd: _Crowd, share: float, minimum: float) -> tuple[str, str, Any, float] | None:
    """Plan the ε, ρ or σ of the releasing step. Returns None if the step has no such parameter.

    ``minimum``: the fraction of people retraced without a release.
    """
    reader = plan.chain.reader
    key = next((name for name in amounts(reader) if name in parameters_of(type(reader))), None)
    if key is None:
        return None
    position, sign = plan.config.mechanism.index(reader), _KEYS[key]

    def share_at(value: float, seed: int = _SEARCH) -> float:
        """Return the fraction of people retraced for a given parameter value."""
        step = replace(reader, **{key: value})
        steps = (*plan.config.mechanism[:position], step, *plan.config.mechanism[position + 1 :])
        config, chain = replace(plan.config, mechanism=steps), Chain.of(steps, plan.chain.groups)
        return crowd.share_of(replace(plan, config=config, chain=chain), seed)

    def value_at(step: int) -> float:
        """Return the value that is a given number of steps away from the least revealing one."""
        return float((_MIN_BUDGET * (_MAX_BUDGET / _MIN_BUDGET) ** (step / _STEPS)) ** sign)

    step = _last_safe(lambda step: share_at(value_at(step)) - share, _STEPS + 1, minimum - share, 1 - share)
    if step == 0 and share_at(value_at(0)) > share:
        text = "nothing keeps the goal: of what this step releases no better bound is known than that of exact counts"
        raise ConfigError((f"mechanism[{position}]: {text}",))
    if step == _STEPS:
        text = f"keeps the goal with any {key}: what the active sensors see is too little to retrace more people"
        raise ConfigError((f"mechanism[{position}]: {text}",))
    value = _round_digits(value_at(step), sign)
    while (share_at_value := share_at(value, _CHECK)) > share:
        step -= 1
        value = _round_digits(value_at(step), sign)
    return f"mechanism[{position}]", key, value, share_at_value


def _last_safe(excess: Callable[[int], float], unsafe: int, excess_safe: float, excess_unsafe: float) -> int:
    """Return the largest integer in [0, unsafe) whose excess over the goal is at most 0. Excess grows with the integer.

    The excess of both ends is about what is given. Tried is where a line between the ends meets the goal, of which an
    end that stays where it is counts half (Illinois): fewer trials than by halving.

    >>> _last_safe(lambda n: n - 10.5, 1024, -10.5, 1013.5)
    10
    """
    safe, was_over = 0, None
    while unsafe - safe > 1:
        guess = safe + round((unsafe - safe) * excess_safe / (excess_safe - excess_unsafe))
        guess = min(max(guess, safe + 1), unsafe - 1)
        over = excess(guess)
        if over > 0:
            unsafe, excess_unsafe = guess, over
            excess_safe /= 2 if was_over is True else 1
        else:
            safe, excess_safe = guess, over
            excess_unsafe /= 2 if was_over is False else 1
        was_over = over > 0
    return safe


def _round_digits(value: float, sign: int) -> float:
    """Round to three digits, downwards if the sign is positive and upwards if it is negative."""
    digits = 2 - math.floor(math.log10(value))
    return (math.floor if sign > 0 else math.ceil)(value * 10.0**digits) / 10.0**digits


def _sensors(plan: Plan, crowd: _Crowd, share: float, minimum: float) -> tuple[str, str, Any, float]:
    """Plan how many cells publish exact counts, most visited first. ``minimum``: fraction retraced if none does."""
    places, cells = crowd.known.places, plan.space.cells
    presence = np.mean([prior.initial[places.location] for prior in crowd.known.priors], axis=0) * places.share
    order = np.argsort(-presence[:-1], kind="stable")

    def share_at(n_active: int, seed: int = _SEARCH) -> float:
        """Return the fraction of people retraced if a given number of cells publish."""
        sensors = Sensors(fixed=tuple(cells[cell] for cell in order[:n_active])).prepare(cells, 0)
        return crowd.share_of(replace(plan, grid=replace(plan.grid, sensors=sensors)), seed)

    n_safe = _last_safe(lambda n: share_at(n) - share, len(cells) + 1, minimum - share, 1 - share)
    share_at_value = 0.0
    while n_safe and (share_at_value := share_at(n_safe, _CHECK)) > share:
        n_safe -= 1
    if n_safe in (0, len(cells)):
        text = "keep the goal, all of them active" if n_safe else "cannot keep the goal: one cell has a bound above it"
        raise ConfigError((f"sensors: counts without noise {text}",))
    return "sensors", "fixed", sorted(cells[cell] for cell in order[:n_safe]), share_at_value
