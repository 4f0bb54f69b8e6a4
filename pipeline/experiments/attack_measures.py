"""Attacks as measures of a trial: how well an adversary tells who is in its releases."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.game import ATTACKS
from penstock.evaluation.attacks.rates import true_positive_rate
from penstock.mechanisms.core.plugin import ParameterError
from penstock.pipeline.experiments.membership_attack import Game, membership_game, targets_of
from penstock.pipeline.steps.individuals import Presence, read_presence

if TYPE_CHECKING:
    from penstock.pipeline.config.plan import Plan

#: Figures of an attack: the area under the curve, and who is found at 1 % and at 0.1 % false alarms.
FIGURES: dict[str, float | None] = {"auc": None, "tpr_1": 0.01, "tpr_01": 0.001}


def attack_and_figure(name: str) -> tuple[str, str]:
    """Attack and figure of a measure ``attack/name/figure``.

    >>> attack_and_figure("attack/lira/auc")
    ('lira', 'auc')
    >>> attack_and_figure("attack/lira")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: measures: 'attack/lira' is not allowed; ...
    """
    _, attack, figure = (*name.split("/"), "", "")[:3]
    if attack not in ATTACKS or figure not in FIGURES or name.count("/") != 2:
        right = f"attack/name/figure, the name out of {', '.join(ATTACKS)}, the figure out of {', '.join(FIGURES)}"
        raise ParameterError("measures", name, right)
    return attack, figure


@dataclass(frozen=True)
class Attacked:
    """The membership game against the mechanism of one trial; attacks are made when they are asked for.

    Parameters
    ----------
    plan
        The run. Its seed decides targets, groups and noise, so that attacks in one trial meet the same groups.
    game
        Parameters of the game; its own attack is not used.
    """

    plan: Plan
    game: Game

    @cached_property
    def presence(self) -> Presence:
        """Who was where, read once for all attacks."""
        return read_presence(self.plan, self.game.periods(self.plan.n_windows)[0][1])

    @cached_property
    def _made(self) -> dict[str, dict[str, float]]:
        return {}

    def figure(self, attack: str, figure: str) -> float:
        """One figure of `FIGURES`; NaN where there are too few challenges for a rate.

        The area is the mean over targets; a rate is one threshold's for the challenges of all targets together.
        """
        if attack not in self._made:
            self._made[attack] = self._attack(attack)
        return self._made[attack][figure]

    def _attack(self, attack: str) -> dict[str, float]:
        own, defense = membership_game(self.plan, self.presence, replace(self.game, attack=attack), released=True)
        targets = targets_of(self.presence, self.game, self.plan.config.seed or 0)
        found = [own.scores(target, defense=defense, attack=attack) for target in targets]
        labels, scores = (np.concatenate(parts) for parts in zip(*found))
        figures = {"auc": float(np.mean([area_under_curve(*one) for one in found]))}
        for name, at in FIGURES.items():
            if at is not None:
                rate = true_positive_rate(labels, scores, at)
                figures[name] = math.nan if rate is None else rate.rate
        return figures
