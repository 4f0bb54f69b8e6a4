"""Comparison of attacks that use principal components with attacks that use cell statistics: figure 1(b)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from penstock.evaluation.attacks.game import CLASSIFIERS
from penstock.mechanisms.core.plugin import parameter
from reproductions.exposure import comparison_table
from reproductions.pyrgelis import PAST_PRIORS, WEEK, Binary, CabStudy, TargetPiece, past_game, subset_game
from reproductions.study import Figures, Tables


@dataclass(frozen=True, kw_only=True)
class AttackComparison(CabStudy):
    """Run both attacks on the same targets, for adversaries who know locations and who know past groups."""

    not_decisive: ClassVar[tuple[str, ...]] = (*CabStudy.not_decisive, "past_targets")

    samples: int = parameter(2000, doc="labelled aggregates of each target, where locations are known", at_least=8)
    group_size: int = parameter(100, doc="people in an aggregate, where locations are known", at_least=1)
    known: float = parameter(0.2, doc="share of the people whose locations are known", above=0, below=1)
    past_targets: int | None = parameter(
        None, doc="people attacked, where the past is known; unset: as many as targets", at_least=3
    )
    past_group_size: int = parameter(500, doc="people in an aggregate, where the past is known", at_least=1)
    past_groups: int = parameter(800, doc="groups whose past is known", at_least=2)

    def pieces(self, presence: Binary) -> tuple[TargetPiece, ...]:
        """Return the pieces, ordered by prior, target and attack."""
        week = presence[:, :WEEK]
        past = replace(self, targets=self.past_targets or self.targets).chosen(week)
        drawn = {"subset": self.chosen(week), **dict.fromkeys(PAST_PRIORS, past)}
        return tuple(
            TargetPiece(int(target), f"{prior} {attack}")
            for prior, targets in drawn.items()
            for target in targets
            for attack in CLASSIFIERS
        )

    def measure(self, presence: Binary, piece: TargetPiece) -> Figures:
        """Compute the area under the curve for one target, prior and attack."""
        prior, _, attack = piece.name.partition(" ")
        sizes = {"n_components": self.components, "seed": self.seed}
        if prior == "subset":
            game_sizes = {"group_size": self.group_size, "known": self.known, "n_samples": self.samples}
            game = subset_game(presence, **game_sizes, **sizes)
        else:
            game = past_game(presence, prior, group_size=self.past_group_size, groups=self.past_groups, **sizes)
        return {"area": np.array([game.attack(piece.target, attack=attack).auc])}

    def tables(self, presence: Binary, measured: Mapping[TargetPiece, Figures]) -> Tables:
        """Return one table for each prior, with the mean and deciles of the areas."""
        areas: dict[str, list[float]] = {}
        for piece, figures in measured.items():
            areas.setdefault(piece.name, []).append(float(figures["area"][0]))
        known = {name.removeprefix("subset "): np.array(areas[name]) for name in areas if name.startswith("subset ")}
        past = {name: np.array(areas[name]) for name in areas if not name.startswith("subset ")}
        return {"membership_comparison": comparison_table(known), "membership_past_attacks": comparison_table(past)}
