"""Attacks as measures of a trial: membership inference and trajectory recovery."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.challenge import advantage, privacy_gain, true_positives
from penstock.evaluation.attacks.game import ATTACKS
from penstock.evaluation.attacks.parameters import MAX_PEOPLE, Game
from penstock.evaluation.attacks.recovery import Recovery, trajectory_recovery
from penstock.mechanisms.core.contract import MECHANISMS, Generalization
from penstock.mechanisms.core.geometry import corners_of, offsets_between
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import Presence, read_presence
from penstock.pipeline.experiments.games.membership import membership_game, targets_of
from penstock.pipeline.spaces.base import Space
from penstock.pipeline.windows.calendar import DAY, wall_time

#: Figures of an attack on membership: area under the curve, who is found at 1 % and at 0.1 % false alarms, the
#: membership advantage, and the share of the privacy loss of raw counts that the mechanism takes away.
GAIN, ADVANTAGE = "gain", "advantage"
FIGURES: dict[str, float | None] = {"auc": None, "tpr_1": 0.01, "tpr_01": 0.001, ADVANTAGE: None, GAIN: None}
#: The attack on everybody's trajectory, and its figures with their units.
RECOVERY = "recovery"
RECOVERY_FIGURES = {"accuracy": "", "baseline": "", "gain": "", "distance": "metres"}
#: First part of a day, in which people stay where they are (Xu et al. 2017): until six.
NIGHT = DAY // 4


def attack_and_figure(name: str) -> tuple[str, str]:
    """Return the attack and the figure that a measure ``attack/name/figure`` names.

    >>> attack_and_figure("attack/lira/auc"), attack_and_figure("attack/recovery/gain")
    (('lira', 'auc'), ('recovery', 'gain'))
    >>> attack_and_figure("attack/lira")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: measures: 'attack/lira' is not allowed; ...
    """
    _, attack, figure = (*name.split("/"), "", "")[:3]
    known = RECOVERY_FIGURES if attack == RECOVERY else FIGURES
    if attack not in (*ATTACKS, RECOVERY) or figure not in known or name.count("/") != 2:
        expected = (
            f"attack/name/figure, the name out of {', '.join(ATTACKS)}, the figure out of {', '.join(FIGURES)}; or "
            f"attack/{RECOVERY}/figure, the figure out of {', '.join(RECOVERY_FIGURES)}"
        )
        raise ParameterError("measures", name, expected)
    return attack, figure


def plays_membership(name: str) -> bool:
    """Return whether a measure is a membership attack. The section ``attack`` configures attacks of this kind."""
    return name.startswith("attack/") and not name.startswith(f"attack/{RECOVERY}/")


def check_recoverable(config: RunConfig) -> None:
    """Reject a run that has no per-person trajectories across cells and windows."""
    if not config.source.has_people:
        expected = "one that tells people apart, to recover trajectories: here every trip is a new person"
        raise ParameterError("source", type(config.source).__name__.lower(), expected)
    coarse = [step for step in config.mechanism if isinstance(step, Generalization)]
    if coarse:
        expected = "without coarse cells and windows, to recover trajectories"
        raise ParameterError("mechanism", MECHANISMS.name_of(type(coarse[0])), expected)


def recovered(
    plan: Plan, released: NDArray[np.float64], windows: Sequence[int], seed: int, *, max_people: int = MAX_PEOPLE
) -> Recovery:
    """Recover the trajectories of all people from a run's release.

    `released` (n_windows, n_cells): what it released.

    Night is from midnight to six by the local time of a window's start; of windows of a day or longer all are. Where
    windows divide a day, days of that many windows are counted from the first one.
    """
    check_recoverable(plan.config)
    presence = read_presence(plan, plan.grid.n_windows).raw
    if len(presence) > max_people:
        expected = f"at most {max_people:,} people, to recover trajectories: fewer windows, or a smaller source"
        raise ParameterError("source", f"{len(presence):,} people", expected)
    positions, known = knowledge(plan, windows)
    return trajectory_recovery(presence[:, np.asarray(windows) - 1], released, positions, **known, seed=seed)


def knowledge(plan: Plan, windows: Sequence[int]) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the positions of the cells, the night windows and the number of windows in a day."""
    calendar = plan.grid.calendar
    starts = [wall_time(calendar.time_zone, calendar.start(index)) for index in windows]
    night = (np.array(starts) % DAY < NIGHT) | (calendar.step >= DAY)
    divides = DAY % calendar.step == 0 and calendar.step < DAY
    positions = positions_of(plan.space)
    known = {"night": night, "day": calendar.per_day if divides else None}
    return np.eye(plan.grid.n_cells) if positions is None else positions, known


def positions_of(space: Space) -> NDArray[np.float64] | None:
    """Return the centre of each cell in metres east and north, shape (n_cells, 2), or None if cells have no
    location.
    """
    corners = [corners_of(cell) for cell in space.geometry()]
    if not all(map(len, corners)):
        return None
    middles = np.array([(points.min(axis=0) + points.max(axis=0)) / 2 for points in corners])[:, ::-1]
    return offsets_between(middles.mean(axis=0), middles)


def recovery_figure(recovery: Recovery, figure: str, plan: Plan) -> float:
    """Return one of `RECOVERY_FIGURES`. A distance requires that cells have a location."""
    if figure != "distance":
        return recovery.recovered.accuracy if figure == "accuracy" else float(getattr(recovery, figure))
    if positions_of(plan.space) is None:
        expected = "one whose cells have a place, for attack/recovery/distance"
        raise ParameterError("space", type(plan.space).__name__.lower(), expected)
    return recovery.recovered.distance


@dataclass(frozen=True)
class Attacked:
    """A membership game against the mechanism of one trial. Its attacks run on demand."""

    # the run. Its seed decides targets, groups and noise, so that attacks in one trial meet the same groups.
    plan: Plan
    game: Game  # parameters of the game; its own attack is not used

    @cached_property
    def presence(self) -> Presence:
        """The presence of all people. It is read once for all attacks."""
        return read_presence(self.plan, self.game.periods(self.plan.grid.n_windows)[0][1])

    @cached_property
    def _made(self) -> dict[tuple[str, bool], list[tuple[NDArray[np.bool_], NDArray[np.float64]]]]:
        return {}

    def figure(self, attack: str, figure: str) -> float:
        """Return one of `FIGURES`, or NaN if there are too few challenges to compute a rate.

        The area and the gain are means over targets; a rate, and the advantage, is one threshold's for the challenges
        of all targets together.
        """
        if figure == GAIN:
            gains = privacy_gain(self._areas(attack, released=False), self._areas(attack, released=True))
            return float(np.mean(gains))
        if figure == "auc":
            return float(np.mean(self._areas(attack, released=True)))
        labels, scores = (np.concatenate(parts) for parts in zip(*self._scores(attack, released=True)))
        if (at := FIGURES[figure]) is None:
            return advantage(labels, scores)
        n_found = true_positives(labels, scores, at)
        return math.nan if n_found is None else n_found / int(labels.sum())

    def _scores(self, attack: str, released: bool) -> list[tuple[NDArray[np.bool_], NDArray[np.float64]]]:
        """Return the labels and scores of each target's challenges, for raw or released aggregates."""
        if (attack, released) not in self._made:
            game = replace(self.game, attack=attack)
            membership, defense = membership_game(self.plan, self.presence, game, released=released)
            targets = targets_of(self.presence, self.game, self.plan.config.seed or 0)
            self._made[attack, released] = [membership.scores(one, defense=defense, attack=attack) for one in targets]
        return self._made[attack, released]

    def _areas(self, attack: str, released: bool) -> NDArray[np.float64]:
        return np.array([area_under_curve(*one) for one in self._scores(attack, released)])
