"""The membership game applied to a run: targets, attacks on raw and released aggregates, and result metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.challenge import advantage, privacy_gain, true_positives
from penstock.evaluation.attacks.defenses import Defense, mechanism_defense
from penstock.evaluation.attacks.game import ATTACKS, MembershipGame
from penstock.evaluation.attacks.parameters import AttackedRun, Game
from penstock.evaluation.attacks.summaries import summarize
from penstock.evaluation.attacks.user_space import MOBILITY_GROUPS, draw_targets, mobility_groups, most_exposed
from penstock.mechanisms.core.plugin import DataError, ParameterError

#: Figures of an attack on membership: area under the curve, who is found at 1 % and at 0.1 % false alarms, the
#: membership advantage, and the share of the privacy loss of raw counts that the mechanism takes away.
GAIN, ADVANTAGE = "gain", "advantage"
FIGURES: dict[str, float | None] = {"auc": None, "tpr_1": 0.01, "tpr_01": 0.001, ADVANTAGE: None, GAIN: None}
#: Samples of the fewest by which the time of an attack is estimated.
TRIED = 40
#: The attack on everybody's trajectory, and its figures with their units.
RECOVERY = "recovery"
RECOVERY_FIGURES = {"accuracy": "", "baseline": "", "gain": "", "distance": "metres"}

#: Columns of the table of attacks.
SCHEMA: dict[str, Any] = {
    **{"game": pl.String, "target": pl.Int64, "user": pl.String, "mobility": pl.String, "released": pl.Boolean},
    **dict.fromkeys(("auc", "low", "high"), pl.Float64),
    **dict.fromkeys(("n_train", "n_challenges", "n_features", "found"), pl.Int64),
}


def attack_and_figure(name: str) -> tuple[str, str]:
    """Split a measure of the form ``attack/name/figure`` into the names of the attack and the figure.

    >>> attack_and_figure("attack/lira/auc"), attack_and_figure("attack/recovery/gain")
    (('lira', 'auc'), ('recovery', 'gain'))
    >>> attack_and_figure("attack/lira")
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.ParameterError: measures: 'attack/lira' is not allowed; ...
    """
    _, attack, figure = (*name.split("/"), "", "")[:3]
    known: Mapping[str, Any] = RECOVERY_FIGURES if attack == RECOVERY else FIGURES
    if attack not in (*ATTACKS, RECOVERY) or figure not in known or name.count("/") != 2:
        expected = (
            f"attack/name/figure, the name out of {', '.join(ATTACKS)}, the figure out of {', '.join(FIGURES)}; or "
            f"attack/{RECOVERY}/figure, the figure out of {', '.join(RECOVERY_FIGURES)}"
        )
        raise ParameterError("measures", name, expected)
    return attack, figure


def plays_membership(name: str) -> bool:
    """Return whether a measure is computed by a membership attack, which the ``attack`` section configures."""
    return name.startswith("attack/") and not name.startswith(f"attack/{RECOVERY}/")


class MembershipAttack:
    """The membership game applied to a run. Each target is attacked separately, on both raw and released aggregates.

    The adversary is strategic: she trains on released aggregates. Every aggregate is a run of its own over the first
    windows, with noise of its own. Bounding, coarse people and sampling are those of the run, hence the same for all
    aggregates. The run's seed decides targets and groups, so that all attacks meet the same groups.
    """

    schema = SCHEMA

    def __init__(self, run: AttackedRun, game: Game) -> None:
        n_people = len(run.users)
        if n_people < len(MOBILITY_GROUPS):
            raise DataError(f"{n_people} seen in these windows; an attack needs at least {len(MOBILITY_GROUPS)} people")
        self.run, self.game = run, game.settled(*run.raw.shape)
        n_targets = min(self.game.targets or 0, n_people)
        exposed = game.whom == "exposed"
        chosen = most_exposed(run.released, n_targets) if exposed else draw_targets(run.raw, n_targets, run.seed)
        self.targets = [int(target) for target in chosen]
        self._made: dict[tuple[str, bool], list[tuple[NDArray[np.bool_], NDArray[np.float64]]]] = {}

    @cached_property
    def mobility(self) -> NDArray[np.intp]:
        """Each person's mobility group."""
        return mobility_groups(self.run.raw)

    @cached_property
    def in_turn(self) -> list[int]:
        """The targets, ordered so that mobility groups alternate and any prefix of the list is balanced."""
        nth = {group: count() for group in range(len(MOBILITY_GROUPS))}
        turn = {target: next(nth[self.mobility[target]]) for target in self.targets}
        return sorted(self.targets, key=lambda target: (turn[target], self.mobility[target]))

    @cached_property
    def games(self) -> dict[bool, tuple[MembershipGame, Defense | None]]:
        """The membership games on raw (False) and released (True) aggregates."""
        return {released: self.game_of(self.game, released) for released in (False, True)}

    def game_of(self, game: Game, released: bool) -> tuple[MembershipGame, Defense | None]:
        """Return the membership game on raw or released presence. The run's mechanism is the defense."""
        run, n_windows = self.run, self.run.facts.n_windows or 0
        observation, inference = game.periods(n_windows)
        membership = MembershipGame(
            run.released if released else run.raw,
            prior=game.prior,
            group_size=game.people_in_a_group(len(run.users)),
            known=game.known,
            challenges=game.challenges,
            observation=observation,
            inference=inference,
            n_samples=game.samples,
            n_components=game.components,
            seed=run.seed,
        )
        if not released:
            return membership, None
        together, begins = run.chain.n_merged, membership.space.blocks[:, 0]
        if (begins % together).any():
            raise ParameterError("observation", int(begins[-1]), f"cut at multiples of {together}, the longer windows")
        windows = run.windows(1, membership.space.shape[0])
        return membership, mechanism_defense(run.mechanism, facts=run.facts, windows=windows)

    @property
    def n_values(self) -> int:
        """The number of values in all of a target's aggregates."""
        return self.game.samples * math.prod(self.games[True][0].space.shape)

    def seconds(self) -> float:
        """Estimate how long attacking one target takes, by attacking it with fewer samples."""
        few = replace(self.game, samples=min(max(TRIED, self.game.samples // 10), self.game.samples))
        for _ in range(2):  # the first one also loads what all need
            begin = time.monotonic()
            for game, defense in (self.game_of(few, released) for released in (False, True)):
                game.attack(self.in_turn[0], defense=defense, attack=few.attack)
        return (time.monotonic() - begin) * self.game.samples / few.samples

    def play(self, target: int) -> list[dict[str, Any]]:
        """Attack one target on both raw and released aggregates, and return the results as table rows."""
        user = " ".join(map(str, self.run.users[target]))
        identity = {"user": user, "mobility": MOBILITY_GROUPS[self.mobility[target]]}
        return [
            identity | {"released": released} | asdict(one.attack(target, defense=defense, attack=self.game.attack))
            for released, (one, defense) in self.games.items()
        ]

    def summary(self, table: pl.DataFrame) -> dict[str, Any]:
        """Return the results by mobility group, along with the game's parameters."""
        n_people, n_windows, n_attacked = len(self.run.users), self.run.facts.n_windows or 0, table["target"].n_unique()
        observation, inference = self.game.periods(n_windows)
        played = {**asdict(self.game), "observation": observation, "inference": inference, "n_people": n_people}
        played |= {"n_windows": n_windows, "group_size": self.game.people_in_a_group(n_people)}
        played |= {"n_attacked": n_attacked, "n_left": len(self.targets) - n_attacked}
        return {"game": played} | summarize(table)

    def figure(self, attack: str, figure: str) -> float:
        """Return the value of one of `FIGURES`, or NaN if there are too few challenges to estimate a rate.

        The area and the gain are means over targets; a rate, and the advantage, is one threshold's for the challenges
        of all targets together. Each attack runs once for all its figures.
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
        """Return the labels and scores of each target's challenges, on either raw or released aggregates."""
        if (attack, released) not in self._made:
            membership, defense = self.game_of(replace(self.game, attack=attack), released)
            scores = [membership.scores(target, defense=defense, attack=attack) for target in self.targets]
            self._made[attack, released] = scores
        return self._made[attack, released]

    def _areas(self, attack: str, released: bool) -> NDArray[np.float64]:
        return np.array([area_under_curve(*one) for one in self._scores(attack, released)])
