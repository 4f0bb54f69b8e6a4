"""Budgets and noise planned from a goal: solve for the number that a mechanism is configured with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.accountants.correlation.adversary import KnownCorrelation, adversary
from penstock.accountants.correlation.planning import largest_epsilon
from penstock.accountants.temporal import Temporal
from penstock.mechanisms.core.contract import GAUSSIAN_FAMILIES, MECHANISMS
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import Checked, PenstockError, parameter
from penstock.mechanisms.core.schedules import BudgetSchedule
from penstock.mechanisms.core.traces import PLANAR_FAMILIES
from penstock.pipeline.config.build import FAILED, Builder, defaults_of
from penstock.pipeline.config.yaml import Mapping, Path, Problem, Scalar, Sequence
from penstock.pipeline.steps.individuals import training_part

#: Sections that a plan depends on; problems with them are reported when they are built.
_NEEDED = ("mode", "source", "space", "windows", "bounding", "accountants")
_PLACEHOLDER = 1.0


@dataclass(frozen=True, kw_only=True)
class Planned(Checked):
    """The largest ε under which the total temporal loss of no window passes a goal.

    Parameters
    ----------
    temporal_goal
        Bound on the total loss of every window; in runs with an end, of as many windows as they have.
    correlation
        What the adversary knows; unset: everything that the temporal accountants of the run assume.

    Examples
    --------
    >>> Planned(temporal_goal=1.0).correlation is None
    True
    """

    temporal_goal: float = parameter(doc="total temporal loss that no window passes", above=0, unit="nats")
    correlation: KnownCorrelation | None = parameter(
        None, doc="what the adversary knows; unset: as the accountant says"
    )


def is_plannable(mechanism: type) -> bool:
    """Whether no release of a mechanism ever costs more than its ``epsilon``."""
    return issubclass(mechanism, BudgetSchedule)


def plan_budgets(root: Mapping, builder: Builder, config: type) -> list[Problem]:
    """Replace every planned ``epsilon`` of a document by the number it stands for.

    ``root`` is changed in place; what cannot be planned becomes a number that is no problem by itself.

    Returns what is wrong with the plans. An estimate from the run's own stream reads it.
    """
    problems: list[Problem] = []
    for i, section in enumerate(_mechanisms(root)):
        node = section.items.get("epsilon")
        if isinstance(node, Mapping) and _names_plannable(section):
            section.items["epsilon"] = Scalar(node.place, _PLACEHOLDER, str(_PLACEHOLDER))
            plan = _Plan(node, ("mechanism", i, "epsilon"), Builder(builder.unions, builder.folder))
            epsilon = plan.epsilon(root, config)
            problems += plan.builder.problems
            if "streams" in root.items:
                text = "an ε is not planned for streams, which spend together; it must be a number"
                problems.append(Problem(node.place, plan.path, text))
            if epsilon is not None:
                section.items["epsilon"] = Scalar(node.place, epsilon, repr(epsilon))
    return problems


def _mechanisms(root: Mapping) -> Iterator[Mapping]:
    node = root.items.get("mechanism")
    entries = node.items if isinstance(node, Sequence) else [node]
    # A section of another kind still counts as one, so that indices stay those of the document.
    return (entry if isinstance(entry, Mapping) else Mapping(root.place, {}, {}) for entry in entries)


def _names_plannable(section: Mapping) -> bool:
    name = section.items.get("type")
    noise = section.items.get("noise")
    if not isinstance(name, Scalar) or name.value not in MECHANISMS.names():
        return False
    other = isinstance(noise, Scalar) and noise.value in (*PLANAR_FAMILIES, *GAUSSIAN_FAMILIES)
    return not other and is_plannable(MECHANISMS.get(str(name.value)))


@dataclass
class _Plan:
    """One planned budget: where it is written, and the builder that collects what is wrong with it."""

    node: Mapping
    path: Path
    builder: Builder

    def epsilon(self, root: Mapping, config: type) -> float | None:
        """The budget that mechanisms are configured with (add/remove); None where there is none, or a problem."""
        planned = self.builder.section(self.node, Planned, self.path)
        trial = Builder(self.builder.unions, self.builder.folder)
        values = defaults_of(config) | trial.values(root, config, ())
        if planned is FAILED or FAILED in [values.get(name, FAILED) for name in _NEEDED]:
            return None
        known = self._known(planned, values)
        if not self._is_sound(known, values):
            return None
        try:
            found = min(self._largest(planned.temporal_goal, correlation, values) for correlation in known)
        except PenstockError as error:
            self.builder.fail(self.node, self.path, str(error))
            return None
        if found == 0:
            text = "no ε keeps an endless stream under the goal: with this correlation one window reveals the next"
            self.builder.fail(self.node, self.path, text)
            return None
        return found

    def _known(self, planned: Planned, values: dict[str, Any]) -> list[KnownCorrelation]:
        if planned.correlation is not None:
            return [planned.correlation]
        temporal = [one for one in values["accountants"] if isinstance(one, Temporal)]
        return [correlation for one in temporal for _, correlation in one.known]

    def _is_sound(self, known: list[KnownCorrelation], values: dict[str, Any]) -> bool:
        """Record what forbids the plan."""
        if not known:
            text = "missing; it must be given here, or in a temporal accountant of the run"
            self.builder.fail(self.node, (*self.path, "correlation"), text)
        elif values["mode"] == "deployment" and not all(correlation.is_public for correlation in known):
            text = "an ε planned from people's data tells of them; a deployment plans with a public matrix or model"
            self.builder.fail(self.node, (*self.path, "correlation"), text)
        return not self.builder.problems

    def _largest(self, goal: float, correlation: KnownCorrelation, values: dict[str, Any]) -> float:
        source = values["source"]
        calendar = values["windows"].calendar(source.from_, source.until)
        training = None
        if correlation.windows is not None:
            key = NoiseKey.from_seed(values.get("seed") or 0).subkey("hash")
            space, bounding = values["space"].resolve(source), values["bounding"]
            training = training_part(source, space, calendar, correlation.windows, bounding=bounding, hash_key=key)
        backward, forward = adversary(correlation, training).leakage
        # Half, for what is planned is the ε of replacing a person's cell, twice that of adding or removing it.
        return largest_epsilon(goal, backward, forward, calendar.n_windows) / 2
