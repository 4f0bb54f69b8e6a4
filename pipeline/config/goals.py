"""Plan the noise required to meet a goal by finding which configuration key to set and to what value."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import yaml

from penstock.accountants.conditional_inferential import ConditionalInferential
from penstock.accountants.correlation.adversary import KnownCorrelation, adversary
from penstock.accountants.correlation.planning import largest_epsilon
from penstock.accountants.gaussian_process.goal import planned_for_worst
from penstock.accountants.temporal import Temporal
from penstock.mechanisms.core.contract import MECHANISMS
from penstock.mechanisms.core.noise_family import families
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ConfigError
from penstock.mechanisms.core.schedules import Schedule
from penstock.mechanisms.core.sensitivity import price_of_replacement
from penstock.mechanisms.gaussian_trace import ConditionalGoal, GaussianTrace, TracePrior
from penstock.pipeline.config.plan import outline
from penstock.pipeline.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class PlannedLine:
    """A key's planned value and the guarantee it provides."""

    section: str  # such as mechanism[0]
    key: str
    value: Any
    promise: str
    remark: str = ""

    def line(self) -> str:
        """Return the YAML line for the section with a comment at the end.

        >>> PlannedLine(section="mechanism[0]", key="epsilon", value=0.25, promise="the goal is kept").line()
        'epsilon: 0.25  # of mechanism[0]: the goal is kept'
        """
        text = yaml.safe_dump({self.key: self.value}, default_flow_style=True, width=math.inf, sort_keys=False)
        line = f"{text.strip()[1:-1]}  # of {self.section}: {self.promise}"
        return f"{line}\n# {self.remark}" if self.remark else line


def plan_temporal(config: RunConfig, goal: float) -> PlannedLine:
    """Find the largest ε (add/remove) that keeps each window's temporal loss within a goal for every accountant.

    Raises `ConfigError` where no mechanism spends an ``epsilon`` a window, nothing says what the adversary knows, what
    is known was learned from the people of a deployment, or no ε keeps an endless stream under the goal.
    """
    noisy_steps = [
        i
        for i, step in enumerate(config.mechanism)
        if isinstance(step, Schedule) and step.family.name in families("counts", "epsilon")
    ]
    if not noisy_steps:
        raise _unplannable(config, "one that spends epsilon, such as laplace")
    known = [
        (f"accountants[{i}].correlation", correlation)
        for i, accountant in enumerate(config.accountants)
        if isinstance(accountant, Temporal)
        for _, correlation in accountant.known
    ]
    if not known:
        text = "a plan needs a temporal accountant, whose correlation says what the adversary knows"
        raise ConfigError((f"accountants: {text}",))
    private = [key for key, correlation in known if config.mode == "deployment" and not correlation.is_public]
    if private:
        text = "an ε planned from people's data tells of them; a deployment plans with a public matrix or model"
        raise ConfigError(tuple(f"{key}: {text}" for key in private))
    epsilon = min(_largest_epsilon(config, goal, correlation) for _, correlation in known)
    if epsilon == 0:
        text = "no ε keeps an endless stream under the goal: with this correlation one window reveals the next"
        raise ConfigError((f"{known[0][0]}: {text}",))
    promise = f"no window has a total temporal loss above {goal:g}"
    return PlannedLine(section=f"mechanism[{noisy_steps[-1]}]", key="epsilon", value=epsilon, promise=promise)


def _largest_epsilon(config: RunConfig, goal: float, correlation: KnownCorrelation) -> float:
    training = None
    if correlation.windows is not None:
        training = outline(config, NoiseKey.from_seed(config.seed or 0)).people.training(correlation.windows)
    backward, forward = adversary(correlation, training).leakage
    # Half, for what is planned is the ε of replacing a person's cell, twice that of adding or removing it.
    return largest_epsilon(goal, backward, forward, config.calendar.n_windows) / price_of_replacement("epsilon")


def plan_conditional(config: RunConfig, goal: float) -> PlannedLine:
    """Plan noise on traces that keeps each secret's loss within a goal, for the ``conditional_inferential`` accountant.

    No σ fixed beforehand holds for the times that come, so the value names the goal and what the adversary knows; σ is
    then worked out for each trace. Where ``windows.gap`` is set, the promise names the σ of points that far apart.
    Raises `ConfigError` without mechanism ``gaussian_trace`` or one such accountant, or if they differ in the radius.
    """
    step = config.mechanism[-1]
    if not isinstance(step, GaussianTrace):
        raise _unplannable(config, "gaussian_trace")
    known = [(i, entry) for i, entry in enumerate(config.accountants) if isinstance(entry, ConditionalInferential)]
    if len(known) != 1:
        text = "a plan needs one conditional_inferential accountant, whose process is what the adversary knows"
        raise ConfigError((f"accountants: {text}",))
    number, prior = known[0]
    if prior.radius != step.metres:
        text = f"is {step.metres:g}, and {prior.radius:g} in accountants[{number}]; a plan needs the same in both"
        raise ConfigError((f"mechanism[{len(config.mechanism) - 1}].radius: {text}",))
    stated = {field.name: getattr(prior, field.name) for field in fields(TracePrior)}
    planned = ConditionalGoal(goal=goal, **stated)
    changed = {field.name: stated[field.name] for field in fields(TracePrior) if stated[field.name] != field.default}
    scales = prior.length_scales
    changed["length_scale"] = scales.longest if scales.exactly is None else {"exactly": scales.exactly}
    return PlannedLine(
        section=f"mechanism[{len(config.mechanism) - 1}]",
        key="sigma",
        value={"conditional_goal": {"goal": goal, **changed}},
        promise=f"no secret point has a loss above {goal:g}{_example(config, step, planned)}",
    )


def _example(config: RunConfig, step: GaussianTrace, goal: ConditionalGoal) -> str:
    if not (gap := getattr(config.windows, "gap", None)):
        return ""
    sigma, worst = planned_for_worst(goal, step.metres, np.arange(goal.n_points) * gap / 1000)
    noise = f"{sigma:.0f} m" if math.isfinite(sigma) else "no noise is enough"
    if math.isfinite(sigma) and step.is_designed:
        noise += " or less as root mean square,"
    is_class = goal.length_scales.at_most is not None
    at = f", most lost at a length scale of {worst:.3g}" if is_class and math.isfinite(sigma) else ""
    return f"; {noise} for {goal.n_points} points, {gap / 1000:g} s apart{at}"


def _unplannable(config: RunConfig, expected: str) -> ConfigError:
    names = ", ".join(MECHANISMS.name_of(type(mechanism)) for mechanism in config.mechanism)
    return ConfigError((f"mechanism: {names} cannot be planned; it must be {expected}",))
