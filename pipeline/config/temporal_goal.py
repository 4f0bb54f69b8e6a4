"""Plan the largest ε of a configuration under which no window's temporal loss passes a goal."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.accountants.correlation.adversary import KnownCorrelation, adversary
from penstock.accountants.correlation.planning import largest_epsilon
from penstock.accountants.temporal import Temporal
from penstock.mechanisms.core.contract import MECHANISMS, Mechanism
from penstock.mechanisms.core.noise_family import families
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import ConfigError
from penstock.mechanisms.core.schedules import Scheduled
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import training_part


@dataclass(frozen=True, kw_only=True)
class PlannedEpsilon:
    """The ε that keeps a goal, and the key that takes it."""

    key: str  # such as mechanism[0].epsilon
    epsilon: float
    goal: float

    def line(self) -> str:
        """The line to write into the configuration.

        >>> PlannedEpsilon(key="mechanism[0].epsilon", epsilon=0.25, goal=1.0).line()
        'epsilon: 0.25  # of mechanism[0]: no window has a total temporal loss above 1'
        """
        section, _, name = self.key.rpartition(".")
        return f"{name}: {self.epsilon!r}  # of {section}: no window has a total temporal loss above {self.goal:g}"


def is_plannable(mechanism: Mechanism) -> bool:
    """Whether no release of a mechanism ever costs more than its ``epsilon``, in pure ε."""
    noise = getattr(mechanism, "noise", None)
    return isinstance(mechanism, Scheduled) and noise in families("counts", "epsilon")


def plan_epsilon(config: RunConfig, goal: float) -> PlannedEpsilon:
    """Largest ε (add or remove a person's cell) under which the total temporal loss of no window passes a goal.

    Parameters
    ----------
    config
        The configuration, whose own ε does not matter. Its temporal accountants say what the adversary knows; the plan
        holds for every one of them. An estimate from the run's own stream reads it.
    goal
        Bound on the total loss of every window, in nats; in runs with an end, of as many windows as they have.

    Raises
    ------
    ConfigError
        Where no mechanism spends an ``epsilon`` a window, nothing says what the adversary knows, what is known was
        learned from the people of a deployment, or no ε keeps an endless stream under the goal.
    """
    plannable = [i for i, mechanism in enumerate(config.mechanism) if is_plannable(mechanism)]
    if not plannable:
        names = ", ".join(MECHANISMS.name_of(type(mechanism)) for mechanism in config.mechanism)
        raise ConfigError(
            (f"mechanism: {names} cannot be planned; it must be one that spends epsilon, such as laplace",)
        )
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
    epsilon = min(_largest(config, goal, correlation) for _, correlation in known)
    if epsilon == 0:
        text = "no ε keeps an endless stream under the goal: with this correlation one window reveals the next"
        raise ConfigError((f"{known[0][0]}: {text}",))
    return PlannedEpsilon(key=f"mechanism[{plannable[-1]}].epsilon", epsilon=epsilon, goal=goal)


def _largest(config: RunConfig, goal: float, correlation: KnownCorrelation) -> float:
    source = config.source
    calendar = config.windows.calendar(source.from_, source.until)
    training = None
    if correlation.windows is not None:
        key = NoiseKey.from_seed(config.seed or 0).subkey("hash")
        space = config.space.resolve(source)
        training = training_part(source, space, calendar, correlation.windows, bounding=config.bounding, hash_key=key)
    backward, forward = adversary(correlation, training).leakage
    # Half, for what is planned is the ε of replacing a person's cell, twice that of adding or removing it.
    return largest_epsilon(goal, backward, forward, calendar.n_windows) / 2
